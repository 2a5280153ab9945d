"""Calls waiting and leased: who is next, who holds what until when. No I/O; time is passed in.

A `Ticket` is a call as the queue sees it. Each backend name has a lane of its own. Inside a lane,
tickets that came back (expired, released) go first, the rest in the order that `order` names:

- `round_robin` (default): sessions take turns, first come first served inside a session, and a
  worker that asks gets its own sessions first (below);
- `fifo`: by arrival; `oldest_session`: the session opened first goes first;
- `priority`: the higher `priority` first, arrival breaks ties.

A ticket may name the worker that has its session's prefix (affinity). In round robin a session
whose turn it is, but whose prefix another worker has, is passed over for one that suits the asker
better, at most `MAX_PASSES` times; if there is none, the asker gets it: nobody idles for a prefix.
The other orders are strict; there the prefix decides only which waiting worker a call wakes.

A lease id is a fencing token: it names one delivery of one call, and only the newest lease of a
ticket can complete, renew or release it. Every operation is O(1) or O(log n).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from rock.errors import LeaseLost, QueueFull, shown
from rock.modelservice.settings import ClaimOrder
from rock.modelservice.states import Event, State, next_state
from rock.modelservice.timers import Timers
from rock.types import CallId, LeaseId, PolicyVersion, SessionId, WorkerId

TRAINER_BACKEND = "queue"
"""Who answers sessions that name no worker of this service."""
MAX_PASSES = 8
"""How often in a row a session whose turn it is waits for another that suits the worker better."""


class Ticket:
    """A call's place in the queue. `state` changes only by `move`."""

    __slots__ = (
        "affinity",
        "arrival",
        "backend",
        "deliveries",
        "id",
        "lease",
        "lost",
        "priority",
        "session_arrival",
        "session_id",
        "state",
    )

    def __init__(
        self,
        id: CallId,
        session_id: SessionId,
        *,
        backend: str = "queue",
        session_arrival: int = 0,
        priority: int = 0,
    ) -> None:
        self.id = id
        self.session_id = session_id
        self.backend = backend
        self.session_arrival = session_arrival
        self.priority = priority
        self.affinity: WorkerId | None = None
        """The worker that has the session's prefix, as of when the ticket came to wait."""
        self.arrival = 0
        """Set by the queue: place in the order of arrival."""
        self.state = State.QUEUED
        self.deliveries = 0
        self.lost = 0
        """Deliveries whose worker let the lease expire."""
        self.lease: Held | None = None

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)


class Held:
    """One lease: which worker has the ticket, since when, with what weights."""

    __slots__ = ("frozen_seconds", "id", "policy_version", "since", "ticket", "worker_id")

    def __init__(
        self,
        id: LeaseId,
        ticket: Ticket,
        worker_id: WorkerId,
        policy_version: PolicyVersion | None,
        since: float,
    ) -> None:
        self.id = id
        self.since = since
        self.ticket = ticket
        self.worker_id = worker_id
        self.policy_version = policy_version
        self.frozen_seconds: float | None = None
        """What is left of the lease, while its clock stands still."""


class _Order(Protocol):
    """Waiting tickets of one lane, in one order."""

    def push(self, ticket: Ticket) -> None: ...
    def remove(self, ticket: Ticket) -> bool: ...
    def pop(self, worker_id: WorkerId) -> Ticket | None: ...


