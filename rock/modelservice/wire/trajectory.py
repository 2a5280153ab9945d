"""What a session exports: its calls for people and checks, its token rows for training."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from rock.modelservice.wire.base import Input, Version, Wire
from rock.modelservice.wire.messages import CanonicalRequest, Choice, PartKind, Usage
from rock.modelservice.wire.sessions import CloseReason, LimitName, Pins, SessionLimits

ChainClass = Literal["main", "subagent", "compaction", "auxiliary"]
"""Whose work a chain is: the agent's, a sub-agent's, the shortening of a history, another side job."""
TRAINED: tuple[ChainClass, ...] = ("main", "subagent")
"""The classes that training takes unless told otherwise."""


class Span(Input):
    """Tokens `start:end` of a row and what they are."""

    start: int
    end: int
    kind: Literal["prompt", "sampled"]
    call_id: str
    policy_version: Version | None = None
    message: int | None = None
    """Place of the message, where the worker told messages apart; that of an answer is the number of
    messages that it answers."""
    part: PartKind | None = None
    """What of the answer a sampled span spells, where the worker knew."""
    tool_calls: list[int] = field(default_factory=list[int])
    """The answer's tool calls that are written here."""


class TokenRow(Input):
    """One training sequence: a chain of calls, each sampled token owned by exactly one row.

    `mask` is 1 where this row owns a sampled token; `logprobs` is 0.0 where it does not apply
    (mask 0). All three lists have one entry per token id.
    """

    chain: str
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    spans: list[Span]
    chain_class: ChainClass = "main"
    branch: str | None = None
    """Why this chain is one of its own (docs/tokens.md lists the reasons); null for the first."""


class TrajectoryCall(Wire):
    """One call of a session, for people and for checks."""

    call_id: str
    state: str
    request: CanonicalRequest
    """As the worker got it: interceptors and the session's pins applied."""
    choices: list[Choice]
    original: CanonicalRequest | None = None
    """As the agent asked it, where interceptors edited it."""
    sampled: list[Choice] = field(default_factory=list[Choice])
    """What the worker had said, where interceptors put `choices` in its place."""
    edited_by: list[str] = field(default_factory=list[str])
    """The interceptors that edited or ended the call."""
    pinned: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values of `request` that a pin or a limit put in place of the agent's."""
    requested: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the agent had asked for in their place."""
    parent: str | None = None
    branch: str | None = None
    """Why this call does not continue the one before it; null if it does."""
    kind: str | None = None
    """What the call is for if it is no step of the task; null if it is one."""
    chain_class: ChainClass = "main"
    untrainable: str | None = None
    policy_version: Version | None = None
    usage: Usage | None = None
    deliveries: int = 1
    error: str | None = None
    error_code: str | None = None
    """The code of `rock.errors` that `error` came with."""
    cut_off: bool = False
    """A restart of the service ended the connection on which the agent waited for it."""
    left_after_seconds: float | None = None
    """How long after it asked the agent closed the connection without its answer; null if it did not, or
    a restart has forgotten it."""


class Trajectory(Wire):
    """What one session exports."""

    session_id: str
    labels: dict[str, str]
    calls: list[TrajectoryCall]
    rows: list[TokenRow]
    untrainable: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of calls that no row contains."""
    close_reason: CloseReason | None = None
    limit: LimitName | None = None
    """Which limit closed the session, if one did."""
    limits: SessionLimits | None = None
    pins: Pins | None = None
