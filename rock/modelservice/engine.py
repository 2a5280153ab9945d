"""What happens to calls and sessions, each step with its record: the part of the service that
never waits for anybody.

Every change is made in memory and written in one go; `then` callbacks show it to the outside once
it is on disk: a call can be claimed, an answer can be seen. `recover` replays the journal.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

import msgspec

from rock.errors import (
    CallFailed,
    DeadlineExceeded,
    JournalError,
    RockError,
    ServiceUnavailable,
    SessionClosed,
)
from rock.modelservice import records
from rock.modelservice.answer import Answer
from rock.modelservice.bell import Bell
from rock.modelservice.calls import Book, Call
from rock.modelservice.graph import Extension
from rock.modelservice.journal import Journal, Then
from rock.modelservice.outbox import Outbox
from rock.modelservice.queue import CallQueue, Held, Ticket
from rock.modelservice.sessions import Session
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.states import OPEN, Event, State
from rock.modelservice.timers import Timers
from rock.modelservice.wire import CloseReason
from rock.types import CallId, Clock, SessionId

TRAINER_BACKEND = "queue"


class Engine:
    """Book, queue, outbox and journal, moved together."""

    def __init__(self, config: ServiceConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.book = Book()
        self.bells: defaultdict[str, Bell] = defaultdict(Bell)
        """By backend: rung when a call of it can be claimed."""
        self.group_bell = Bell()
        self.drained = Bell()
        self.redelivered = 0
        self.stopping = False
        """Nothing more is handed out."""
        self.on_session_closed: list[Callable[[SessionId], None]] = []
        self._deadlines = Timers()
        self._graces = Timers()
        self._session_ends = Timers()
        self._groups: list[records.GroupPublished | records.GroupAcknowledged] = []
        self.journal = Journal.open(
            config.state_dir,
            schema=records.SCHEMA,
            on_record=self._replay,
            sync=config.sync,
        )
        self.journal.on_failure = self._journal_failed
        boot = f"{self.book.runs + 1}-"
        self.outbox = Outbox(boot=boot)
        self.queue = CallQueue(
            boot=boot,
            order=config.order,
            max_queued=config.max_queued,
            max_deliveries=config.max_deliveries,
        )

    # --- start and end ---

    async def start(self) -> None:
        """Take the journal over: leases of earlier runs are over, connections are gone."""
        self._recover_groups()
        await self.write(records.Booted(run=self.book.runs + 1))
        now = self.clock()
        for session in self.book.sessions:
            if session.open:
                self._time_session(session, now)
        for call in self.book.calls.values():
            call.cut_off = call.state in (State.QUEUED, State.LEASED, State.ANSWERED)
            if call.state is State.LEASED:
                call.move(Event.RELEASE)
            if call.state is State.QUEUED:
                self._time_call(call, now)
                self._graces.set(call.id, now + self.config.restart_grace_seconds)
                self.queue.add(call)
            else:
                self._show(call)

    def stop(self) -> None:
        """Wake everybody: long-polls find nothing, agents get `ServiceUnavailable`."""
        self.stopping = True
        self._end_all(ServiceUnavailable("the service is stopping; try again shortly"))
        for bell in (*self.bells.values(), self.group_bell, self.drained):
            bell.ring_all()

    # --- records ---

    def write(self, record: records.Record, then: Then | None = None) -> asyncio.Future[None]:
        return self.journal.append(records.encoder.encode(record), then)

    def note(self, record: records.Record, then: Then | None = None) -> None:
        """Write a record that nobody waits for."""
        self.journal.note(records.encoder.encode(record), then)

    # --- sessions ---

    def open_session(self, record: records.SessionOpened) -> asyncio.Future[None]:
        now = self.clock()
        session = self.book.open_session(record, now)
        self._time_session(session, now)
        return self.write(record)

    def close_session(self, session: Session, reason: CloseReason, *, cancel: bool = True) -> None:
        """Close and, with `cancel`, end the session's open calls. The first reason stands."""
        if session.open:
            self.book.sessions.close(session, reason)
            self._session_ends.drop(session.id)
            record = records.SessionEnded(session=session.id, reason=reason)
            self.note(record, lambda: self._tell_closed(session.id))
        if cancel and session.parked:
            for call in self.book.conversation(session.id).calls:
                if call.state in OPEN:
                    self.end(call, Event.CLOSE, SessionClosed(f"the session was closed: {reason}"))

    # --- calls ---

    def add_call(
        self, session: Session, record: records.CallQueued, extension: Extension
    ) -> tuple[Call, asyncio.Future[None]]:
        """Book a new call with one connection; it can be claimed once the future is done."""
        now = self.clock()
        call = self.book.add_call(session, record, extension, now)
        call.attached = 1
        self._time_call(call, now)
        return call, self.write(record, lambda: self._let_claim(call))

    def attach(self, call: Call) -> None:
        """One more connection waits for the call."""
        call.attached += 1
        self._graces.drop(call.id)
        if call.state in (State.UNDELIVERED, State.DELIVERED):
            self._move(call, Event.COLLECT)

    def detach(self, call: Call, *, sent: bool) -> None:
        """A connection of the call ended, with or without the answer written to it."""
        call.attached = max(0, call.attached - 1)
        if call.outcome is not None and call.state is State.ANSWERED:
            if sent:
                self._move(call, Event.SENT)
            elif call.attached == 0:
                self._move(call, Event.AGENT_LEFT)
        elif call.state in OPEN and call.attached == 0:
            self._graces.set(call.id, self.clock() + self.config.cancel_grace_seconds)

    def lease_record(self, held: Held) -> None:
        call = self.book.calls[held.ticket.id]
        if call.deliveries > 1:
            self.redelivered += 1
        self.note(records.CallLeased(call=call.id, lease=held.id, worker=held.worker_id))

    def complete(self, call: Call, record: records.CallAnswered) -> None:
        """Store an answer; agents see it once it is on disk."""
        payload = records.encoder.encode(record)  # before any change: it may not be encodable
        self._take_out(call, Event.COMPLETE)
        self.book.store_answer(call, record)
        self.journal.note(payload, lambda: self._show(call))

    def end(self, call: Call, event: Event, error: RockError) -> None:
        """End an open call without an answer."""
        self._take_out(call, event)
        call.stored = error
        if event in (Event.FAIL, Event.DEADLINE):
            record = records.CallFailedRecord(
                call=call.id, event=event, code=error.code, message=error.message
            )
        else:
            record = records.CallMoved(call=call.id, event=event)
        self.note(record, lambda: self._show(call))

    def give_back(self, held: Held) -> None:
        self.queue.release(held.id)
        self._returned(held.ticket)

    # --- time ---

    def tick(self) -> None:
        """Do what is due."""
        now = self.clock()
        again, exhausted = self.queue.expire(now)
        for ticket in again:
            self._returned(ticket)
        for ticket in exhausted:
            message = f"{ticket.lost} workers took this call and let it go unanswered"
            self.end(self.book.calls[ticket.id], Event.FAIL, CallFailed(message))
        for _ in range(self.outbox.expire(now)):
            self.group_bell.ring()
        for name in self._deadlines.due(now):
            message = "no worker answered this call before its deadline"
            self.end(self.book.calls[CallId(name)], Event.DEADLINE, DeadlineExceeded(message))
        for name in self._graces.due(now):
            message = "the agent left and did not come back"
            self.end(self.book.calls[CallId(name)], Event.GRACE_OVER, CallFailed(message))
        for name in self._session_ends.due(now):
            self.close_session(self.book.sessions.get(name), "expired")

    # --- inside ---

    def _replay(self, payload: bytes) -> None:
        try:
            record = records.decoder.decode(payload)
            if isinstance(record, records.GroupPublished | records.GroupAcknowledged):
                self._groups.append(record)
            else:
                self.book.apply(record, self.clock())
        except (msgspec.DecodeError, RecursionError, RockError, LookupError) as exc:
            raise JournalError(
                f"the journal in {self.config.state_dir} says what cannot have happened: {exc}"
            ) from exc

    def _recover_groups(self) -> None:
        for record in self._groups:
            if isinstance(record, records.GroupPublished):
                self.outbox.publish(record.group_id, bytes(record.group))
                self.outbox.offer(record.group_id)
            else:
                self.outbox.acknowledge(record.group_id)
        self._groups.clear()

    def _tell_closed(self, session_id: SessionId) -> None:
        for callback in self.on_session_closed:
            # Not from here: what a listener raises must not reach the journal's other waiters.
            asyncio.get_running_loop().call_soon(callback, session_id)

    def _time_session(self, session: Session, now: float) -> None:
        seconds = session.spec.limits.session_deadline_seconds
        if seconds is not None:
            self._session_ends.set(session.id, now + seconds)

    def _time_call(self, call: Call, now: float) -> None:
        seconds = call.session.spec.limits.call_deadline_seconds
        if seconds is None:
            seconds = self.config.call_deadline_seconds
        self._deadlines.set(call.id, now + seconds)

    def _let_claim(self, call: Call) -> None:
        if call.state is State.QUEUED:  # it may have been closed on its way to the disk
            self.queue.add(call)
            self.bells[call.backend].ring()

    def _returned(self, ticket: Ticket) -> None:
        self.bells[ticket.backend].ring()
        self._check_drained(ticket.backend)

    def _take_out(self, call: Call, event: Event) -> None:
        self.queue.end(call, event)
        self._deadlines.drop(call.id)
        self._graces.drop(call.id)
        self._check_drained(call.backend)

    def _check_drained(self, backend: str) -> None:
        if backend == TRAINER_BACKEND and self.queue.leased == 0:
            self.drained.ring_all()

    def _move(self, call: Call, event: Event) -> None:
        call.move(event)
        self.note(records.CallMoved(call=call.id, event=event))

    def _show(self, call: Call) -> None:
        """The call's end is on disk: let the agents see it."""
        stored = call.stored
        if stored is None:
            return
        call.publish(stored)
        if isinstance(stored, Answer) and call.state is State.ANSWERED and call.attached == 0:
            self._move(call, Event.AGENT_LEFT)

    def _journal_failed(self, error: JournalError) -> None:
        self.stopping = True
        self._end_all(error)

    def _end_all(self, error: RockError) -> None:
        for call in self.book.calls.values():
            if call.outcome is None:
                call.publish(error)
