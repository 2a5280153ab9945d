"""How a service is: its health, its shards, its counts."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from rock.modelservice.wire.base import Wire
from rock.modelservice.wire.leases import PolicyStatus


class ShardPorts(Wire):
    """Control planes of the shards of one service, by number; empty for a service of one process."""

    control_ports: list[int] = field(default_factory=list[int])


class Stats(Wire):
    """Calls of every session that the journal still knows, and since the start `redelivered`."""

    queued: int
    leased: int
    waiting_workers: int
    open_sessions: int
    answered: int
    failed: int
    cancelled: int
    redelivered: int
    policy: PolicyStatus


class Health(Wire):
    """The service answers. `backends` are its own workers: name -> null, or why it cannot work."""

    status: Literal["ok"] = "ok"
    backends: dict[str, str | None] = field(default_factory=dict[str, str | None])
