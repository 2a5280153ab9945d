"""A live ModelService for tests.

`running_service` is a real service with real sockets and a real journal, in this process, so that a
test can look inside; `rock.modelservice.hosting.supervise.ServiceProcess` is the one in its own process.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rock.config import validated
from rock.modelservice.client.worker import Policy
from rock.modelservice.hosting.server import Running, serving
from rock.modelservice.settings import ServiceConfig


@asynccontextmanager
async def running_service(
    state_dir: Path, *, policies: Mapping[str, Policy] | None = None, **settings: Any
) -> AsyncGenerator[Running, None]:
    """A service on free loopback ports. `settings` are fields of ServiceConfig, `policies` its
    backends by name."""
    config = validated(ServiceConfig, {"state_dir": state_dir, **settings}, source="settings")
    async with serving(config, policies=policies) as running:
        yield running
