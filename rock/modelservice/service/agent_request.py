"""What an agent's request is to the service."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from rock.modelservice import wire


class AgentRequest(Struct, frozen=True, kw_only=True):
    """One request of an agent, parsed by its dialect."""

    dialect: str
    request: wire.CanonicalRequest
    body: bytes
    """The request as it was sent; not kept once `submit` has returned."""
    idempotency_key: str | None = None
    retry_count: int = 0
    """What the client says: 0 for a first try."""
    stream: bool = False
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    """The W3C trace headers that came with it."""
    kind: str | None = None
    """What the call is for if it is no step of the task (`auxiliary.classify`)."""
