"""A service that runs for days: closed sessions leave memory, the journal stays small, nothing is lost.

What is promised is checked against the trajectory as it was before.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rock.errors import JournalError, LeaseLost, NotFound, SessionClosed, Unauthorized
from rock.modelservice import wire
from rock.modelservice.service.service import ModelService, NewSession
from rock.modelservice.service.upkeep import LOOK_SECONDS
from rock.modelservice.wire import groups as wire_groups
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from rock.types import SessionId
from tests.modelservice.fixtures import (
    answered,
    ask,
    assistant,
    claim,
    complete,
    completion,
    running,
    until,
    user,
)
from tests.modelservice.live import admin_of, raw_agent

HI = user("hi")
DAY = 86_400.0


async def new(service: ModelService, **spec: Any) -> NewSession:
    return await service.create_session(wire.SessionSpec(**spec))


async def converse(service: ModelService, made: NewSession, name: str = "x") -> None:
    """Two turns with tokens, one call that failed."""
    session = service.session(made.session_id)
    await answered(service, session, user(name), text="hello")
    messages = (user(name), assistant("hello"), user("more"))
    tokens: Any = {"prompt": [1, 2, 3, 10, 11, 4], "ids": [12], "logprobs": [-0.5]}
    await answered(service, session, *messages, **tokens)
    await ask(service, session, user("failing"))
    (lease,) = await claim(service)
    await service.fail(wire.FailRequest([wire.Failure(lease.lease_id, message="no")]))


async def closed(service: ModelService, clock: FakeClock, name: str = "x") -> NewSession:
    """A session with a history, closed and out of memory."""
    made = await new(service, labels={"name": name})
    await converse(service, made, name)
    await service.close_session(made.session_id)
    clock.advance(service.config.evict_seconds)
    service.tick()
    return made


def exist(folder: Path, pattern: str) -> bool:
    return bool(list(folder.glob(pattern)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


async def test_a_closed_session_leaves_memory_and_still_tells_everything(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        made = await new(service, labels={"a": "b"})
        await converse(service, made)
        (late,) = await claim_one(service, made)
        info = await service.close_session(made.session_id)
        before = wire.encode(service.trajectory(made.session_id))
        book = service._book  # pyright: ignore[reportPrivateUsage] - it is what must shrink
        assert len(book.calls) == 4
        clock.advance(service.config.evict_seconds)
        service.tick()
        assert len(book.calls) == 0
        assert wire.encode(service.trajectory(made.session_id)) == before
        assert wire.encode(await service.read_trajectory(made.session_id)) == before
        again = await service.read_session_info(made.session_id)
        assert (again.calls, again.failed, again.labels) == (info.calls, info.failed, {"a": "b"})
        assert (await service.close_session(made.session_id)).close_reason == "finished"
        with pytest.raises(SessionClosed, match="finished"):
            service.authenticate(made.key)
        with pytest.raises(SessionClosed):
            service.session(made.session_id)
        (result,) = await complete(service, completion(late))
        assert result.error is not None
        assert result.error.code == LeaseLost.code
        with pytest.raises(NotFound):
            service.trajectory(SessionId("nobody"))


async def claim_one(service: ModelService, made: NewSession) -> list[wire.Lease]:
    await ask(service, service.session(made.session_id), user("open"))
    return await claim(service)


async def test_a_session_stays_while_somebody_reads_an_answer_of_it(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, evict_seconds=1.0) as service:
        made = await new(service)
        call = await ask(service, service.session(made.session_id), HI)
        (lease,) = await claim(service)
        await complete(service, completion(lease))
        await service.close_session(made.session_id)
        clock.advance(5.0)
        service.tick()
        assert service.session(made.session_id).close_reason == "finished"
        service.sent(call)
        service.tick()
        assert service.session(made.session_id).close_reason == "finished"  # not on disk yet
        await asyncio.sleep(0)
        clock.advance(5.0)
        service.tick()
        with pytest.raises(SessionClosed):
            service.session(made.session_id)
        assert service.trajectory(made.session_id).calls[0].state == "delivered"


async def test_an_agent_of_a_session_on_disk_hears_410(tmp_path: Path) -> None:
    async with running_service(tmp_path, evict_seconds=0.0) as service, admin_of(service) as admin:
        session = await admin.create_session()
        await admin.close_session(session.session_id)

        def out_of_memory() -> bool:
            return session.session_id in service.service._engine.shelf  # pyright: ignore[reportPrivateUsage]

        async with asyncio.timeout(5):
            while not out_of_memory():  # noqa: ASYNC110 - the service tells nobody
                await asyncio.sleep(0.01)
        async with raw_agent(service, session.key) as client:
            reply = await client.post("/v1/chat/completions", json={"model": "m", "messages": [HI]})
        assert reply.status_code == 410
        assert reply.json()["error"]["code"] == "session_closed"
        assert (await admin.trajectory(session.session_id)).calls == []
        assert (await admin.session(session.session_id)).close_reason == "finished"


async def test_compaction_keeps_what_is_open_and_archives_what_is_over(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        over = [await closed(service, clock, f"over {n}") for n in range(3)]
        live = await new(service)
        await converse(service, live)
        await service.policy(wire.PolicyUpdate(version=7))
        await groups(service)
        queued = await ask(service, service.session(live.session_id), user("queued"))
        everyone = [made.session_id for made in (*over, live)]
        before = [wire.encode(service.trajectory(one)) for one in everyone]
        for round in range(3):
            await service.compact()
            kept = [wire.encode(service.trajectory(one)) for one in everyone]
            assert kept == before, f"round {round}"
        assert names(tmp_path) == ["archive-00000001.log", "base-00000003.log", "journal.log"]
        for made in over:
            with pytest.raises(SessionClosed):
                service.authenticate(made.key)
    async with running(tmp_path) as service:
        after = [service.trajectory(one) for one in everyone]
        assert after[-1].calls[-1].cut_off
        after[-1].calls[-1].cut_off = False
        assert [wire.encode(one) for one in after] == before
        assert service.stats().policy.version == 7
        assert [lease.call_id for lease in await claim(service, 9)] == [queued.id]
        request = wire_groups.RolloutClaimRequest(worker_id="w", max_groups=9, wait_seconds=0.0)
        left = (await service.claim_groups(request)).groups
        assert [one.group.group_id for one in left] == ["waits"]
        assert not (await service.publish_group(group("consumed"))).accepted
        await answered_later(service, live)


def group(name: str) -> wire_groups.Group:
    return wire_groups.Group(group_id=name, run_id="r", task_id="t", size=0, episodes=[])


async def groups(service: ModelService) -> None:
    for name in ("consumed", "waits"):
        await service.publish_group(group(name))
    request = wire_groups.RolloutClaimRequest(worker_id="w", wait_seconds=0.0)
    (one,) = (await service.claim_groups(request)).groups
    await service.ack_groups(wire_groups.RolloutAckRequest([one.lease_id]))


async def answered_later(service: ModelService, live: NewSession) -> None:
    """A conversation from before goes on as if nothing had happened."""
    session = service.session(live.session_id)
    call = await ask(service, session, user("x"), assistant("hello"), user("more"), user("on"))
    assert call.parent is not None


async def test_what_happens_during_a_compaction_is_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        await closed(service, clock)
        live = await new(service)
        await converse(service, live)
        compacting = asyncio.create_task(service.compact())
        turns = 0
        while not compacting.done():
            await answered(service, service.session(live.session_id), user(f"turn {turns}"))
            turns += 1
            await asyncio.sleep(0)
        await compacting
        assert turns > 0
        other = await new(service)
        await converse(service, other)
        before = [wire.encode(service.trajectory(one.session_id)) for one in (live, other)]
        await service.close_session(other.session_id)
        clock.advance(service.config.evict_seconds)
        service.tick()
        await service.compact()
    async with running(tmp_path) as service:
        info = service.session_info(live.session_id)
        assert info.calls == 3 + turns
        assert wire.encode(service.trajectory(live.session_id)) == before[0]
        assert service.trajectory(other.session_id).rows


async def test_a_restart_that_cut_a_call_off_is_remembered_on_disk(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        made = await new(service)
        await ask(service, service.session(made.session_id), HI)
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        (lease,) = await claim(service)
        await complete(service, completion(lease))
        await service.close_session(made.session_id)
        before = wire.encode(service.trajectory(made.session_id))
        assert b'"cut_off":true' in before
        clock.advance(service.config.evict_seconds)
        service.tick()
        assert wire.encode(service.trajectory(made.session_id)) == before
        await service.compact()
        assert wire.encode(service.trajectory(made.session_id)) == before


async def test_a_start_reads_closed_sessions_not_into_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        made = await new(service)
        await converse(service, made)
        await service.close_session(made.session_id)
        before = wire.encode(service.trajectory(made.session_id))
    async with running(tmp_path) as service:
        assert service._book.calls == {}  # pyright: ignore[reportPrivateUsage]
        assert wire.encode(service.trajectory(made.session_id)) == before


async def test_the_journal_compacts_itself_when_it_has_grown(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, compact_bytes=20_000) as service:
        made: list[NewSession] = []
        while not exist(tmp_path, "*-*.log"):
            made.append(await closed(service, clock, f"n{len(made)}"))
            await asyncio.sleep(0)
            assert len(made) < 100, "it never compacted"
        await until(lambda: exist(tmp_path, "base-*.log") and not exist(tmp_path, "journal-*.log"))
        # What came while it compacted is in the new active file; it began anew all the same.
        assert (tmp_path / "journal.log").stat().st_size < 2 * 20_000
        for one in made:
            assert len(service.trajectory(one.session_id).calls) == 3


async def test_a_journal_of_sessions_that_go_on_is_not_copied(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, compact_bytes=4096) as service:
        live = [await new(service) for _ in range(4)]
        while (tmp_path / "journal.log").stat().st_size < 3 * 4096:
            for one in live:
                await converse(service, one)
            clock.advance(LOOK_SECONDS + 1)
            service.tick()
            assert names(tmp_path) == ["journal.log"]
        before = [wire.encode(service.trajectory(one.session_id)) for one in live]
        # A quarter of it is over now.
        await service.close_session(live[0].session_id)
        clock.advance(service.config.evict_seconds + 1)
        service.tick()
        clock.advance(LOOK_SECONDS + 1)
        service.tick()
        await until(lambda: exist(tmp_path, "base-*.log") and not exist(tmp_path, "journal-*.log"))
        after = [wire.encode(service.trajectory(one.session_id)) for one in live]
        assert after[1:] == before[1:]


async def test_statistics_count_the_calls_of_sessions_that_are_only_on_disk(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        for number in range(3):
            await closed(service, clock, f"n{number}")
            if number:
                await service.compact()  # one by one, and one that has a marker already
        live = await new(service)
        await converse(service, live)
        cancelled = await new(service)
        await ask(service, service.session(cancelled.session_id), HI)
        await service.close_session(cancelled.session_id)
        before = service.stats()
        assert (before.answered, before.failed, before.cancelled) == (8, 4, 1)
    for _ in range(2):
        async with running(tmp_path) as service:
            assert service.stats() == before
            await service.compact()
            assert service.stats() == before


async def test_what_is_older_than_the_bound_is_forgotten(tmp_path: Path) -> None:
    clock, wall = FakeClock(), FakeClock(1_800_000_000.0)
    settings: Any = {"wall": wall, "keep_closed_seconds": 2 * DAY}
    async with running(tmp_path, clock, **settings) as service:
        old = await closed(service, clock, "old")
        await service.compact()
        wall.advance(DAY)
        young = await closed(service, clock, "young")
        await service.compact()
        wall.advance(1.5 * DAY)
        await service.compact()
        with pytest.raises(NotFound):
            service.trajectory(old.session_id)
        with pytest.raises(Unauthorized):
            service.authenticate(old.key)
        assert service.trajectory(young.session_id).calls
        assert names(tmp_path) == ["archive-00000002.log", "base-00000003.log", "journal.log"]
    async with running(tmp_path, wall=wall, keep_closed_seconds=2 * DAY) as service:
        assert service.trajectory(young.session_id).calls
        with pytest.raises(Unauthorized):
            service.authenticate(old.key)


# --- kills and faults ---


async def _compacted_twice(folder: Path) -> tuple[list[NewSession], list[bytes]]:
    """A journal with a base, an archive and more since; every trajectory of it."""
    clock = FakeClock()
    async with running(folder, clock) as service:
        made = [await closed(service, clock, "one")]
        made.append(await new(service))
        await converse(service, made[1])
        await service.compact()
        made.append(await closed(service, clock, "two"))
        return made, [wire.encode(service.trajectory(one.session_id)) for one in made]


async def _check(folder: Path, made: list[NewSession], before: list[bytes]) -> None:
    async with running(folder) as service:
        assert [wire.encode(service.trajectory(one.session_id)) for one in made] == before
        await service.compact()
        assert [wire.encode(service.trajectory(one.session_id)) for one in made] == before


async def test_a_kill_at_any_step_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    whole = tmp_path / "before"
    made, before = await _compacted_twice(whole)
    after = tmp_path / "after"
    shutil.copytree(whole, after)
    async with running(after) as service:
        await service.compact()
    assert "base-00000002.log" in names(after)

    def crashed(name: str, *, sealed: bool, add: list[str]) -> Path:
        """The state before, with what the compaction had done when it was killed."""
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        if sealed:
            (folder / "journal.log").rename(folder / "journal-00000002.log")
        for path in add:
            target = path.removesuffix(".new")
            shutil.copy(after / target, folder / path)
        return folder

    states = {
        "sealed, no active file yet": crashed("a", sealed=True, add=[]),
        "sealed, new active file": crashed("b", sealed=True, add=["journal.log"]),
        "archive half done": crashed("c", sealed=True, add=["journal.log", "archive-00000002.log"]),
        "base not renamed": crashed(
            "d",
            sealed=True,
            add=["journal.log", "archive-00000002.log", "base-00000002.log.new"],
        ),
        "old files not removed": crashed(
            "e", sealed=True, add=["journal.log", "archive-00000002.log", "base-00000002.log"]
        ),
    }
    content = (states["archive half done"] / "archive-00000002.log").read_bytes()
    (states["archive half done"] / "archive-00000002.log").write_bytes(content[:-20])
    for folder in states.values():
        await _check(folder, made, before)
        assert "journal-00000002.log" not in names(folder)
        assert not exist(folder, "*.new")


@contextmanager
def file_size_limit(size: int) -> Generator[None, None, None]:
    """Writing beyond `size` bytes of any file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


