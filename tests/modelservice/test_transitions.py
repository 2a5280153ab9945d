"""Every pair of state and event, walked through the service's own methods, and again after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rock.modelservice import wire
from rock.modelservice.service.service import Call, ModelService, Session
from rock.modelservice.states import TRANSITIONS, Event, State
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import (
    ask,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    user,
)

GRACE_SECONDS = 10.0
DEADLINE_SECONDS = 1000.0
SHORT_LEASE_SECONDS = 60.0
LONG_LEASE_SECONDS = 3600.0
WALL_SECONDS = 500.0
HI = user("hi")
NO_LEASE = "s.0.0-1"


@dataclass
class Walk:
    """One call on its way."""

    service: ModelService
    clock: FakeClock
    session: Session
    call: Call
    lease_seconds: float
    lease: wire.Lease | None = None

    @property
    def lease_id(self) -> str:
        return NO_LEASE if self.lease is None else self.lease.lease_id

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.tick()

    async def claim(self) -> None:
        leases = await claim(self.service, 9, lease_seconds=self.lease_seconds)
        self.lease = next((one for one in leases if one.call_id == self.call.id), self.lease)

    async def complete(self) -> wire.ItemResult:
        if self.lease is None:
            choice = wire.Choice(wire.AssistantMessage(content="hello"))
            [result] = await complete(self.service, wire.Completion(NO_LEASE, [choice]))
        else:
            [result] = await complete(self.service, completion(self.lease))
        return result

    async def fail(self) -> wire.ItemResult:
        request = wire.FailRequest([wire.Failure(self.lease_id)])
        [result] = (await self.service.fail(request)).results
        return result

    def release(self) -> wire.ItemResult:
        [result] = self.service.release(wire.ReleaseRequest([self.lease_id])).results
        return result


# --- how a call comes to each state ---


async def _leased(walk: Walk) -> None:
    await walk.claim()


async def _answered(walk: Walk) -> None:
    await walk.claim()
    assert (await walk.complete()).error is None
    await walk.call.answer()


async def _delivered(walk: Walk) -> None:
    await _answered(walk)
    walk.service.sent(walk.call)


async def _undelivered(walk: Walk) -> None:
    await _answered(walk)
    walk.service.agent_left(walk.call)


async def _cancelled(walk: Walk) -> None:
    walk.service.agent_left(walk.call)
    walk.advance(GRACE_SECONDS)


async def _failed(walk: Walk) -> None:
    await walk.claim()
    assert (await walk.fail()).error is None


async def _queued(walk: Walk) -> None:
    pass


WAYS: dict[State, Callable[[Walk], Awaitable[None]]] = {
    State.QUEUED: _queued,
    State.LEASED: _leased,
    State.ANSWERED: _answered,
    State.DELIVERED: _delivered,
    State.UNDELIVERED: _undelivered,
    State.CANCELLED: _cancelled,
    State.FAILED: _failed,
}

# --- how each event comes about ---


async def _claim(walk: Walk) -> None:
    await walk.claim()


async def _complete(walk: Walk) -> None:
    legal = walk.call.state in (State.LEASED, State.ANSWERED, State.DELIVERED, State.UNDELIVERED)
    result = await walk.complete()
    assert (result.error is None) == legal  # the same completion again is no conflict


async def _expire(walk: Walk) -> None:
    walk.advance(SHORT_LEASE_SECONDS)


async def _release(walk: Walk) -> None:
    legal = walk.call.state is State.LEASED
    assert (walk.release().error is None) == legal


async def _fail(walk: Walk) -> None:
    if walk.call.state is State.QUEUED:  # no worker can; the session's time is up
        walk.advance(WALL_SECONDS)
        return
    legal = walk.call.state is State.LEASED
    assert ((await walk.fail()).error is None) == legal


async def _deadline(walk: Walk) -> None:
    walk.advance(DEADLINE_SECONDS)


async def _grace_over(walk: Walk) -> None:
    walk.service.agent_left(walk.call)
    walk.advance(GRACE_SECONDS)


async def _close(walk: Walk) -> None:
    await walk.service.close_session(walk.session.id)


async def _sent(walk: Walk) -> None:
    walk.service.sent(walk.call)


async def _agent_left(walk: Walk) -> None:
    walk.service.agent_left(walk.call)


async def _collect(walk: Walk) -> None:
    again = await walk.service.submit(walk.session, incoming(HI, retry=1))
    ended = walk.call.state in (State.CANCELLED, State.FAILED)
    assert (again is walk.call) != ended


CAUSES: dict[Event, Callable[[Walk], Awaitable[None]]] = {
    Event.CLAIM: _claim,
    Event.COMPLETE: _complete,
    Event.EXPIRE: _expire,
    Event.RELEASE: _release,
    Event.FAIL: _fail,
    Event.DEADLINE: _deadline,
    Event.GRACE_OVER: _grace_over,
    Event.CLOSE: _close,
    Event.SENT: _sent,
    Event.AGENT_LEFT: _agent_left,
    Event.COLLECT: _collect,
}
LED_BY = {Event.GRACE_OVER: (Event.AGENT_LEFT, Event.GRACE_OVER)}
"""A grace can only be over for an agent that left."""


def after(state: State, event: Event) -> State:
    """Where a cause leads: a pair that is not in the table changes nothing."""
    for one in LED_BY.get(event, (event,)):
        state = TRANSITIONS.get((state, one), state)
    return state


def recovered(state: State) -> State:
    """What a restart makes of a state: leases and connections are gone."""
    if state is State.LEASED:
        return State.QUEUED
    return State.UNDELIVERED if state is State.ANSWERED else state


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
async def test_every_event_in_every_state_leads_where_the_table_says(
    tmp_path: Path, state: State, event: Event
) -> None:
    clock = FakeClock()
    bounds = {
        "cancel_grace_seconds": GRACE_SECONDS,
        "call_deadline_seconds": DEADLINE_SECONDS,
        "restart_grace_seconds": LONG_LEASE_SECONDS,
    }
    async with running(tmp_path, clock, **bounds) as service:
        limits = wire.SessionLimits()
        if (state, event) == (State.QUEUED, Event.FAIL):
            limits.max_wall_seconds = WALL_SECONDS
        session = await open_session(service, limits=limits)
        call = await ask(service, session, HI)
        seconds = SHORT_LEASE_SECONDS if event is Event.EXPIRE else LONG_LEASE_SECONDS
        walk = Walk(service, clock, session, call, seconds)
        await WAYS[state](walk)
        assert call.state is state
        await CAUSES[event](walk)
        expected = after(state, event)
        assert call.state is expected
        told = service.trajectory(session.id).calls[0].state
        assert told == expected
    async with running(tmp_path, clock, **bounds) as service:
        told = service.trajectory(session.id).calls[0].state
        assert told == recovered(expected)


def test_the_walks_cover_the_table() -> None:
    assert {*WAYS} == {*State}
    assert {*CAUSES} == {*Event}
