"""The queue: order, leases, expiry, bounds; and a long random walk against a plain model."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rock.errors import InvalidTransition, LeaseLost, QueueFull
from rock.modelservice.engine.queue import CallQueue, Held, Ticket
from rock.modelservice.settings import ClaimOrder
from rock.modelservice.states import Event, State
from rock.types import CallId, LeaseId, SessionId, WorkerId


def ticket(name: str, session: str = "s", **fields: int) -> Ticket:
    return Ticket(CallId(name), SessionId(session), **fields)  # pyright: ignore[reportArgumentType]


def take(queue: CallQueue, now: float = 0.0, seconds: float = 10.0) -> Held:
    held = queue.claim(WorkerId("w"), now=now, lease_seconds=seconds)
    assert held is not None
    return held


def taken(queue: CallQueue, count: int) -> list[str]:
    return [take(queue).ticket.id for _ in range(count)]


def test_sessions_take_turns_and_each_is_served_in_order() -> None:
    queue = CallQueue()
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.add(ticket(name, session=name[0]))
    assert taken(queue, 6) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert queue.claim(WorkerId("w"), now=0.0, lease_seconds=1.0) is None


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("fifo", ["late", "early", "vip"]),
        ("oldest_session", ["early", "vip", "late"]),
        ("priority", ["vip", "late", "early"]),
    ],
)
def test_other_orders_can_be_chosen(order: ClaimOrder, expected: list[str]) -> None:
    queue = CallQueue(order=order)
    queue.add(ticket("late", "s2", session_arrival=2))
    queue.add(ticket("early", "s0", session_arrival=0))
    queue.add(ticket("vip", "s1", session_arrival=1, priority=5))
    assert taken(queue, 3) == expected


@pytest.mark.parametrize("order", ["round_robin", "fifo", "oldest_session", "priority"])
def test_a_ticket_that_came_back_goes_first_in_every_order(order: ClaimOrder) -> None:
    queue = CallQueue(order=order)
    for name in ("a", "b", "c"):
        queue.add(ticket(name, session=name, priority=-ord(name)))
    first = take(queue)
    queue.release(first.id)
    assert taken(queue, 3) == ["a", "b", "c"]


def test_workers_get_only_calls_of_their_backend() -> None:
    queue = CallQueue()
    queue.add(Ticket(CallId("x"), SessionId("s"), backend="replay"))
    assert queue.claim(WorkerId("w"), now=0.0, lease_seconds=1.0) is None
    held = queue.claim(WorkerId("w"), now=0.0, lease_seconds=1.0, backend="replay")
    assert held is not None
    assert held.ticket.id == "x"


def test_an_expired_lease_is_handed_out_again_under_another_id() -> None:
    queue = CallQueue()
    queue.add(ticket("a"))
    old = take(queue, seconds=10.0)
    assert queue.expire(9.9) == ([], [])
    assert queue.expire(10.0) == ([old.ticket], [])
    new = take(queue, now=10.0)
    assert (new.ticket, new.ticket.deliveries) == (old.ticket, 2)
    assert new.id != old.id
    with pytest.raises(LeaseLost):
        queue.held(old.id)
    with pytest.raises(LeaseLost):
        queue.release(old.id)


def test_a_renewed_lease_lives_on() -> None:
    queue = CallQueue()
    queue.add(ticket("a"))
    held = take(queue, seconds=10.0)
    queue.renew(held.id, now=9.0, lease_seconds=10.0)
    assert queue.expire(18.9) == ([], [])
    assert queue.expire(19.0) == ([held.ticket], [])


def test_a_call_that_no_worker_finishes_is_reported_after_the_bound() -> None:
    queue = CallQueue(max_deliveries=2)
    queue.add(ticket("a"))
    take(queue)
    assert queue.expire(10.0)[1] == []
    held = take(queue, now=10.0)
    assert queue.expire(20.0) == ([], [held.ticket])
    queue.end(held.ticket, Event.FAIL)
    assert (queue.queued, queue.leased) == (0, 0)


def test_giving_a_lease_back_does_not_count_against_the_call() -> None:
    queue = CallQueue(max_deliveries=1)
    queue.add(ticket("a"))
    for _ in range(10):
        queue.release(take(queue).id)
    assert queue.queued == 1


def test_the_bound_counts_waiting_and_coming_tickets() -> None:
    queue = CallQueue(max_queued=2)
    queue.add(ticket("a"))
    queue.admit()
    with pytest.raises(QueueFull, match="bound is 2"):
        queue.admit(coming=1)
    queue.add(ticket("b"))
    with pytest.raises(QueueFull):
        queue.admit()
    take(queue)
    queue.admit()


def test_a_ticket_that_does_not_fit_leaves_the_queue() -> None:
    queue = CallQueue()
    stale, fresh = ticket("stale"), ticket("fresh")
    queue.add(stale)
    queue.add(fresh)
    held = queue.claim(
        WorkerId("w"), now=0.0, lease_seconds=1.0, fit=lambda candidate: candidate is fresh
    )
    assert held is not None
    assert held.ticket is fresh
    assert (queue.queued, stale.state) == (0, State.QUEUED)
    queue.end(stale, Event.CLOSE)
    assert (queue.queued, stale.state) == (0, State.CANCELLED)


def test_an_ended_ticket_cannot_end_again() -> None:
    queue = CallQueue()
    queue.add(ticket("a"))
    held = take(queue)
    queue.end(held.ticket, Event.COMPLETE)
    with pytest.raises(InvalidTransition):
        queue.end(held.ticket, Event.COMPLETE)


def test_leases_of_two_runs_never_have_the_same_id() -> None:
    ids = set[LeaseId]()
    for boot in ("1-", "2-", "12-"):
        queue = CallQueue(boot=boot)
        queue.add(ticket("a"))
        for _ in range(12):
            held = take(queue)
            ids.add(held.id)
            queue.release(held.id)
    assert len(ids) == 36


class QueueMachine(RuleBasedStateMachine):
    """Random use of the queue next to a model: a list of waiting names and a dict of leases."""

    order: ClaimOrder = "round_robin"

    def __init__(self) -> None:
        super().__init__()
        self.queue = CallQueue(order=self.order, max_deliveries=3)
        self.now = 0.0
        self.made = 0
        self.waiting: dict[CallId, Ticket] = {}
        self.returned: list[CallId] = []
        self.leases: dict[LeaseId, tuple[Ticket, float]] = {}
        self.over: list[LeaseId] = []

    def _ends_lease(self, lease_id: LeaseId, *, again: bool) -> None:
        one, _ = self.leases.pop(lease_id)
        self.over.append(lease_id)
        if again:
            self.waiting[one.id] = one
            self.returned.insert(0, one.id)

    @rule(session=st.sampled_from("abc"), priority=st.integers(0, 2))
    def add(self, session: str, priority: int) -> None:
        self.made += 1
        one = ticket(f"c{self.made}", session, session_arrival=ord(session), priority=priority)
        self.queue.add(one)
        self.waiting[one.id] = one

    @rule(seconds=st.sampled_from([1.0, 5.0, 20.0]))
    def claim(self, seconds: float) -> None:
        held = self.queue.claim(WorkerId("w"), now=self.now, lease_seconds=seconds)
        if not self.waiting:
            assert held is None
            return
        assert held is not None
        if self.returned:
            assert held.ticket.id == self.returned.pop(0)
        else:
            ours = [t for t in self.waiting.values() if t.session_id == held.ticket.session_id]
            if self.order in ("round_robin", "fifo"):
                assert held.ticket.arrival == min(t.arrival for t in ours)
            if self.order == "fifo":
                assert held.ticket.arrival == min(t.arrival for t in self.waiting.values())
            if self.order == "priority":
                assert held.ticket.priority == max(t.priority for t in self.waiting.values())
        del self.waiting[held.ticket.id]
        self.leases[held.id] = (held.ticket, self.now + seconds)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 30.0]))
    def renew(self, data: st.DataObject, seconds: float) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        self.queue.renew(lease_id, now=self.now, lease_seconds=seconds)
        self.leases[lease_id] = (self.leases[lease_id][0], self.now + seconds)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        self.queue.release(lease_id)
        self._ends_lease(lease_id, again=True)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), event=st.sampled_from([Event.COMPLETE, Event.FAIL, Event.DEADLINE]))
    def end_leased(self, data: st.DataObject, event: Event) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.leases)))
        self.queue.end(self.leases[lease_id][0], event)
        self._ends_lease(lease_id, again=False)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), event=st.sampled_from([Event.GRACE_OVER, Event.CLOSE, Event.DEADLINE]))
    def end_waiting(self, data: st.DataObject, event: Event) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self.queue.end(self.waiting.pop(name), event)
        if name in self.returned:
            self.returned.remove(name)

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        due = {lease for lease, (_, end) in self.leases.items() if end <= self.now}
        again, exhausted = self.queue.expire(self.now)
        ended = {one.id for one in (*again, *exhausted)}
        assert {self.leases[lease][0].id for lease in due} == ended
        for one in again:
            lease_id = next(lease for lease in due if self.leases[lease][0] is one)
            due.remove(lease_id)
            self._ends_lease(lease_id, again=True)
        for one in exhausted:
            assert one.lost == 3
            self.queue.end(one, Event.FAIL)
        for lease_id in due:
            self._ends_lease(lease_id, again=False)

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def use_a_lease_that_is_over(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.over))
        with pytest.raises(LeaseLost):
            self.queue.held(lease_id)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.queued == self.queue.waiting("queue") == len(self.waiting)
        assert self.queue.leased == len(self.leases)
        assert {held.id for held in self.queue.leases()} == set(self.leases)
        assert all(one.state is State.QUEUED for one in self.waiting.values())
        assert all(one.state is State.LEASED for one, _ in self.leases.values())


class FifoMachine(QueueMachine):
    order = "fifo"


class PriorityMachine(QueueMachine):
    order = "priority"


_SETTINGS = settings(max_examples=60, stateful_step_count=60, deadline=None)
for _machine in (QueueMachine, FifoMachine, PriorityMachine):
    _machine.TestCase.settings = _SETTINGS
TestRoundRobinQueue = QueueMachine.TestCase
TestFifoQueue = FifoMachine.TestCase
TestPriorityQueue = PriorityMachine.TestCase
