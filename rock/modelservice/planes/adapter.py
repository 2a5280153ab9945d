"""What a listener is given: a plane and the bounds of what it takes from a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from rock.errors import RockError
from rock.modelservice.planes.plane import Outcome, Reply, Request
from rock.modelservice.settings import ServiceConfig

Handle: TypeAlias = Callable[[Request], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a listener takes from a peer; `settings` explains each."""

    max_body_bytes: int
    body_seconds: float = 60.0
    peer_timeout_seconds: float = 60.0

    @classmethod
    def of(cls, config: ServiceConfig) -> Bounds:
        return cls(
            max_body_bytes=config.max_body_bytes,
            body_seconds=config.body_seconds,
            peer_timeout_seconds=config.peer_timeout_seconds,
        )


@dataclass(frozen=True, slots=True)
class Adapter:
    """A plane, as a listener needs it."""

    handle: Handle
    refusal: Callable[[RockError], Reply]
    bounds: Bounds
