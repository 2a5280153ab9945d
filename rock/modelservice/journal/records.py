"""What the journal says: one struct per kind of record, tagged by `t` in its JSON.

Records are facts in the order they happened; applying them in that order to an empty `calls.Book`
rebuilds every session and call. Bytes fields are base64 in the JSON.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from rock.errors import BadRequest
from rock.modelservice.graph.answer import AnswerChoice
from rock.modelservice.states import Event, State
from rock.modelservice.wire import (
    CloseReason,
    LimitName,
    MessageTokens,
    OptionalRaw,
    SessionSpec,
    Usage,
)
from rock.modelservice.wire.interceptors import Interceptor
from rock.modelservice.wire.partial import ToolCallDelta

SCHEMA = 5
"""Version of these shapes, in the journal's header. A journal with a higher one is refused."""


class _Record(Struct, omit_defaults=True, tag_field="t"):
    pass


class Booted(_Record, tag="booted"):
    """A process took the journal over; leases of earlier runs are over."""

    run: int


class SessionOpened(_Record, tag="session_opened"):
    session: str
    key_sha256: bytes
    spec: SessionSpec
    at: float | None = None
    """Seconds since 1970, in this and other records; unknown in those of schema 1."""


class SessionEnded(_Record, tag="session_closed"):
    session: str
    reason: CloseReason
    limit: LimitName | None = None
    at: float | None = None


class SessionArchived(_Record, tag="session_archived"):
    """Compaction put the records of a closed session into an archive; this is what is left of it."""

    session: str
    key_sha256: bytes
    reason: CloseReason
    archive: int
    """Number of the archive's file."""
    offset: int
    """Bytes from the file's beginning to its first record."""
    length: int
    """Bytes of all of its records."""
    limit: LimitName | None = None
    bound: float | None = None
    at: float | None = None
    """When it was closed."""
    counts: dict[State, int] = {}
    """Its calls by the state they ended in; unknown in markers of before there was this."""


class Refused(Struct, omit_defaults=True):
    """The error that an interceptor ended a request with."""

    code: str
    message: str


class Edited(Struct, omit_defaults=True):
    """The request that interceptors made of the one that was asked; fields as in `CallQueued`."""

    base: int
    path: list[int]
    blobs: list[Raw]
    request: Raw
    tools: int | None = None


class CallQueued(_Record, tag="queued"):
    """A request, with what is new in it. `graph.Extension` explains the numbers."""

    call: str
    dialect: str
    base: int
    path: list[int]
    blobs: list[Raw]
    request: Raw
    """The canonical request as asked, without messages and tools."""
    tools: int | None = None
    pinned: OptionalRaw = None
    """The values that the session's pins put in place of the agent's."""
    edited: Edited | None = None
    edited_by: tuple[str, ...] = ()
    """The interceptors that edited or ended it."""
    refused: Refused | None = None
    """Why it is not to be answered. A `failed` record follows, unless a kill came between the two."""
    idempotency_key: str | None = None
    kind: str | None = None
    at: float | None = None


class CallLeased(_Record, tag="leased"):
    call: str
    lease: str
    worker: str


class CallPartial(_Record, tag="partial"):
    """One span of an answer that is still being sampled; bytes are packed as in an answer."""

    call: str
    lease: str
    index: int
    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    """Each new one has its id."""
    ids: bytes | None = None
    logprobs: bytes | None = None
    policy_version: int | None = None
    prompt_ids: bytes | None = None
    """The whole prompt, with the first span if the worker gave it."""


class SpansRead(_Record, tag="spans_read"):
    """A connection is about to be sent of the call's spans: the answer must begin with them all."""

    call: str


class SpansDropped(_Record, tag="spans_dropped"):
    """No agent had read the call's spans, and the next worker could not go on from them."""

    call: str


class CallAnswered(_Record, tag="answered"):
    call: str
    lease: str
    fingerprint: bytes
    """Of the completion as the worker sent it: the same one again is no conflict."""
    choices: tuple[AnswerChoice, ...]
    prompt_ids: bytes | None = None
    """Packed ids: the whole prompt, or with `continues` what follows the parent's sequence."""
    prompt_parts: tuple[MessageTokens, ...] | None = None
    """Which of the last of them are which message, if the worker knew."""
    continues: bool = False
    kept: int | None = None
    """How many tokens of the parent's sequence come before `prompt_ids`, if not all of it."""
    policy_version: int | None = None
    usage: Usage | None = None
    untrainable: str | None = None
    sampled: tuple[AnswerChoice, ...] | None = None
    """What the worker had said, where interceptors put `choices` in its place."""
    edited_by: tuple[str, ...] = ()


class CallMoved(_Record, tag="moved"):
    """`sent`, `agent_left`, `collect`, `grace_over` or `close` happened to a call."""

    call: str
    event: Event


class CallFailedRecord(_Record, tag="failed"):
    """`fail` or `deadline` happened to a call."""

    call: str
    event: Event
    code: str
    message: str


class InterceptorSet(_Record, tag="interceptor_set"):
    name: str
    spec: Interceptor


class InterceptorRemoved(_Record, tag="interceptor_removed"):
    name: str


class PolicyChanged(_Record, tag="policy"):
    version: int | None
    state: Literal["running", "paused"]


class GroupPublished(_Record, tag="group_published"):
    group_id: str
    group: Raw


class GroupLeased(_Record, tag="group_leased"):
    """A group was handed to a trainer; an earlier lease on it is over."""

    group_id: str
    lease_id: str
    delivery: int


class GroupAcknowledged(_Record, tag="group_acknowledged"):
    group_id: str
    step: int | None = None
    lease_id: str | None = None
    """Under which it was acknowledged, so that saying it again after a restart is no conflict."""


OfCall = (
    CallLeased
    | CallPartial
    | SpansRead
    | SpansDropped
    | CallAnswered
    | CallMoved
    | CallFailedRecord
)
"""What happened to a call that is known."""

OfGroup = GroupPublished | GroupLeased | GroupAcknowledged

Record = (
    Booted
    | SessionOpened
    | SessionEnded
    | SessionArchived
    | CallQueued
    | OfCall
    | InterceptorSet
    | InterceptorRemoved
    | PolicyChanged
    | OfGroup
)


_ABOUT_CALLS = (
    CallQueued,
    CallLeased,
    CallPartial,
    SpansRead,
    SpansDropped,
    CallAnswered,
    CallMoved,
    CallFailedRecord,
)


def session_of(record: Record) -> str | None:
    """The session that a record is about; None for one about the whole service."""
    if isinstance(record, _ABOUT_CALLS):  # nearly all are
        return record.call.rpartition(".")[0]
    match record:
        case SessionOpened() | SessionEnded() | SessionArchived():
            return record.session
        case Booted() | PolicyChanged() | GroupPublished() | GroupLeased() | GroupAcknowledged():
            return None
        case InterceptorSet() | InterceptorRemoved():
            return None


decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
encoder = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """A record as the journal keeps it. Raises `BadRequest` for text that is not Unicode (a lone
    surrogate, which no JSON can hold); whoever changes something encodes first."""
    try:
        return encoder.encode(record)
    except UnicodeEncodeError as exc:
        raise BadRequest(f"text that is not valid Unicode: {exc.reason}") from exc
