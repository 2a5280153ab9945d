"""Workers inside the service: the same loop on the same queue, for sessions that name them.

A backend is a policy under a name; a session whose `backend` is that name gets its answers from it.
There is no second path: a built-in policy claims and completes like any trainer, and its answers
are journalled like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from rock.modelservice.backends.desk import ServiceDesk
from rock.modelservice.client.speaking import one_by_one
from rock.modelservice.client.worker import Policy, Worker
from rock.modelservice.policies.streamed import Speaker, entered
from rock.modelservice.service.service import ModelService

LEASE_SECONDS = 60.0


@asynccontextmanager
async def running(
    service: ModelService, policies: Mapping[str, Policy]
) -> AsyncGenerator[dict[str, Worker], None]:
    """Run one worker per policy for as long as the block; the workers by backend name.

    A policy that is an async context manager is entered first and left last.
    """
    workers = {
        name: Worker(
            _spoken(policy, desk),
            desk,
            worker_id=f"backend:{name}",
            concurrency=service.config.backend_concurrency,
            lease_seconds=LEASE_SECONDS,
        )
        for name, policy in policies.items()
        for desk in [ServiceDesk(service, name)]
    }
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        for policy in policies.values():
            await entered(stack, policy)
        tasks = [asyncio.ensure_future(worker.run(stop)) for worker in workers.values()]
        try:
            yield workers
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)


def _spoken(policy: Policy, desk: ServiceDesk) -> Policy:
    """A policy that can say its answers as they come does."""
    return one_by_one(policy.speak, desk) if isinstance(policy, Speaker) else policy
