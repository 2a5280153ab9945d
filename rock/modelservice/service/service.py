"""ModelService's use cases: ask, intercept, answer. Asynchronous, knows no HTTP.

Everything the two planes and the built-in workers do goes through `ModelService`. Three promises
hold for every method here: what it returns is on disk; it never waits without a bound; a caller
that is cancelled halfway leaves nothing behind that its later retry could not pick up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from msgspec import Raw
from msgspec.structs import replace

from rock.errors import (
    BadRequest,
    JournalError,
    QueueFull,
    SessionClosed,
)
from rock.modelservice import wire
from rock.modelservice.engine import limits
from rock.modelservice.engine.asked import Asked
from rock.modelservice.engine.book import Book
from rock.modelservice.engine.calls import Call, pins_set
from rock.modelservice.engine.conversation import Conversation
from rock.modelservice.engine.engine import Engine
from rock.modelservice.engine.spans import Seen
from rock.modelservice.graph.answer import Answer, AnswerChoice
from rock.modelservice.interceptors.interceptors import Edit
from rock.modelservice.journal import records
from rock.modelservice.service import export
from rock.modelservice.service.agent_request import AgentRequest
from rock.modelservice.service.intercepting import InterceptingSide, intercepted
from rock.modelservice.service.rollouts import RolloutSide
from rock.modelservice.service.trainer import TrainerSide
from rock.modelservice.service.underway import UnderwaySide
from rock.modelservice.service.upkeep import Upkeep
from rock.modelservice.sessions import Session, key_hash, new_id, new_key
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.sharding import id_prefix
from rock.modelservice.states import Event, State
from rock.modelservice.timers import epoch_seconds
from rock.modelservice.wire.pulse import PulseReply, PulseRequest
from rock.types import Clock, SessionId, SessionKey

__all__ = [
    "AgentRequest",
    "Answer",
    "AnswerChoice",
    "Call",
    "ModelService",
    "NewSession",
    "Seen",
    "ServiceConfig",
    "Session",
]

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
MAX_CHOICES = 128
_AS_ASKED = Edit()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session just opened. The key exists here and nowhere else: the journal keeps its hash."""

    session_id: SessionId
    key: SessionKey


