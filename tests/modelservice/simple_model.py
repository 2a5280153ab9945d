"""ModelService as one would explain it on a page: what the state machine test holds the real one
against. No I/O, no queue order, no graph; a request is its text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rock.modelservice.states import ENDED_WITHOUT, OPEN, Event, State, next_state

CANCEL_GRACE_SECONDS = 10.0
RESTART_GRACE_SECONDS = 40.0
CALL_DEADLINE_SECONDS = 300.0
SESSION_DEADLINE_SECONDS = 700.0
MAX_DELIVERIES = 3


@dataclass
class ModelCall:
    id: str
    session: str
    text: str
    key: str | None
    deadline: float
    state: State = State.QUEUED
    attached: int = 1
    grace_end: float | None = None
    lease: str | None = None
    lease_end: float = 0.0
    frozen: float | None = None
    """Seconds of the lease that are left while a pause holds."""
    deliveries: int = 0
    lost: int = 0
    said: list[str] = field(default_factory=list[str])
    """Spans that workers have sent, while the call is open."""
    shown: bool = False
    """An agent has read of them."""
    answer: str | None = None
    answered_lease: str | None = None

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        if self.state is not State.LEASED:
            self.lease = self.frozen = None
        if self.state not in OPEN:
            self.grace_end = None
            self.said.clear()


@dataclass
class ModelSession:
    id: str
    end: float | None
    closed: str | None = None


@dataclass
class SimpleModel:
    """Sessions and calls, and what each thing that can happen does to them."""

    now: float
    sessions: dict[str, ModelSession] = field(default_factory=dict[str, ModelSession])
    calls: dict[str, ModelCall] = field(default_factory=dict[str, ModelCall])
    connections: dict[int, str] = field(default_factory=dict[int, str])
    """Open connections of agents, and the call each waits for."""
    leases: dict[str, str] = field(default_factory=dict[str, str])
    """Every lease ever given, and its call."""
    paused: bool = False

    def of(self, session: str) -> Iterator[ModelCall]:
        return (call for call in self.calls.values() if call.session == session)

    def in_state(self, *states: State) -> list[str]:
        return [call.id for call in self.calls.values() if call.state in states]

    # --- agents ---

    def find(self, session: str, text: str, key: str | None, retry: int) -> ModelCall | str | None:
        """The call that a request repeats; None for a new one; a word for a refusal."""
        if self.sessions[session].closed is not None:
            return "closed"
        keyed = [call for call in self.of(session) if key is not None and call.key == key]
        if keyed:
            if keyed[-1].text != text:
                return "conflict"
            return None if keyed[-1].state in ENDED_WITHOUT else keyed[-1]
        same = [
            call
            for call in self.of(session)
            if call.text == text
            and call.state not in ENDED_WITHOUT
            and (key is None or call.key is None)
        ]
        for call in same:
            if call.attached == 0 and call.state is not State.DELIVERED:
                return call
        return same[-1] if same and retry else None

    def attach(self, call: ModelCall) -> None:
        call.attached += 1
        call.grace_end = None
        if call.state in (State.UNDELIVERED, State.DELIVERED):
            call.move(Event.COLLECT)

    def detach(self, connection: int, *, sent: bool) -> None:
        call = self.calls[self.connections.pop(connection)]
        if call.state in ENDED_WITHOUT:
            return
        call.attached -= 1
        if call.state is State.ANSWERED:
            if sent:
                call.move(Event.SENT)
            elif call.attached == 0:
                call.move(Event.AGENT_LEFT)
        elif call.state in OPEN and call.attached == 0:
            call.grace_end = self.now + CANCEL_GRACE_SECONDS

    def close(self, session: str, reason: str) -> None:
        if self.sessions[session].closed is None:
            self.sessions[session].closed = reason
        for call in self.of(session):
            if call.state in OPEN:
                call.move(Event.CLOSE)

    # --- workers ---

    def leased(self, call: ModelCall, lease: str, seconds: float) -> None:
        call.move(Event.CLAIM)
        call.deliveries += 1
        call.lease, call.lease_end = lease, self.now + seconds
        self.leases[lease] = call.id

    def verdict(self, lease: str) -> str | None:
        """Why this lease cannot end its call now; None if it can."""
        call = self.calls[self.leases[lease]]
        return None if call.lease == lease else "lease_lost"

    def complete(self, lease: str, text: str) -> str | None:
        call = self.calls[self.leases[lease]]
        if call.answered_lease == lease:
            return None if call.answer == text else "lease_lost"
        if (error := self.verdict(lease)) is not None:
            return error
        if call.shown and not text.startswith("".join(call.said)):
            call.move(Event.FAIL)
            return "invalid_request"
        call.move(Event.COMPLETE)
        call.answer, call.answered_lease = text, lease
        if call.attached == 0:
            call.move(Event.AGENT_LEFT)
        return None

    def say(self, lease: str, index: int, text: str) -> str | None:
        if (error := self.verdict(lease)) is not None:
            return error
        said = self.calls[self.leases[lease]].said
        if index > len(said):
            return "invalid_request"
        if index < len(said):
            return None if said[index] == text else "lease_lost"
        said.append(text)
        return None

    def read(self, call: ModelCall) -> None:
        """An agent reads what was said so far."""
        call.shown = call.shown or bool(call.said)

    def cannot_continue(self, lease: str) -> str | None:
        if (error := self.verdict(lease)) is None:
            call = self.calls[self.leases[lease]]
            fresh = bool(call.said) and not call.shown
            call.move(Event.RELEASE if fresh else Event.FAIL)
            call.said.clear()
        return error

    def end_lease(self, lease: str, event: Event) -> str | None:
        if (error := self.verdict(lease)) is None:
            self.calls[self.leases[lease]].move(event)
        return error

    def renew(self, lease: str, seconds: float) -> str | None:
        if (error := self.verdict(lease)) is None:
            call = self.calls[self.leases[lease]]
            if call.frozen is not None:
                call.frozen = seconds
            call.lease_end = self.now + seconds
        return error

    def pause(self, mode: str) -> None:
        self.paused = True
        for call in self.calls.values():
            if call.state is not State.LEASED:
                continue
            if mode == "requeue":
                call.move(Event.RELEASE)
            elif call.frozen is None:
                call.frozen = call.lease_end - self.now

    def resume(self) -> None:
        self.paused = False
        for call in self.calls.values():
            if call.frozen is not None:
                call.lease_end, call.frozen = self.now + call.frozen, None

    # --- time ---

    def tick(self) -> None:
        for call in self.calls.values():
            self._tick_lease(call)
            if call.state in OPEN and call.deadline <= self.now:
                call.move(Event.DEADLINE)
            if call.state in OPEN and call.grace_end is not None and call.grace_end <= self.now:
                call.move(Event.GRACE_OVER)
        for session in self.sessions.values():
            if session.closed is None and session.end is not None and session.end <= self.now:
                self.close(session.id, "expired")

    def _tick_lease(self, call: ModelCall) -> None:
        if call.state is State.LEASED and call.frozen is None and call.lease_end <= self.now:
            call.lost += 1
            call.move(Event.FAIL if call.lost >= MAX_DELIVERIES else Event.EXPIRE)

    def restart(self) -> None:
        """Leases and connections are gone, and nothing else."""
        self.connections.clear()
        for call in self.calls.values():
            call.attached = call.lost = 0
            if call.state is State.LEASED:
                call.move(Event.RELEASE)
            elif call.state is State.ANSWERED:
                call.move(Event.AGENT_LEFT)
            if call.state is State.QUEUED:
                call.grace_end = self.now + RESTART_GRACE_SECONDS