class _Line:
    """First in, first out, with removal from anywhere in O(1)."""

    def __init__(self) -> None:
        self._tickets: OrderedDict[CallId, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def push(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket

    def push_first(self, ticket: Ticket) -> None:
        self._tickets[ticket.id] = ticket
        self._tickets.move_to_end(ticket.id, last=False)

    def remove(self, ticket: Ticket) -> bool:
        return self._tickets.pop(ticket.id, None) is not None

    def pop(self, worker_id: WorkerId | None = None) -> Ticket | None:
        del worker_id
        return self._tickets.popitem(last=False)[1] if self._tickets else None


class _Turn:
    """One session that waits for its turn."""

    __slots__ = ("affinity", "line", "passes")

    def __init__(self, affinity: WorkerId | None) -> None:
        self.affinity = affinity
        self.line = _Line()
        self.passes = 0


class _RoundRobin:
    """One line per session; the session whose turn it was goes to the end."""

    def __init__(self) -> None:
        self._turns: OrderedDict[SessionId, _Turn] = OrderedDict()
        self._by_worker: dict[WorkerId | None, OrderedDict[SessionId, None]] = {}
        """The same sessions in the same order, by who has their prefix."""

    def push(self, ticket: Ticket) -> None:
        turn = self._turns.get(ticket.session_id)
        if turn is None:
            turn = self._turns[ticket.session_id] = _Turn(ticket.affinity)
            same = self._by_worker.get(turn.affinity)
            if same is None:
                same = self._by_worker[turn.affinity] = OrderedDict()
            same[ticket.session_id] = None
        turn.line.push(ticket)

    def remove(self, ticket: Ticket) -> bool:
        turn = self._turns.get(ticket.session_id)
        if turn is None or not turn.line.remove(ticket):
            return False
        if not turn.line:
            self._drop(ticket.session_id, turn)
        return True

    def pop(self, worker_id: WorkerId) -> Ticket | None:
        if not self._turns:
            return None
        session_id = self._next_for(worker_id)
        turn = self._turns[session_id]
        turn.passes = 0
        ticket = turn.line.pop()
        if turn.line:
            self._turns.move_to_end(session_id)
            self._by_worker[turn.affinity].move_to_end(session_id)
        else:
            self._drop(session_id, turn)
        return ticket

    def _next_for(self, worker_id: WorkerId) -> SessionId:
        first, turn = next(iter(self._turns.items()))
        if turn.affinity in (worker_id, None) or turn.passes >= MAX_PASSES:
            return first
        better = self._by_worker.get(worker_id) or self._by_worker.get(None)
        if not better:
            return first
        turn.passes += 1
        return next(iter(better))

    def _drop(self, session_id: SessionId, turn: _Turn) -> None:
        del self._turns[session_id]
        same = self._by_worker[turn.affinity]
        del same[session_id]
        if not same:
            del self._by_worker[turn.affinity]


class _Keyed:
    """The smallest key first. Removed tickets stay in the heap until they surface or outnumber."""

    def __init__(self, key: Callable[[Ticket], tuple[int, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], CallId]] = []
        self._waiting: dict[CallId, Ticket] = {}

    def push(self, ticket: Ticket) -> None:
        self._waiting[ticket.id] = ticket
        heapq.heappush(self._heap, (self._key(ticket), ticket.id))

    def remove(self, ticket: Ticket) -> bool:
        if self._waiting.pop(ticket.id, None) is None:
            return False
        if len(self._heap) > 2 * len(self._waiting) + 64:
            self._heap = [(self._key(kept), kept.id) for kept in self._waiting.values()]
            heapq.heapify(self._heap)
        return True

    def pop(self, worker_id: WorkerId) -> Ticket | None:
        del worker_id
        while self._heap:
            ticket = self._waiting.pop(heapq.heappop(self._heap)[1], None)
            if ticket is not None:
                return ticket
        return None


def _by_session(ticket: Ticket) -> tuple[int, ...]:
    return ticket.session_arrival, ticket.arrival


def _by_priority(ticket: Ticket) -> tuple[int, ...]:
    return -ticket.priority, ticket.arrival


_ORDERS: dict[ClaimOrder, Callable[[], _Order]] = {
    "round_robin": _RoundRobin,
    "fifo": _Line,
    "oldest_session": partial(_Keyed, _by_session),
    "priority": partial(_Keyed, _by_priority),
}


class _Lane:
    """What waits for one backend."""

    def __init__(self, order: _Order) -> None:
        self._returned = _Line()
        self._order = order
        self.waiting = 0

    def push(self, ticket: Ticket, *, first: bool) -> None:
        if first:
            self._returned.push_first(ticket)
        else:
            self._order.push(ticket)
        self.waiting += 1

    def remove(self, ticket: Ticket) -> None:
        if self._returned.remove(ticket) or self._order.remove(ticket):
            self.waiting -= 1

    def pop(self, worker_id: WorkerId) -> Ticket | None:
        ticket = self._returned.pop() or self._order.pop(worker_id)
        if ticket is not None:
            self.waiting -= 1
        return ticket


class CallQueue:
    """Tickets waiting and leased.

    `boot` must differ between two runs of a service on one journal: it is part of every lease id,
    so that a lease of an earlier run is never taken for one of this run.
    """

    def __init__(
        self,
        *,
        boot: str = "0",
        order: ClaimOrder = "round_robin",
        max_queued: int = 20_000,
        max_deliveries: int = 5,
    ) -> None:
        self._boot = boot
        self._new_order = _ORDERS[order]
        self._max_queued = max_queued
        self._max_deliveries = max_deliveries
        self._lanes: dict[str, _Lane] = {}
        self._leases: dict[LeaseId, Held] = {}
        self._expiries = Timers()
        self._arrivals = 0
        self.queued = 0

    @property
    def leased(self) -> int:
        return len(self._leases)

    def waiting(self, backend: str) -> int:
        lane = self._lanes.get(backend)
        return lane.waiting if lane else 0

    def depths(self) -> dict[str, int]:
        """How many wait, by backend."""
        return {name: lane.waiting for name, lane in self._lanes.items()}

    def leases(self) -> Iterator[Held]:
        """The leases that are out, as of now."""
        yield from list(self._leases.values())

    def admit(self, coming: int = 0) -> None:
        """Raises `QueueFull` if one more ticket would be over the bound. `coming` tickets are
        admitted already and will be added."""
        waiting = self.queued + coming
        if waiting >= self._max_queued:
            raise QueueFull(f"{waiting} calls wait already; the bound is {self._max_queued}")

    def add(self, ticket: Ticket) -> None:
        """Let a queued ticket be claimed. A ticket that was handed out before goes to the head."""
        self._arrivals += 1
        ticket.arrival = self._arrivals
        self._push(ticket, first=ticket.deliveries > 0)

    def claim(
        self,
        worker_id: WorkerId,
        *,
        now: float,
        lease_seconds: float,
        backend: str = "queue",
        policy_version: PolicyVersion | None = None,
        fit: Callable[[Ticket], bool] | None = None,
    ) -> Held | None:
        """Lease the next ticket, or None if none waits.

        `fit` is asked about each candidate; one it refuses leaves the queue, still `queued`, and is
        the asker's to end.
        """
        lane = self._lanes.get(backend)
        while lane is not None and (ticket := lane.pop(worker_id)) is not None:
            self.queued -= 1
            if fit is not None and not fit(ticket):
                continue
            ticket.move(Event.CLAIM)
            ticket.deliveries += 1
            lease_id = LeaseId(f"{ticket.id}.{self._boot}{ticket.deliveries}")
            held = Held(lease_id, ticket, worker_id, policy_version, now)
            ticket.lease = held
            self._leases[lease_id] = held
            self._expiries.set(lease_id, now + lease_seconds)
            return held
        return None

    def held(self, lease_id: LeaseId) -> Held:
        """Raises `LeaseLost` unless this lease is the newest of its ticket and not over."""
        held = self._leases.get(lease_id)
        if held is None:
            raise LeaseLost(f"lease {shown(lease_id)} is over; drop the work")
        return held

    def expires_in(self, lease_id: LeaseId, *, now: float) -> float:
        """Seconds that are left of a lease. Raises `LeaseLost`."""
        held = self.held(lease_id)
        if held.frozen_seconds is not None:
            return held.frozen_seconds
        return max(0.0, (self._expiries.moment(lease_id) or now) - now)

    def renew(self, lease_id: LeaseId, *, now: float, lease_seconds: float) -> None:
        held = self.held(lease_id)
        if held.frozen_seconds is not None:
            held.frozen_seconds = lease_seconds
        else:
            self._expiries.set(lease_id, now + lease_seconds)

    def freeze(self, backend: str, *, now: float) -> None:
        """Let the clocks of a lane's leases stand still, until `thaw`."""
        for held in self._leases.values():
            moment = self._expiries.moment(held.id)
            if held.ticket.backend == backend and moment is not None:
                held.frozen_seconds = max(0.0, moment - now)
                self._expiries.drop(held.id)

    def thaw(self, backend: str, *, now: float) -> None:
        for held in self._leases.values():
            if held.ticket.backend == backend and held.frozen_seconds is not None:
                self._expiries.set(held.id, now + held.frozen_seconds)
                held.frozen_seconds = None

    def release(self, lease_id: LeaseId) -> Ticket:
        """Give the ticket back, to the head of its lane."""
        return self._give_back(self.held(lease_id), Event.RELEASE)

    def end(self, ticket: Ticket, event: Event) -> None:
        """Take a ticket out for good: answered, failed or cancelled, wherever it was."""
        ticket.move(event)
        if ticket.lease is not None:
            self._drop_lease(ticket.lease)
        else:
            lane = self._lanes.get(ticket.backend)
            if lane is not None:
                before = lane.waiting
                lane.remove(ticket)
                self.queued -= before - lane.waiting

    def expire(self, now: float) -> tuple[list[Ticket], list[Ticket]]:
        """End the leases that are over: (tickets that wait again, tickets handed out too often).

        The second kind keeps its last lease's state; the caller fails them.
        """
        again: list[Ticket] = []
        exhausted: list[Ticket] = []
        for lease_id in self._expiries.due(now):
            held = self._leases[LeaseId(lease_id)]
            ticket = held.ticket
            ticket.lost += 1
            if ticket.lost >= self._max_deliveries:
                exhausted.append(ticket)
            else:
                again.append(self._give_back(held, Event.EXPIRE))
        return again, exhausted

    def _give_back(self, held: Held, event: Event) -> Ticket:
        ticket = held.ticket
        ticket.move(event)
        self._drop_lease(held)
        self._push(ticket, first=True)
        return ticket

    def _push(self, ticket: Ticket, *, first: bool) -> None:
        lane = self._lanes.get(ticket.backend)
        if lane is None:
            lane = self._lanes[ticket.backend] = _Lane(self._new_order())
        lane.push(ticket, first=first)
        self.queued += 1

    def _drop_lease(self, held: Held) -> None:
        del self._leases[held.id]
        self._expiries.drop(held.id)
        held.ticket.lease = None