async def test_a_disk_without_room_for_a_compaction_stops_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        live = await new(service)
        session = service.session(live.session_id)
        for turn in range(20):
            await answered(service, session, user(f"{turn}" * 200))
        over = await closed(service, clock)
        everyone = (live.session_id, over.session_id)
        before = [wire.encode(service.trajectory(one)) for one in everyone]
        with file_size_limit(2000):
            with pytest.raises(OSError, match="too large"):
                await service.compact()
            assert [wire.encode(service.trajectory(one)) for one in everyone] == before
            await answered(service, session, user("goes on"))
        assert names(tmp_path) == ["journal-00000001.log", "journal.log"]
        await service.compact()
        assert names(tmp_path) == ["archive-00000002.log", "base-00000002.log", "journal.log"]
        assert wire.encode(service.trajectory(over.session_id)) == before[1]
        assert service.session_info(live.session_id).calls == 21


@pytest.mark.parametrize("name", ["base-00000001.log", "journal-00000002.log"])
async def test_a_sealed_file_that_is_damaged_is_refused(tmp_path: Path, name: str) -> None:
    await _compacted_twice(tmp_path)
    if name.startswith("journal"):
        (tmp_path / "journal.log").rename(tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    middle = len(whole) // 2
    for content in (whole[:-10], whole[:middle] + b"\0" + whole[middle + 1 :]):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(JournalError, match=f"{name} is corrupt at byte"):
            async with running(tmp_path):
                pass
        assert (tmp_path / name).read_bytes() == content


async def test_a_damaged_archive_is_an_error_of_that_session_only(tmp_path: Path) -> None:
    made, before = await _compacted_twice(tmp_path)
    path = tmp_path / "archive-00000001.log"
    content = path.read_bytes()
    path.write_bytes(content[:-30] + b"x" * 30)
    async with running(tmp_path) as service:
        with pytest.raises(JournalError, match=r"archive-00000001.log is damaged"):
            await service.read_trajectory(made[0].session_id)
        assert wire.encode(service.trajectory(made[1].session_id)) == before[1]


async def test_a_service_that_stops_ends_its_compaction(tmp_path: Path) -> None:
    made, before = await _compacted_twice(tmp_path)
    async with running(tmp_path, compact_bytes=4096, compact_share=0.0) as service:
        service.tick()
    await _check(tmp_path, made, before)