class ModelService(TrainerSide, UnderwaySide, InterceptingSide, RolloutSide):
    """The service. Make it with `open`; one per state directory.

    Sessions, agents and export are here; what workers call is in `TrainerSide` and
    `UnderwaySide`, groups in `RolloutSide`.
    """

    def __init__(self, engine: Engine) -> None:
        TrainerSide.__init__(self, engine)
        UnderwaySide.__init__(self, engine)
        InterceptingSide.__init__(self, engine)
        RolloutSide.__init__(self, engine)
        self._upkeep = Upkeep(engine)

    @property
    def config(self) -> ServiceConfig:
        return self._engine.config

    @property
    def error(self) -> JournalError | None:
        """Why the service can do no more; None while all is well."""
        return self._engine.journal.error

    @property
    def connections(self) -> int:
        """Connections of agents that wait for an answer."""
        return self._engine.connections

    @staticmethod
    def open(
        config: ServiceConfig,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = epoch_seconds,
    ) -> AbstractAsyncContextManager[ModelService]:
        """Recover from the journal, serve, and on the way out flush and unlock it.

        `clock` counts while this process runs; `wall`, seconds since 1970, carries deadlines over a
        restart.
        Raises `JournalError` if the journal is locked, newer than this code, corrupt or unwritable.
        """
        return _Opened(config, clock, wall)

    def tick(self) -> None:
        """Do what is due now: expire leases, end calls and sessions. Runs by itself several times a
        second; tests that move the clock by hand call it."""
        self._engine.tick()
        self._upkeep.tick()

    async def compact(self) -> None:
        """Compact the journal now; it does so by itself when it has grown. Raises `JournalError`, and
        `OSError` if there is no room."""
        await self._upkeep.compact()

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self._engine.observer.metrics.text()

    def refused(self, code: str) -> None:
        """A request was refused on the agent plane."""
        self._engine.observer.metrics.refused[code].value += 1

    async def finish(self) -> None:
        """End a compaction that is going on. For `open`, on its way out."""
        await self._upkeep.close()

    async def keep_ticking(self) -> None:
        """`tick` until cancelled or until the journal fails. For `open`, which runs it."""
        with contextlib.suppress(JournalError):  # told to everybody by the journal itself
            lag, loop = self._engine.observer.metrics.lag, asyncio.get_running_loop()
            while True:
                due = loop.time() + TICK_SECONDS
                await asyncio.sleep(TICK_SECONDS)
                lag.observe(max(0.0, loop.time() - due))
                try:
                    self.tick()
                except JournalError:
                    raise
                except Exception:  # or no lease and no call would ever end again
                    log.exception("unexpected error in what is due; it goes on")

    # --- sessions ---

    async def create_session(self, spec: wire.SessionSpec) -> NewSession:
        if spec.tokenizer is not None:
            self.spelling.check_known(spec.tokenizer)
        key = new_key()
        backend = spec.backend or self.config.default_backend
        record = records.SessionOpened(
            session=new_id(id_prefix(self.config.shard)),
            key_sha256=key_hash(key),
            spec=replace(spec, backend=backend),
            at=self._engine.wall(),
        )
        await self._engine.open_session(record)
        return NewSession(session_id=SessionId(record.session), key=key)

    async def close_session(
        self, session_id: SessionId, reason: wire.CloseReason = "finished"
    ) -> wire.SessionInfo:
        """Revoke the session and cancel its open calls at once. Closing twice keeps the first
        reason. Raises `NotFound`."""
        if session_id not in self._engine.shelf:
            self._engine.close_session(self._book.sessions.get(session_id), reason)
            await self._engine.journal.barrier()
        return await self.read_session_info(session_id)

    def session(self, session_id: SessionId) -> Session:
        """Raises `NotFound`. A closed session is still found; `submit` refuses it."""
        return self._book.sessions.get(session_id)

    def session_info(self, session_id: SessionId) -> wire.SessionInfo:
        """Raises `NotFound`. `answered` counts delivered answers too. Blocks for a session that has to
        be read from the disk; `read_session_info` does not."""
        return self._info(self._upkeep.book_of(session_id), session_id)

    async def read_session_info(self, session_id: SessionId) -> wire.SessionInfo:
        """`session_info`, wherever the session is."""
        return self._info(await self._upkeep.book_later(session_id), session_id)

    def _info(self, book: Book, session_id: SessionId) -> wire.SessionInfo:
        session = book.sessions.get(session_id)
        age = None
        if book is self._book and session.last_call_at is not None:
            age = self._engine.clock() - session.last_call_at
        return export.session_info(session, age)

    async def pulse(self, request: PulseRequest) -> PulseReply:
        """What a harness asks about once a second."""
        return self.pulse_of(request, await self.policy())

    def authenticate(self, key: str) -> Session:
        """The session a key opens, closed or not. Raises `Unauthorized`."""
        return self._book.sessions.with_key(key)

    def on_session_closed(self, callback: Callable[[SessionId], None]) -> None:
        """Call `callback` whenever a session closes, for whatever reason."""
        self._engine.on_session_closed.append(callback)

    def on_journal_failed(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the service can do no more; `error` says why."""
        self._engine.on_journal_failed.append(callback)

    # --- agent side ---

    def known_prompt_tokens(self, session: Session, request: wire.CanonicalRequest) -> int | None:
        """What an engine counted for the messages and tools of `request`, if this session asked the same
        before. Raises `BadRequest`."""
        if session.id in self._engine.shelf:
            return None
        return self._book.conversation(session.id).counted(request)

    async def submit(self, session: Session, incoming: AgentRequest, *, wait: bool = True) -> Call:
        """`ask`, with the interceptors of the session; returns once on disk, or with `wait` unset as
        soon as `ask` does.

        If it is cancelled, the service counts that as the agent leaving.
        """
        edit = await self._intercepted(session, incoming) if self.intercepts(session) else _AS_ASKED
        call = self.ask(session, incoming, edit)
        try:
            if wait:
                await self._engine.journal.barrier()
        except asyncio.CancelledError:
            self.agent_left(call)
            raise
        return call

    def intercepts(self, session: Session) -> bool:
        """Whether requests of the session have to go through `submit`."""
        return bool(self._engine.interceptors.matching("request", session.spec.labels))

    def ask(self, session: Session, incoming: AgentRequest, edit: Edit = _AS_ASKED) -> Call:
        """Queue a request, or re-attach a retry to the call it repeats. It is on its way to the disk:
        enough for who will say nothing to the agent before the answer, which cannot come before.

        Every `ask` that returns is followed by exactly one of `sent` or `agent_left`, unless the call
        ended without an answer. Raises `SessionClosed`, `QueueFull`, `ContextLengthExceeded` (a limit
        of the session), `BadRequest`, `JournalError`.
        """
        if session.close_reason is not None and (
            session.close_reason != "limit" or session.id in self._engine.shelf
        ):
            _check_open(session)
        request = incoming.request
        _check_request(request)
        if incoming.idempotency_key is not None or incoming.kind is not None:
            _check_text(incoming)
        conversation = self._book.conversation(session.id)
        asked = conversation.look_up(incoming.dialect, request)
        call = conversation.find_retried(asked, incoming.idempotency_key, incoming.retry_count)
        if call is not None:
            self._admit_connection()
            self._engine.attach(call)
        else:
            if session.close_reason is not None:
                _check_open(session)
            self._admit(session)
            call = self._new_call(session, conversation, incoming, asked, edit)
        call.streams = call.streams or incoming.stream
        return call

    async def bind(self, call: Call) -> None:
        """A connection is about to be sent of the call's visible spans; returns once it may be. From now
        on, also after a restart, the answer must begin with all that was said. Raises `JournalError`.
        """
        self._engine.bind(call)
        await self._engine.journal.barrier()  # another connection may have bound it just now

    def sent(self, call: Call) -> None:
        """The whole answer was written to a connection of the call."""
        try:  # noqa: SIM105 - `suppress` costs as much as what it guards, once per turn
            self._engine.detach(call, sent=True)
        except JournalError:
            pass  # told to everybody by the journal itself

    def agent_left(self, call: Call) -> None:
        """A connection of the call closed before the answer was written to it."""
        with contextlib.suppress(JournalError):
            self._engine.detach(call, sent=False)

    def _admit(self, session: Session) -> None:
        """Raises what says that one more call is too many."""
        reached = limits.used_up(session)
        if reached is not None:
            # Calls in flight go on; the session takes no more.
            self._engine.close_session(session, "limit", cancel=False, limit=reached)
            raise limits.refusal(session)
        most = session.spec.limits.max_parked
        if most is not None and session.parked >= most:
            raise QueueFull(f"this session has {session.parked} calls waiting, its limit")
        totals = session.totals
        self._admit_connection()
        queued = totals[State.QUEUED]
        self._queue.admit(coming=queued - self._queue.queued)
        parked = queued + totals[State.LEASED]
        if parked >= self._engine.config.max_parked:
            raise QueueFull(f"{parked} calls wait for an answer already")

    def _admit_connection(self) -> None:
        waiting = self._engine.connections
        if waiting >= self._engine.config.max_parked:
            raise QueueFull(f"{waiting} connections wait for an answer already")

    async def _intercepted(self, session: Session, incoming: AgentRequest) -> Edit:
        """What the interceptors make of a request that repeats none."""
        if session.id in self._engine.shelf:
            return _AS_ASKED  # refused by `ask`
        conversation = self._book.conversation(session.id)
        _check_request(incoming.request)
        asked = conversation.look_up(incoming.dialect, incoming.request)
        key, retries = incoming.idempotency_key, incoming.retry_count
        if conversation.find_retried(asked, key, retries) is not None:
            return _AS_ASKED
        _check_open(session)
        self._admit(session)
        return await intercepted(
            self._engine, session, incoming.request, dialect=incoming.dialect, kind=incoming.kind
        )

    def _new_call(
        self,
        session: Session,
        conversation: Conversation,
        incoming: AgentRequest,
        asked: Asked,
        edit: Edit,
    ) -> Call:
        self._engine.journal.check()
        effective = None
        if edit.request is not None:
            effective = conversation.look_up(incoming.dialect, edit.request)
        original = conversation.graph.extend(asked.located)
        extension, edited = original, None
        if effective is not None:
            extension = conversation.graph.extend(effective.located)
            edited = records.Edited(
                base=extension.base,
                path=extension.path,
                blobs=list(map(Raw, extension.blobs)),
                request=Raw(effective.parameters),
                tools=extension.tools,
            )
        pins = _overrides(session, edit.request or incoming.request)
        record = records.CallQueued(
            call=self._book.next_call_id(session),
            dialect=incoming.dialect,
            base=original.base,
            path=original.path,
            blobs=list(map(Raw, original.blobs)),
            request=Raw(asked.parameters),
            tools=original.tools,
            edited=edited,
            edited_by=edit.by,
            refused=None
            if edit.error is None
            else records.Refused(edit.error.code, edit.error.message),
            pinned=Raw(records.encoder.encode(pins)) if pins else None,
            idempotency_key=incoming.idempotency_key,
            kind=incoming.kind,
            at=self._engine.wall(),
        )
        call = self._engine.add_call(
            session,
            record,
            extension,
            incoming.trace,
            asked=None if edited is None else original,
        )
        if edit.error is not None:
            self._engine.end(call, Event.FAIL, edit.error)
        return call

    # --- export ---

    def trajectory(self, session_id: SessionId) -> wire.Trajectory:
        """Every call of a session and the token rows they make. Raises `NotFound`. Blocks for a session
        that has to be read from the disk; `read_trajectory` does not."""
        return export.trajectory(self._upkeep.book_of(session_id), session_id)

    async def read_trajectory(self, session_id: SessionId) -> wire.Trajectory:
        """`trajectory`, wherever the session is."""
        book = await self._upkeep.book_later(session_id)
        return await export.trajectory_later(book, session_id)

    def exported_call(self, session_id: SessionId, call_id: str) -> wire.TrajectoryCall:
        """One call of a session, as in its trajectory. Raises `NotFound`."""
        return export.one_call(self._upkeep.book_of(session_id), session_id, call_id)


class _Opened:
    """A service from its journal's recovery to its unlocking. A class: what is compiled has no
    asynchronous generators."""

    def __init__(self, config: ServiceConfig, clock: Clock, wall: Clock) -> None:
        self._config = config
        self._clock = clock
        self._wall = wall
        self._engine: Engine | None = None
        self._service: ModelService | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ModelService:
        engine = self._engine = Engine(self._config, self._clock, self._wall)
        try:
            await engine.start()
            service = self._service = ModelService(engine)
            self._ticker = asyncio.create_task(service.keep_ticking())
        except BaseException:
            await self.__aexit__()
            raise
        return service

    async def __aexit__(self, *exc: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        assert self._engine is not None
        self._engine.stop()
        closing = asyncio.ensure_future(self._close(self._engine))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def _close(self, engine: Engine) -> None:
        if self._service is not None:
            await self._service.finish()
        await engine.journal.close()


def _check_open(session: Session) -> None:
    if session.close_reason == "limit":
        raise limits.refusal(session)
    if session.close_reason is not None:
        raise SessionClosed(f"this session is closed: {session.close_reason}")


def _overrides(session: Session, request: wire.CanonicalRequest) -> dict[str, object]:
    """What the session's pins and budget put in place of the agent's values."""
    pins = pins_set(session.spec.pins)
    room = limits.completion_room(session, request.n)
    if room is not None:
        asked = session.spec.pins.max_tokens or request.max_tokens
        if asked is None or asked > room:
            pins["max_tokens"] = room
    return pins


def _check_text(incoming: AgentRequest) -> None:
    """What becomes part of a record besides the body: the graph is changed before that is written."""
    for name, text in (("Idempotency-Key", incoming.idempotency_key), ("kind", incoming.kind)):
        if text is not None and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as exc:
                raise BadRequest(f"{name}: not valid Unicode", param=name) from exc


def _check_request(request: wire.CanonicalRequest) -> None:
    if not request.messages:
        raise BadRequest("messages: expected at least one", param="messages")
    if not 1 <= request.n <= MAX_CHOICES:
        raise BadRequest(f"n: expected 1 to {MAX_CHOICES}, got {request.n}", param="n")
