"""Deadlines hold over a restart, by the time of day; nothing waits without a bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from rock.errors import ContextLengthExceeded, DeadlineExceeded, SessionClosed
from rock.modelservice import wire
from rock.modelservice.states import State
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import ask, claim, open_session, running, user

HI = user("hi")
RESTARTED = 5_000_000.0
"""What the monotonic clock of another boot may say."""


async def test_a_calls_deadline_counts_the_time_in_which_no_service_ran(tmp_path: Path) -> None:
    wall = FakeClock(1_800_000_000.0)
    async with running(tmp_path, wall=wall, call_deadline_seconds=100.0) as service:
        session_id = (await open_session(service)).id
        call_id = (await ask(service, service.session(session_id), HI)).id
    wall.advance(60.0)
    clock = FakeClock(RESTARTED)
    async with running(
        tmp_path, clock, wall=wall, call_deadline_seconds=100.0, restart_grace_seconds=1000.0
    ) as service:
        clock.advance(39.9)
        service.tick()
        assert service.exported_call(session_id, call_id).state == "queued"
        clock.advance(0.2)
        service.tick()
        assert service.exported_call(session_id, call_id).error_code == DeadlineExceeded.code


async def test_a_sessions_deadline_and_wall_time_do_too(tmp_path: Path) -> None:
    wall = FakeClock(1_800_000_000.0)
    async with running(tmp_path, wall=wall) as service:
        ends = await open_session(
            service, limits=wire.SessionLimits(session_deadline_seconds=100.0)
        )
        used = await open_session(service, limits=wire.SessionLimits(max_wall_seconds=100.0))
    wall.advance(99.0)
    clock = FakeClock(RESTARTED)
    async with running(tmp_path, clock, wall=wall) as service:
        ends, used = service.session(ends.id), service.session(used.id)
        service.tick()
        assert (ends.open, used.open) == (True, True)
        clock.advance(1.1)
        service.tick()
        assert (ends.close_reason, used.close_reason) == ("expired", "limit")
        with pytest.raises(SessionClosed):
            await ask(service, ends, HI)
        with pytest.raises(ContextLengthExceeded):
            await ask(service, used, HI)


async def test_a_time_of_day_that_was_set_back_lengthens_nothing(tmp_path: Path) -> None:
    wall = FakeClock(1_800_000_000.0)
    async with running(tmp_path, wall=wall, call_deadline_seconds=100.0) as service:
        call = await ask(service, await open_session(service), HI)
    wall.advance(-1_000_000.0)
    clock = FakeClock(RESTARTED)
    async with running(
        tmp_path, clock, wall=wall, call_deadline_seconds=100.0, restart_grace_seconds=1000.0
    ) as service:
        clock.advance(100.1)
        service.tick()
        assert service.exported_call(call.session_id, call.id).state == "failed"


async def test_a_deadline_ends_a_call_that_was_being_answered(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        limits = wire.SessionLimits(call_deadline_seconds=5.0)
        call = await ask(service, await open_session(service, limits=limits), HI)
        await claim(service, lease_seconds=600.0)
        clock.advance(5.0)
        service.tick()
        assert call.state is State.FAILED
        with pytest.raises(DeadlineExceeded):
            await call.answer()
