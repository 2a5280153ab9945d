"""One call: who waits for it, what it asks, how it ended.

`book.Book` holds them all and says what the journal's records do to them. Nothing in here does I/O;
a waiting agent is a callback in its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from rock.errors import (
    BadRequest,
    CallFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    Forbidden,
    ModelServiceError,
    QueueFull,
    RockError,
    ServiceUnavailable,
    SessionClosed,
    UpstreamError,
    UpstreamUnauthorized,
)
from rock.modelservice.engine.asked import Identity, Original, head_of
from rock.modelservice.engine.queue import TRAINER_BACKEND, Ticket
from rock.modelservice.engine.spans import Said, Seen
from rock.modelservice.graph.answer import Answer, Delta
from rock.modelservice.graph.rows import CallTokens
from rock.modelservice.journal import records
from rock.modelservice.sessions import Session
from rock.modelservice.states import Event, next_state
from rock.modelservice.wire import CanonicalRequest, ChainClass, Pins
from rock.types import CallId, WorkerId

_FAILURES: dict[str, type[RockError]] = {
    kind.code: kind
    for kind in (
        BadRequest,
        ContextLengthExceeded,
        DeadlineExceeded,
        Forbidden,
        ModelServiceError,
        QueueFull,
        ServiceUnavailable,
        SessionClosed,
        UpstreamError,
        UpstreamUnauthorized,
    )
}


def failure(code: str, message: str) -> RockError:
    """The error an agent gets for a call that ended with `code`."""
    return _FAILURES.get(code, CallFailed)(message)


class Call(Ticket):
    """One request for a completion. Several connections can wait for the same call.

    Holds no decoded request and no task: parameters as JSON, messages as a place in the session's
    graph, and one callback per waiting connection.
    """

    __slots__ = (
        "_waiters",
        "answered_by",
        "answered_lease",
        "asked_at",
        "attached",
        "branch",
        "chain_class",
        "covers",
        "cut_off",
        "dialect",
        "earlier_at_leaf",
        "edited_by",
        "fingerprint",
        "idempotency_key",
        "identity",
        "kind",
        "leaf",
        "left_after",
        "number",
        "original",
        "outcome",
        "parent",
        "parent_choice",
        "pinned",
        "request",
        "said",
        "session",
        "shown",
        "stored",
        "streams",
        "tokens",
        "tools",
        "visible",
    )

    def __init__(self, id: CallId, session: Session, *, number: int, record: records.CallQueued):
        super().__init__(
            id,
            session.id,
            backend=session.spec.backend or TRAINER_BACKEND,
            session_arrival=session.arrival,
            priority=session.priority,
        )
        self.session = session
        self.number = number
        """Place in the session, from 0."""
        self.dialect = record.dialect
        self.idempotency_key = record.idempotency_key
        self.kind = record.kind
        self.pinned = record.pinned
        self.request, self.tools = _effective(record)
        """The effective canonical request as JSON, without messages and tools."""
        self.original: Original | None = None
        """What was asked, where interceptors put something else in its place."""
        self.edited_by = record.edited_by
        self.identity: Identity | None = None
        self.earlier_at_leaf: Call | None = None
        """The last call before this one that asked the same messages."""
        self.parent: Call | None = None
        self.leaf = self.parent_choice = self.covers = 0
        self.branch: str | None = None
        self.chain_class: ChainClass = "main"
        self.asked_at = 0.0
        """On the service's clock; its deadline counts from here."""
        # How many seconds after it was asked the last connection that waited for it was closed from the
        # other side; None while one waits, if the reply was written, and after a restart.
        self.left_after: float | None = None
        # What workers have said while the call was open.
        self.said: Said | None = None
        self.visible = self.attached = 0
        """How many spans of that are on disk, so that agents may see them; connections that wait for this call."""
        self.shown = self.streams = self.cut_off = False
        """A connection has read of it, in this run or an earlier one: the answer must begin with it. A
        connection would read it as it comes; unknown after a restart. A restart of the service ended the
        connection that waited for it."""
        self.stored: Answer | RockError | None = None
        """How the call ended; visible to agents once it is on disk, as `outcome`."""
        self.outcome: Answer | RockError | None = None
        self.answered_lease: str | None = None
        self.answered_by: WorkerId | None = None
        """Which worker has this call's messages and tokens; None if a restart forgot it."""
        self.fingerprint: bytes | None = None
        self.tokens: CallTokens | None = None
        self._waiters: list[Callable[[], None]] | None = None
        session.count(None, self.state)

    @property
    def model(self) -> str:
        """The model name in effect: a pin, or what the agent asked for."""
        return head_of(self.request).model

    @property
    def wanted(self) -> int:
        """How many choices the request asks for."""
        return head_of(self.request).n

    def move(self, event: Event) -> None:
        before = self.state
        self.state = next_state(before, event)
        self.session.count(before, self.state)

    async def answer(self) -> Answer:
        """The answer, once it is on disk.

        Raises the `RockError` that ended the call: `DeadlineExceeded`, `CallFailed`,
        `ContextLengthExceeded`, `SessionClosed`, … Bounded by the call's deadline.
        """
        while self.outcome is None:
            await self._woken_before(None)
        if isinstance(self.outcome, Answer):
            return self.outcome
        assert self.outcome is not None
        raise self.outcome.again()

    async def news_within(self, seconds: float, seen: Seen) -> bool:
        """Wait at most `seconds` for the call to end, or to have visible spans that are not `seen`."""
        end = asyncio.get_running_loop().time() + seconds
        while not self._has_news(seen) and await self._woken_before(end):
            pass
        return self._has_news(seen)

    def _has_news(self, seen: Seen) -> bool:
        return self.outcome is not None or self.visible > seen.of(self.said)

    def spans_after(self, seen: Seen) -> list[Delta]:
        """What the visible spans said that were not `seen`; now they are."""
        count = seen.of(self.said)
        seen.move(self.said, self.visible)
        return [] if self.said is None else self.said.since(count, self.visible)

    def reveal(self, said: Said, count: int) -> None:
        """The first `count` spans of `said` are on disk. It may have been dropped on its way there."""
        if said is self.said:
            self.visible = max(self.visible, min(count, len(said)))
            self._wake()

    def forget_spans(self) -> None:
        """The answer has come and says it all, or the spans are void."""
        self.said = None
        self.visible = 0

    def publish(self, outcome: Answer | RockError) -> None:
        """Show the outcome to whoever waits and whoever will ask."""
        self.outcome = outcome
        self._wake()

    def on_news(self, wake: Callable[[], None]) -> None:
        """Call `wake`, which must not raise, once: when the call ends, or has more visible spans."""
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(wake)

    def forget(self, wake: Callable[[], None]) -> None:
        """Do not call it any more; one that was called is fine."""
        if self._waiters is not None and wake in self._waiters:
            self._waiters.remove(wake)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, None
        for wake in waiters or ():
            wake()

    async def _woken_before(self, end: float | None) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        left = None if end is None else max(0.0, end - loop.time())
        self.on_news(wake)
        try:
            done, _ = await asyncio.wait((waiter,), timeout=left)
        finally:
            self.forget(wake)
        return bool(done)


def _effective(record: records.CallQueued) -> tuple[bytes, int | None]:
    """(parameters as JSON, number of the tools list)"""
    said = record.edited or record
    request = bytes(said.request)
    return request if record.pinned is None else _with_pins(request, record.pinned), said.tools


def _with_pins(request: bytes, pinned: Raw) -> bytes:
    pins = msgspec.json.decode(pinned, type=Pins)
    effective = replace(msgspec.json.decode(request, type=CanonicalRequest), **pins_set(pins))
    return records.encoder.encode(effective)


_NO_PINS = Pins()


def pins_set(pins: Pins) -> dict[str, object]:
    """The pins that are not null, by field."""
    if pins == _NO_PINS:
        return {}
    return {
        name: value for name in pins.__struct_fields__ if (value := getattr(pins, name)) is not None
    }
