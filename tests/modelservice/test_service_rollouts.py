"""Groups travel to the trainer through the service, and survive its restart until acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from rock.errors import NotFound
from rock.modelservice import wire
from rock.modelservice.service.service import ModelService
from rock.modelservice.wire import groups as wire_groups
from rock.modelservice.wire.pulse import PulseRequest
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import running


def group(group_id: str, reward: float = 1.0) -> wire_groups.Group:
    row = wire.TokenRow("c/0", [1, 2], [0, 1], [0.0, -0.5], [wire.Span(1, 2, "sampled", "c", 1)])
    episode = wire_groups.GroupEpisode("e", 0, "s", {"class": "solved"}, reward, [row])
    return wire_groups.Group(group_id, "run", "task", 1, [episode])


async def take(service: ModelService, wait: float = 0.0) -> list[wire_groups.ClaimedGroup]:
    request = wire_groups.RolloutClaimRequest(
        worker_id="t", max_groups=9, lease_seconds=10.0, wait_seconds=wait
    )
    return (await service.claim_groups(request)).groups


async def test_a_group_reaches_the_trainer_whole_and_once(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        assert (await service.publish_group(group("g"))).accepted
        assert not (await service.publish_group(group("g", reward=0.0))).accepted
        (claimed,) = await take(service)
        assert claimed.group == group("g")
        assert await take(service) == []
        reply = await service.ack_groups(wire_groups.RolloutAckRequest([claimed.lease_id, "nope"]))
        assert [result.error and result.error.code for result in reply.results] == [
            None,
            "lease_lost",
        ]
        again = await service.ack_groups(wire_groups.RolloutAckRequest([claimed.lease_id]))
        assert again.results[0].error is None
        assert service.group_status("g").state == "acknowledged"
        with pytest.raises(NotFound):
            service.group_status("other")


async def test_a_waiting_trainer_is_woken_by_a_group(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        waiting = asyncio.create_task(take(service, wait=30.0))
        await asyncio.sleep(0)
        await service.publish_group(group("g"))
        async with asyncio.timeout(5):
            assert len(await waiting) == 1


async def test_an_unacknowledged_group_comes_again(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        await service.publish_group(group("g"))
        (first,) = await take(service)
        clock.advance(10.0)
        service.tick()
        (second,) = await take(service)
        assert (second.group, second.delivery) == (first.group, 2)


async def test_a_restart_keeps_published_groups_and_forgets_consumed_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for name in ("consumed", "claimed", "pending"):
            await service.publish_group(group(name))
        consumed = (await take(service))[0]
        await service.ack_groups(wire_groups.RolloutAckRequest([consumed.lease_id]))
    async with running(tmp_path) as service:
        assert [one.group.group_id for one in await take(service)] == ["claimed", "pending"]
        assert service.group_status("consumed").state == "acknowledged"
        assert not (await service.publish_group(group("consumed"))).accepted


async def test_a_trainer_in_the_middle_of_a_step_does_not_notice_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for name in ("trained", "said", "other"):
            await service.publish_group(group(name))
        trained, said, _ = await take(service)
        await service.ack_groups(wire_groups.RolloutAckRequest([said.lease_id], step=1))
        await service.compact()
    leases = [trained.lease_id, said.lease_id]
    async with running(tmp_path) as service:
        reply = await service.ack_groups(wire_groups.RolloutAckRequest(leases, step=2))
        assert [result.error for result in reply.results] == [None, None]
        assert [service.group_status(name).step for name in ("trained", "said")] == [2, 1]
        (left,) = await take(service)
        assert (left.group.group_id, left.delivery) == ("other", 2)
        await service.compact()
    async with running(tmp_path) as service:
        again = await service.ack_groups(wire_groups.RolloutAckRequest([*leases, left.lease_id]))
        assert [result.error for result in again.results] == [None, None, None]


async def test_a_revision_and_the_step_that_consumed_it_survive_restart_and_compaction(
    tmp_path: Path,
) -> None:
    later = msgspec.structs.replace(group("g", reward=0.5), revision=1)
    async with running(tmp_path) as service:
        await service.publish_group(group("g"))
        assert (await service.publish_group(later)).accepted
        assert not (await service.publish_group(group("g"))).accepted
        await service.publish_group(group("other"))
    async with running(tmp_path) as service:
        first, _ = await take(service)
        assert first.group == later
        await service.ack_groups(wire_groups.RolloutAckRequest([first.lease_id], step=12))
        await service.compact()
    async with running(tmp_path) as service:
        assert service.group_status("g").step == 12
        assert [one.group.group_id for one in await take(service)] == ["other"]


async def test_one_pulse_tells_of_sessions_groups_and_policy(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        opened = await service.create_session(wire.SessionSpec())
        aged = msgspec.structs.replace(group("g"), oldest_version=1, max_staleness=0)
        await service.publish_group(aged)
        await service.policy(wire.PolicyUpdate(version=2))
        request = PulseRequest(session_ids=[opened.session_id, "gone"], group_ids=["g", "nope"])
        reply = await service.pulse(request)
        assert reply.policy.version == 2
        assert [one.session_id for one in reply.sessions] == [opened.session_id]
        assert reply.sessions[0].last_call_age_seconds is None
        assert [(one.group_id, one.state) for one in reply.groups] == [("g", "stale")]
        await service.close_session(opened.session_id)
        assert (await service.pulse(request)).sessions == []
