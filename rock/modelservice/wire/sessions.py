"""Sessions: what they are opened with, what they may use up, what became of them."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from rock.modelservice.wire.base import Count, Input, Seconds, Wire

CloseReason = Literal["finished", "revoked", "limit", "stale", "expired"]
LimitName = Literal["max_calls", "max_prompt_tokens", "max_completion_tokens", "max_wall_seconds"]


class SessionLimits(Input):
    """Bounds on one session; null is no bound.

    Those whose names are a `LimitName` end the session with reason `limit`: the agent is told that
    its context is used up, which makes it stop by itself.
    """

    max_calls: Count | None = None
    """Calls, repeated ones that re-attached not counted."""
    max_prompt_tokens: Count | None = None
    """Prompt tokens of all answers together, as their `usage` has them."""
    max_completion_tokens: Count | None = None
    """The same for completion tokens; what is left is also the most that one answer may have."""
    max_wall_seconds: Seconds | None = None
    """From the opening of the session on; calls that wait then end with the same error."""
    max_parked: Count | None = None
    """Calls waiting at the same time; one more is told to come back (429)."""
    call_deadline_seconds: Seconds | None = None
    session_deadline_seconds: Seconds | None = None
    """The session is closed as `expired` after this; its agent hears `session_closed`."""
    max_staleness: Count | None = None
    """Null takes the service's."""


class Pins(Input):
    """Sampling values that override whatever the agent asks for."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None


class SessionSpec(Input):
    labels: dict[str, str] = field(default_factory=dict[str, str])
    limits: SessionLimits = field(default_factory=SessionLimits)
    pins: Pins = field(default_factory=Pins)
    backend: str | None = None
    """Who answers: `queue` is any external trainer; another name is a worker of this service. Null takes
    the service's default."""
    tokenizer: str | None = None
    """Name of one of the service's `tokenizers`: an answer whose tokens do not spell its text is then
    untrainable, whichever worker gave it."""


class SessionCreated(Wire):
    session_id: str
    key: str
    base_url: str
    """For `OPENAI_BASE_URL`, with the key in the path."""
    attach_path: str | None = None
    """Where the host's harness lends listeners to this session (`attach`)."""


class SessionClose(Input):
    reason: CloseReason = "finished"


class SessionInfo(Wire):
    session_id: str
    state: Literal["open", "closed"]
    labels: dict[str, str]
    calls: int
    queued: int
    leased: int
    answered: int
    undelivered: int
    failed: int
    cancelled: int
    close_reason: str | None = None
    limit: LimitName | None = None
    """Which limit closed the session, if one did."""
    restarted: bool = False
    """ModelService was started again while the session was open: requests on their way to it were lost."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_call_age_seconds: float | None = None
