"""A weight update behind the service: agents wait and never notice; versions and staleness add up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rock.modelservice import wire
from rock.modelservice.client.worker import Worker
from rock.modelservice.states import State
from rock.modelservice.wire import Completion, Lease
from rock.modelservice.wire.partial import Partial, PartialRequest
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from tests.modelservice.fixtures import (
    answered,
    ask,
    claim,
    complete,
    completion,
    open_session,
    running,
    until,
    user,
)
from tests.modelservice.live import agent, new_session, trainer_of

HI = user("hi")
USER: Any = {"role": "user", "content": "hi"}


async def test_a_lease_that_is_held_through_a_pause_does_not_expire_in_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service, lease_seconds=10.0)
        clock.advance(4.0)
        await service.policy(wire.PolicyUpdate(state="paused", mode="hold"))
        clock.advance(1000.0)
        service.tick()
        assert call.state is State.LEASED
        await service.policy(wire.PolicyUpdate(state="running", version=2))
        clock.advance(5.9)
        service.tick()
        assert call.state is State.LEASED
        clock.advance(0.1)  # the ten seconds it was given are over now
        service.tick()
        assert call.state is State.QUEUED
        (late,) = await complete(service, completion(lease))
        assert late.error is not None


async def test_a_renewal_during_a_hold_counts_from_the_resume(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service, lease_seconds=1.0)
        await service.policy(wire.PolicyUpdate(state="paused"))
        await service.policy(wire.PolicyUpdate(state="paused"))  # saying it twice is no harm
        service.renew(wire.RenewRequest([lease.lease_id], 20.0))
        clock.advance(100.0)
        await service.policy(wire.PolicyUpdate(state="running"))
        clock.advance(19.0)
        service.tick()
        assert call.state is State.LEASED


async def test_a_drain_lets_dead_workers_leases_expire(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, max_wait_seconds=5.0) as service:
        await ask(service, await open_session(service), HI)
        await claim(service, lease_seconds=1.0)
        await service.policy(wire.PolicyUpdate(state="paused", mode="hold"))
        draining = asyncio.create_task(
            service.policy(wire.PolicyUpdate(state="paused", mode="drain"))
        )
        await asyncio.sleep(0)
        clock.advance(1.0)
        service.tick()
        async with asyncio.timeout(4):
            assert (await draining).leased == 0


async def test_a_drain_does_not_wait_for_what_hosted_models_answer(tmp_path: Path) -> None:
    async with running(tmp_path, max_wait_seconds=50.0) as service:
        await ask(service, await open_session(service, backend="hosted"), HI)
        await ask(service, await open_session(service), HI)
        request = wire.ClaimRequest(worker_id="built-in", wait_seconds=0.0)
        assert len((await service.claim(request, backend="hosted")).leases) == 1
        (lease,) = await claim(service)
        draining = asyncio.create_task(
            service.policy(wire.PolicyUpdate(state="paused", mode="drain"))
        )
        await until(lambda: service.stats().policy.state == "paused")
        await complete(service, completion(lease))
        async with asyncio.timeout(5):
            assert (await draining).leased == 0


async def test_a_pause_survives_a_restart_and_replies_say_so(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        (lease,) = await claim(service)
        await service.policy(wire.PolicyUpdate(state="paused", version=3))
        partial = Partial(lease.lease_id, 0, "a")
        reply = await service.partial(PartialRequest(partials=[partial]))
        assert reply.policy_state == "paused"
    async with running(tmp_path) as service:
        request = wire.ClaimRequest(worker_id="w", wait_seconds=0.0)
        assert await service.claim(request) == wire.ClaimReply([], "paused")
        await service.policy(wire.PolicyUpdate(state="running"))
        assert len((await service.claim(request)).leases) == 1


async def test_a_session_may_set_its_own_bound_on_staleness(tmp_path: Path) -> None:
    async with running(tmp_path, max_staleness=1) as service:
        strict = await open_session(service, limits=wire.SessionLimits(max_staleness=0))
        usual = await open_session(service)
        loose = await open_session(service, limits=wire.SessionLimits(max_staleness=2))
        for session in (strict, usual, loose):
            await answered(service, session, HI, version=5)
        for session in (strict, usual, loose):
            await ask(service, session, user("two"))
        leases = await claim(service, 9, policy_version=7)
        assert [lease.session_id for lease in leases] == [loose.id]
        reasons = [service.session_info(s.id).close_reason for s in (strict, usual, loose)]
        assert reasons == ["stale", "stale", None]


async def test_staleness_counts_from_the_first_sampled_token_also_after_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, max_staleness=1) as service:
        session_id = (await open_session(service)).id
        await ask(service, service.session(session_id), HI)
        (lease,) = await claim(service, policy_version=1)
        await service.partial(PartialRequest(partials=[Partial(lease.lease_id, 0, "a")]))
    async with running(tmp_path, max_staleness=1) as service:
        # The answer goes on from tokens of version 1: version 3 must not finish it.
        assert await claim(service, policy_version=3) == []
        assert service.session_info(session_id).close_reason == "stale"


@pytest.mark.parametrize("mode", ["hold", "drain", "requeue"])
async def test_agents_notice_nothing_of_an_update(tmp_path: Path, mode: wire.PauseMode) -> None:
    """Agents ask all the time; the weights change three times; every reply is good."""
    version = 0

    async def policy(leases: list[Lease]) -> list[Completion]:
        return [completion(lease, f"v{version}", version=version) for lease in leases]

    async def converse(base_url: str) -> list[str]:
        async with agent(base_url) as client:
            replies = [
                await client.chat.completions.create(model="m", messages=[USER], seed=turn)
                for turn in range(12)
            ]
        return [reply.choices[0].message.content or "" for reply in replies]

    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        sessions = [await new_session(service) for _ in range(4)]
        stop = asyncio.Event()
        working = asyncio.ensure_future(Worker(policy, trainer).run(stop))
        talking = asyncio.gather(*(converse(session.base_url) for session in sessions))
        for _ in range(3):
            status = await trainer.policy(state="paused", mode=mode)
            assert status.state == "paused"
            assert mode == "hold" or status.leased == 0
            version += 1
            await trainer.policy(state="running", version=version)
        said = await talking
        stop.set()
        await working
    assert [len(one) for one in said] == [12] * 4
    assert all(one == sorted(one) for one in said)
