"""A service of several processes: placement, fair claims, one shard killed, one URL for all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rock.errors import ConfigError, NotFound, ServiceUnavailable
from rock.modelservice.client.shards import AdminShards, TrainerShards
from rock.modelservice.client.worker import serve
from rock.modelservice.hosting.fleet import ServiceFleet
from rock.modelservice.sharding import id_prefix, shard_of, shares, split
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease, SessionCreated
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.live import HELLO, eventually, last_text


def admin_of(fleet: ServiceFleet) -> AdminShards:
    return AdminShards(fleet.control_url, fleet.keys.admin_key)


def trainer_of(fleet: ServiceFleet) -> TrainerShards:
    return TrainerShards(fleet.control_url, fleet.keys.trainer_key)


async def sessions_on(admin: AdminShards, counts: list[int]) -> list[SessionCreated]:
    """So many sessions on each shard; sessions are placed in turn."""
    made: dict[int, list[SessionCreated]] = {shard: [] for shard in range(len(counts))}
    for _ in range(max(counts) * len(counts)):
        session = await admin.create_session()
        made[shard_of(session.session_id, len(counts))].append(session)
    return [one for shard, count in enumerate(counts) for one in made[shard][:count]]


async def ask(session: SessionCreated, text: str = "hi") -> str:
    body = {**HELLO, "messages": [{"role": "user", "content": text}]}
    async with httpx.AsyncClient(timeout=60) as http:
        reply = await http.post(f"{session.base_url}/chat/completions", json=body)
    reply.raise_for_status()
    return reply.json()["choices"][0]["message"]["content"]


@asynccontextmanager
async def asking(
    sessions: list[SessionCreated], trainer: TrainerShards
) -> AsyncGenerator[list[asyncio.Task[str]], None]:
    """One parked call for each session."""
    tasks = [asyncio.create_task(ask(session)) for session in sessions]

    async def parked() -> bool:
        return (await trainer.stats()).queued == len(sessions)

    try:
        await eventually(parked)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answers(leases: list[Lease]) -> list[Completion]:
    return [
        Completion(
            lease_id=lease.lease_id, choices=[Choice(message=AssistantMessage(content="done"))]
        )
        for lease in leases
    ]


def shards_of(leases: list[Lease], shards: int) -> Counter[int]:
    return Counter(shard_of(lease.session_id, shards) for lease in leases)


def test_an_id_says_its_shard() -> None:
    assert id_prefix(None) == "s"
    assert shard_of(id_prefix(7) + "ab12.0.1-1", 8) == 7
    assert shard_of("s0123456789ab", 1) == 0


@pytest.mark.parametrize("id", ["s0123456789ab", "s3-ab", "sx-ab", "", "3-ab"])
def test_an_id_of_another_service_is_not_found(id: str) -> None:
    with pytest.raises(NotFound):
        shard_of(id, 3)


def test_items_go_to_their_shards_and_unknown_ones_to_the_first() -> None:
    assert split(["s1-a", "s0-b", "?", "s1-c"], str, 2) == {1: [0, 3], 0: [1, 2]}


def test_room_is_shared_equally_and_never_exceeded() -> None:
    assert shares(7, [2, 0, 1]) == {2: 3, 0: 2, 1: 2}
    assert shares(2, [2, 0, 1]) == {2: 1, 0: 1}


async def test_one_trainer_answers_the_sessions_of_all_shards_from_one_url(tmp_path: Path) -> None:
    async with ServiceFleet(tmp_path, shards=3) as fleet, admin_of(fleet) as admin:
        sessions = await sessions_on(admin, [2, 2, 2])
        ports = {session.base_url.split("/")[2] for session in sessions}
        assert ports == {url.removeprefix("http://") for url in fleet.agent_urls}
        policy = ScriptedPolicy(lambda lease: f"echo {last_text(lease)}")
        key = fleet.keys.trainer_key
        task = asyncio.create_task(serve(policy, url=fleet.control_urls[1], key=key))
        try:
            said = await asyncio.gather(*(ask(one, one.session_id) for one in sessions))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert [one.session_id in text for one, text in zip(sessions, said, strict=True)] == [
            True
        ] * len(sessions)
        for session in sessions:
            assert (await admin.session(session.session_id)).answered == 1
            assert len((await admin.trajectory(session.session_id)).calls) == 1
            info = await admin.close_session(session.session_id)
            assert info.state == "closed"
        await admin.health()


async def test_a_busy_shard_starves_no_other_and_leaves_no_room_unused(tmp_path: Path) -> None:
    async with (
        ServiceFleet(tmp_path, shards=2) as fleet,
        admin_of(fleet) as admin,
        trainer_of(fleet) as trainer,
        asking(await sessions_on(admin, [6, 2]), trainer) as asked,
    ):
        first = (await trainer.claim("w", max_leases=4)).leases
        assert shards_of(first, 2) == {0: 2, 1: 2}
        rest = (await trainer.claim("w", max_leases=3)).leases
        assert shards_of(rest, 2) == {0: 3}
        last = (await trainer.claim("w", max_leases=1)).leases
        assert len(last) == 1
        assert (await trainer.claim("w", wait_seconds=0)).leases == []
        results = await trainer.complete(answers([*first, *rest, *last]))
        assert [result.error for result in results] == [None] * 8
        assert await asyncio.gather(*asked) == ["done"] * 8
        stats = await trainer.stats()
        assert (stats.answered, stats.open_sessions, stats.redelivered) == (8, 12, 0)


async def test_a_waiting_claim_sees_a_call_on_any_shard(tmp_path: Path) -> None:
    async with (
        ServiceFleet(tmp_path, shards=2) as fleet,
        admin_of(fleet) as admin,
        trainer_of(fleet) as trainer,
    ):
        for session in await sessions_on(admin, [1, 1]):
            claim = asyncio.create_task(trainer.claim("w", wait_seconds=30))
            asked = asyncio.create_task(ask(session))
            leases = (await claim).leases
            assert [lease.session_id for lease in leases] == [session.session_id]
            await trainer.complete(answers(leases))
            assert await asked == "done"


async def test_a_paused_policy_is_paused_on_all_shards(tmp_path: Path) -> None:
    async with (
        ServiceFleet(tmp_path, shards=2) as fleet,
        admin_of(fleet) as admin,
        trainer_of(fleet) as trainer,
        asking(await sessions_on(admin, [1, 1]), trainer),
    ):
        status = await trainer.policy(version=4, state="paused")
        assert (status.state, status.version) == ("paused", 4)
        reply = await trainer.claim("w", max_leases=4, wait_seconds=0)
        assert (reply.leases, reply.policy_state) == ([], "paused")
        await trainer.policy(state="running")
        assert len((await trainer.claim("w", max_leases=4)).leases) == 2


async def test_a_killed_shard_comes_back_with_its_calls_and_refuses_nobody(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(ServiceFleet(tmp_path, shards=2))
        admin = await stack.enter_async_context(admin_of(fleet))
        trainer = await stack.enter_async_context(trainer_of(fleet))
        well, hit = await sessions_on(admin, [1, 1])
        async with asking([hit], trainer) as asked:
            pid = fleet.shards[1].pid
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):  # its connection is gone, its call is not
                await asked[0]
            # Nobody waits for the other shard, and nobody is refused by this one.
            again = asyncio.create_task(ask(hit, "second"))
            well_asked = asyncio.create_task(ask(well))
            found: list[Lease] = []
            async with asyncio.timeout(30):
                while not any(lease.session_id == well.session_id for lease in found):
                    found += (await trainer.claim("w", max_leases=1, wait_seconds=5)).leases
            mine = [lease for lease in found if lease.session_id == well.session_id]
            await trainer.complete(answers(mine))
            assert await well_asked == "done"
            found = [lease for lease in found if lease not in mine]
            async with asyncio.timeout(30):
                while len(found) < 2:
                    found += (await trainer.claim("w", max_leases=4, wait_seconds=5)).leases
            assert {last_text(lease) for lease in found} == {
                '{"role":"user","content":"hi"}',
                '{"role":"user","content":"second"}',
            }
            results = await trainer.complete(answers(found))
            assert [result.error for result in results] == [None, None]
            assert await again == "done"
        async with asyncio.timeout(30):
            while not is_back(fleet, pid):  # noqa: ASYNC110 - it serves before it is known to
                await asyncio.sleep(0.02)
        assert (await admin.session(hit.session_id)).calls == 2


async def test_a_shard_that_hangs_holds_up_neither_claims_nor_renewals(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(ServiceFleet(tmp_path, shards=2))
        admin = await stack.enter_async_context(admin_of(fleet))
        trainer = await stack.enter_async_context(trainer_of(fleet))
        well, hung = await sessions_on(admin, [1, 1])
        async with asking([well, hung], trainer):
            [first, second] = (await trainer.claim("w", max_leases=2)).leases
            pid = fleet.shards[1].pid
            os.kill(pid, signal.SIGSTOP)
            try:
                again = asyncio.create_task(ask(well, "more"))
                async with asyncio.timeout(20):
                    found = (await trainer.claim("w", max_leases=2, wait_seconds=10)).leases
                    assert [lease.session_id for lease in found] == [well.session_id]
                    results = await trainer.renew(
                        [first.lease_id, second.lease_id], lease_seconds=6.0
                    )
                codes = {one.lease_id: one.error and one.error.code for one in results}
                here, there = sorted(
                    (first, second), key=lambda lease: lease.session_id == hung.session_id
                )
                assert codes == {here.lease_id: None, there.lease_id: "service_unavailable"}
                await trainer.renew([here.lease_id])  # for a minute again
                await trainer.complete(answers(found))
                assert await again == "done"
            finally:
                os.kill(pid, signal.SIGCONT)
            results = await trainer.complete(answers([first, second]))
            assert [result.error for result in results] == [None, None]


async def test_a_shard_that_is_gone_costs_only_its_own_items(tmp_path: Path) -> None:
    async with (
        running_service(tmp_path / "shard", shard=0) as service,
        TrainerShards(
            [service.control_url, "http://127.0.0.1:1"], service.keys.trainer_key, retry_seconds=0.1
        ) as trainer,
        AdminShards(
            [service.control_url, "http://127.0.0.1:1"], service.keys.admin_key, retry_seconds=0.1
        ) as admin,
    ):
        sessions = [await admin.create_session() for _ in range(4)]  # where there is room
        asked = [asyncio.create_task(ask(session)) for session in sessions]
        found: list[Lease] = []
        async with asyncio.timeout(20):
            while len(found) < 4:
                found += (await trainer.claim("w", max_leases=8, wait_seconds=2)).leases
        elsewhere = Completion(lease_id="s1-x.0.1-1", choices=answers(found)[0].choices)
        results = await trainer.complete([elsewhere, *answers(found)])
        assert [one.error and one.error.code for one in results] == [
            "service_unavailable",
            *[None] * 4,
        ]
        assert await asyncio.gather(*asked) == ["done"] * 4
        assert (await trainer.cancelled("w", wait_seconds=0)).lease_ids == []
        with pytest.raises(ServiceUnavailable):
            await trainer.complete([elsewhere])
        with pytest.raises(ServiceUnavailable):
            await trainer.stats()


async def test_when_all_shards_are_gone_a_claim_says_so(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    async with TrainerShards(urls, "key", retry_seconds=0.1) as trainer, asyncio.timeout(10):
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            await trainer.claim("w", wait_seconds=60)
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            await trainer.cancelled("w", wait_seconds=60)


def is_back(fleet: ServiceFleet, old_pid: int) -> bool:
    try:
        return fleet.shards[1].pid != old_pid
    except ServiceUnavailable:
        return False


async def test_a_service_of_one_process_is_used_in_the_same_way(tmp_path: Path) -> None:
    async with (
        running_service(tmp_path) as service,
        AdminShards(service.control_url, service.keys.admin_key) as admin,
        TrainerShards(service.control_url, service.keys.trainer_key) as trainer,
        asking([await admin.create_session()], trainer) as asked,
    ):
        assert trainer.urls == [service.control_url]
        leases = (await trainer.claim("w")).leases
        await trainer.complete(answers(leases))
        assert await asked[0] == "done"


async def test_a_state_directory_of_more_shards_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"shard-{number}").mkdir()
    with pytest.raises(ConfigError, match="--shards 3"):
        async with ServiceFleet(tmp_path, shards=2):
            pass


async def test_a_state_directory_without_shards_is_refused(tmp_path: Path) -> None:
    async with running_service(tmp_path):
        pass
    with pytest.raises(ConfigError, match="without shards"):
        async with ServiceFleet(tmp_path, shards=2):
            pass
