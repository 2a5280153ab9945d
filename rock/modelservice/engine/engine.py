"""What happens to calls and sessions, each step with its record: the part of the service that
never waits for anybody.

Every change is made in memory and written in one go; `then` callbacks show it to the outside once
it is on disk: a call can be claimed, an answer can be seen. `recovery` reads the journal.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial

from rock.errors import (
    CallFailed,
    DeadlineExceeded,
    JournalError,
    RockError,
    ServiceUnavailable,
    SessionClosed,
)
from rock.modelservice.engine import limits
from rock.modelservice.engine.bell import Bell
from rock.modelservice.engine.book import Book
from rock.modelservice.engine.calls import Call
from rock.modelservice.engine.notices import Notices
from rock.modelservice.engine.observer import Observer
from rock.modelservice.engine.outbox import Outbox
from rock.modelservice.engine.queue import TRAINER_BACKEND, CallQueue, Held, Ticket
from rock.modelservice.engine.recovery import Recovery
from rock.modelservice.graph.answer import Answer
from rock.modelservice.graph.places import Extension
from rock.modelservice.interceptors.hooks import Hooks
from rock.modelservice.interceptors.interceptors import Interceptors
from rock.modelservice.journal import records
from rock.modelservice.journal.journal import Journal, Then
from rock.modelservice.journal.shelf import Shelf
from rock.modelservice.sessions import Session
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.states import OPEN, Event, State
from rock.modelservice.telemetry.metrics import Gauges
from rock.modelservice.timers import Timers
from rock.modelservice.wire import CloseReason, LimitName
from rock.types import CallId, Clock, SessionId, WorkerId


class Engine:
    """Book, queue, outbox and journal, moved together."""

    def __init__(self, config: ServiceConfig, clock: Clock, wall: Clock) -> None:
        self.config = config
        self.clock = clock
        self.wall = wall
        self.book = Book()
        self.bells: defaultdict[str, Bell] = defaultdict(Bell)
        """By backend: rung when a call of it can be claimed."""
        self.group_bell = Bell()
        self.drained = Bell()
        self.notices = Notices()
        self.notice_bells: defaultdict[WorkerId, Bell] = defaultdict(Bell)
        """By worker: rung when a lease of it is over without its doing."""
        self.redelivered = 0
        self.connections = 0
        """Connections of agents that wait for an answer."""
        self.stopping = False
        """Nothing more is handed out."""
        self.on_session_closed: list[Callable[[SessionId], None]] = []
        self.on_journal_failed: list[Callable[[], None]] = []
        self._deadlines = Timers()
        self._graces = Timers()
        self._session_ends = Timers()
        self._walls = Timers()
        self._idles = Timers()
        hooks = Hooks(config.hooks)
        self._retirements = Timers()
        self.shelf = Shelf()
        self.recovery = Recovery(config.state_dir, self.book, self.shelf, clock=clock, wall=wall)
        self.journal = Journal.open(
            config.state_dir,
            schema=records.SCHEMA,
            on_record=self.recovery.replay,
            sync=config.sync,
        )
        self.journal.on_failure = self._journal_failed
        self.observer = Observer(self._gauges)
        self.journal.on_commit = self.observer.committed
        self.interceptors = Interceptors(hooks, self.observer.intercepted)
        self.interceptors.replace_all(self.book.interceptors)
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
        self.recovery.fill(self.outbox)
        booted = records.Booted(run=self.book.runs + 1)
        self.book.apply(booted, self.clock())
        await self.write(booted)
        now = self.clock()
        for session in self.book.sessions:
            if session.open:
                self._time_session(session, now)
            else:
                self._retirements.set(session.id, now + self.config.evict_seconds)
        self._finish_what_a_kill_cut_short()
        for call in self.book.calls.values():
            if call.said is not None and not self._holds_back(call):
                call.visible = len(call.said)
            if call.state is State.QUEUED:
                self._time_call(call)
                self._graces.set(call.id, now + self.config.restart_grace_seconds)
                self.queue.add(call)
            else:
                self._show(call)

    def _finish_what_a_kill_cut_short(self) -> None:
        """Of records that are written together, a kill in the middle of the write leaves the first."""
        for call_id, error in self.book.refused.items():
            call = self.book.calls.get(call_id)
            if call is not None and call.state is State.QUEUED:
                self.end(call, Event.FAIL, error)
        self.book.refused.clear()
        for session in self.book.sessions:
            # Budgets close a session and leave the calls that are in flight.
            if session.close_reason is not None and session.limit in (None, "max_wall_seconds"):
                self.close_session(session, session.close_reason)

    def stop(self) -> None:
        """Wake everybody: long-polls find nothing, agents get `ServiceUnavailable`."""
        self.stopping = True
        self._end_all(ServiceUnavailable("the service is stopping; try again shortly"))
        for bell in (
            *self.bells.values(),
            *self.notice_bells.values(),
            self.group_bell,
            self.drained,
        ):
            bell.ring_all()

    # --- records ---

    def write(self, record: records.Record, then: Then | None = None) -> asyncio.Future[None]:
        payload = records.encode(record)
        return self._append(record, payload, then)

    def note(self, record: records.Record, then: Then | None = None) -> None:
        """Write a record that nobody waits for."""
        self._note(record, records.encode(record), then)

    def _append(
        self, record: records.Record, payload: bytes, then: Then | None = None
    ) -> asyncio.Future[None]:
        place = self.journal.next_place
        written = self.journal.append(payload, then)
        self.shelf.index(record, place)
        return written

    def _note(self, record: records.Record, payload: bytes, then: Then | None = None) -> None:
        self.shelf.index(record, self.journal.note(payload, then))

    def _note_call(self, call: Call, payload: bytes, then: Then | None = None) -> None:
        """`_note` for a record about a call: four of them make a turn, and whose they are is known."""
        self.shelf.places[call.session_id].append(self.journal.note(payload, then))

    # --- sessions ---

    def open_session(self, record: records.SessionOpened) -> asyncio.Future[None]:
        payload = records.encode(record)  # before any change: it may not be encodable
        now = self.clock()
        session = self.book.open_session(record, now)
        self._time_session(session, now)
        self.observer.session_opened(session)
        return self._append(record, payload)

    def close_session(
        self,
        session: Session,
        reason: CloseReason,
        *,
        cancel: bool = True,
        limit: LimitName | None = None,
    ) -> None:
        """Close and, with `cancel`, end the session's open calls. The first reason stands."""
        if session.open:
            at = self.wall()
            self.book.sessions.close(session, reason, limit, at=at)
            self._retirements.set(session.id, self.clock() + self.config.evict_seconds)
            self._session_ends.drop(session.id)
            self._walls.drop(session.id)
            self._idles.drop(session.id)
            self.observer.session_closed(session)
            record = records.SessionEnded(session=session.id, reason=reason, limit=limit, at=at)
            self.note(record, lambda: self._tell_closed(session.id))
        if cancel and session.parked:
            for call in self.book.conversation(session.id).calls:
                if call.state not in OPEN:
                    continue
                if reason == "limit":
                    self.end(call, Event.FAIL, limits.refusal(session))
                else:
                    self.end(call, Event.CLOSE, SessionClosed(f"the session was closed: {reason}"))

    def change_interceptors(
        self, record: records.InterceptorSet | records.InterceptorRemoved
    ) -> asyncio.Future[None]:
        payload = records.encode(record)
        self.book.change_interceptors(record)
        self.interceptors.replace_all(self.book.interceptors)
        self.observer.interceptors_changed(record)
        return self._append(record, payload)

    # --- calls ---

    def add_call(
        self,
        session: Session,
        record: records.CallQueued,
        extension: Extension,
        trace: Mapping[str, str],
        *,
        asked: Extension | None = None,
    ) -> Call:
        """Book a new call with one connection; it can be claimed once it is on disk."""
        payload = records.encode(record)
        now = self.clock()
        call = self.book.add_call(session, record, extension, now, asked=asked)
        call.attached = 1
        self.connections += 1
        self._time_call(call)
        self.observer.asked(call, trace)
        self._note_call(call, payload, partial(self._let_claim, call))
        return call

    def attach(self, call: Call) -> None:
        """One more connection waits for the call."""
        call.attached += 1
        self.connections += 1
        call.left_after = None
        self._graces.drop(call.id)
        self.observer.attached(call)
        if call.state in (State.UNDELIVERED, State.DELIVERED):
            self._move(call, Event.COLLECT)

    def detach(self, call: Call, *, sent: bool) -> None:
        """A connection of the call ended, with or without the answer written to it."""
        if call.attached > 0:
            call.attached -= 1
            self.connections -= 1
        if not sent and call.attached == 0:
            call.left_after = self.clock() - call.asked_at
        if call.outcome is not None and call.state is State.ANSWERED:
            if sent:
                self._move(call, Event.SENT)
            elif call.attached == 0:
                self._move(call, Event.AGENT_LEFT)
        elif call.state in OPEN and call.attached == 0:
            self._graces.set(call.id, self.clock() + self.config.cancel_grace_seconds)

    def lease_record(self, held: Held) -> None:
        call = self.book.calls[held.ticket.id]
        call.session.worker = held.worker_id
        if call.deliveries > 1:
            self.redelivered += 1
        self.observer.claimed(call, held)
        record = records.CallLeased(call=call.id, lease=held.id, worker=held.worker_id)
        self._note_call(call, records.encode(record))

    def partial(self, call: Call, record: records.CallPartial) -> None:
        """Keep a span of an answer; agents see it once it is on disk."""
        said = self.book.add_span(call, record)

        def reveal() -> None:
            if not self._holds_back(call):
                call.reveal(said, record.index + 1)

        self.note(record, reveal)

    def bind(self, call: Call) -> None:
        """What was said so far is about to be read, once this is on disk: the answer begins with it."""
        if not call.shown:
            call.shown = True
            self.note(records.SpansRead(call=call.id))

    def drop_spans(self, call: Call) -> None:
        """Start the answer afresh; only while no agent has read of it."""
        call.forget_spans()
        self.note(records.SpansDropped(call=call.id))

    def complete(self, call: Call, record: records.CallAnswered) -> None:
        """Store an answer; agents see it once it is on disk."""
        payload = records.encode(record)  # before any change: it may not be encodable
        held = call.lease
        self._take_out(call, Event.COMPLETE)
        self.book.store_answer(call, record)
        self.observer.answered(call, record, held, self.clock())
        self._note_call(call, payload, partial(self._show, call))

    def end(self, call: Call, event: Event, error: RockError) -> None:
        """End an open call without an answer."""
        record: records.CallFailedRecord | records.CallMoved
        if event in (Event.FAIL, Event.DEADLINE):
            record = records.CallFailedRecord(
                call=call.id, event=event, code=error.code, message=error.message
            )
        else:
            record = records.CallMoved(call=call.id, event=event)
        payload = records.encode(record)
        self._take_out(call, event)
        self.connections -= call.attached
        call.attached = 0
        call.stored = error
        call.forget_spans()
        self.observer.ended(call, event, error)
        self._note_call(call, payload, partial(self._show, call))

    def take_back(self, held: Held) -> None:
        """Give a lease's call to other workers, and tell its own."""
        self._tell(held)
        self.give_back(held)

    def give_back(self, held: Held) -> None:
        self.queue.release(held.id)
        self._returned(held.ticket)

    # --- time ---

    def tick(self) -> None:
        """Do what is due."""
        now = self.clock()
        again, exhausted = self.queue.expire(now)
        for ticket in (*again, *exhausted):
            self.observer.expired(self.book.calls[ticket.id])
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
        self.notices.forget(now)
        self._end_sessions(now)
        self._retire_due(now)

    def _end_sessions(self, now: float) -> None:
        for name in self._session_ends.due(now):
            self.close_session(self.book.sessions.get(name), "expired")
        for name in self._walls.due(now):
            session = self.book.sessions.get(name)
            self.close_session(session, "limit", limit="max_wall_seconds")
        for name in self._idles.due(now):
            session = self.book.sessions.get(name)
            idle_from = now if session.parked else session.active_at
            if now - idle_from >= self.config.session_idle_seconds:
                self.close_session(session, "expired")
            else:
                self._idles.set(name, idle_from + self.config.session_idle_seconds)

    # --- inside ---

    def _holds_back(self, call: Call) -> bool:
        """An interceptor may still change what was said, unless an agent has read of it."""
        return not call.shown and bool(self.interceptors.matching("response", call.session.labels))

    def _retire_due(self, now: float) -> None:
        for name in self._retirements.due(now):
            session = self.book.sessions.get(name)
            calls = self.book.conversation(session.id).calls
            at_rest = not session.parked and not any(
                call.attached or call.outcome is None for call in calls
            )
            if at_rest and self.shelf.places[name][-1] < self.journal.written_place:
                self.recovery.retire(session)
            else:
                self._retirements.set(name, now + max(1.0, self.config.evict_seconds))

    def _gauges(self) -> Gauges:
        now, policy = self.clock(), self.book.policy
        leases = list(self.queue.leases())
        return Gauges(
            queued=self.queue.depths(),
            leased=Counter(held.ticket.backend for held in leases),
            waiting_workers={name: len(bell) for name, bell in self.bells.items()},
            calls={state.value: count for state, count in self.book.sessions.totals.items()},
            oldest_lease_seconds=max((now - held.since for held in leases), default=0.0),
            connections=self.connections,
            open_sessions=self.book.sessions.open_count,
            journal_bytes=self.journal.size_bytes,
            policy_version=policy.version,
            paused=policy.state == "paused",
        )

    def _tell_closed(self, session_id: SessionId) -> None:
        for callback in self.on_session_closed:
            # Not from here: what a listener raises must not reach the journal's other waiters.
            asyncio.get_running_loop().call_soon(callback, session_id)

    def _time_session(self, session: Session, now: float) -> None:
        bounds = session.spec.limits
        if bounds.session_deadline_seconds is not None:
            self._session_ends.set(session.id, session.opened_at + bounds.session_deadline_seconds)
        if bounds.max_wall_seconds is not None:
            self._walls.set(session.id, session.opened_at + bounds.max_wall_seconds)
        self._idles.set(session.id, now + self.config.session_idle_seconds)

    def _time_call(self, call: Call) -> None:
        seconds = call.session.spec.limits.call_deadline_seconds
        if seconds is None:
            seconds = self.config.call_deadline_seconds
        self._deadlines.set(call.id, call.asked_at + seconds)

    def _let_claim(self, call: Call) -> None:
        if call.state is State.QUEUED:  # it may have been closed on its way to the disk
            call.affinity = call.session.worker
            self.queue.add(call)
            self.bells[call.backend].ring(call.affinity)

    def _returned(self, ticket: Ticket) -> None:
        self.bells[ticket.backend].ring()
        self._check_drained(ticket.backend)

    def _tell(self, held: Held) -> None:
        self.notices.tell(held.worker_id, held.id, now=self.clock())
        if held.worker_id in self.notice_bells:
            self.notice_bells[held.worker_id].ring_all()

    def _take_out(self, call: Call, event: Event) -> None:
        if call.lease is not None and event not in (Event.COMPLETE, Event.FAIL):
            self._tell(call.lease)
        self.queue.end(call, event)
        self._deadlines.drop(call.id)
        self._graces.drop(call.id)
        self._check_drained(call.backend)

    def _check_drained(self, backend: str) -> None:
        if backend == TRAINER_BACKEND and len(self.drained) and not self.leased_by(backend):
            self.drained.ring_all()

    def leased_by(self, backend: str) -> int:
        """Leases that are out on calls of a backend. O(leases)."""
        return sum(held.ticket.backend == backend for held in self.queue.leases())

    def _move(self, call: Call, event: Event) -> None:
        call.move(event)
        self._note_call(call, records.encode(records.CallMoved(call=call.id, event=event)))

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
        for callback in self.on_journal_failed:
            callback()

    def _end_all(self, error: RockError) -> None:
        for call in self.book.calls.values():
            if call.outcome is None:
                call.publish(error)
