"""When a journal is compacted: when enough of it is over, of whatever kind, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rock.errors import NotFound
from rock.modelservice.service.service import ModelService
from rock.modelservice.service.upkeep import LOOK_SECONDS
from rock.modelservice.wire import groups as wire_groups
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import answered, open_session, running, until, user

SMALL = 4096


async def group(service: ModelService, name: str, *, acknowledge: bool) -> None:
    """A group of some size that a trainer takes and, if so, acknowledges."""
    await service.publish_group(
        wire_groups.Group(group_id=name, run_id="r" * 500, task_id="t", size=0, episodes=[])
    )
    request = wire_groups.RolloutClaimRequest(worker_id="w", wait_seconds=0.0)
    (one,) = (await service.claim_groups(request)).groups
    if acknowledge:
        await service.ack_groups(wire_groups.RolloutAckRequest([one.lease_id]))


def size(folder: Path) -> int:
    """Of what is open, in bytes."""
    return sum(
        path.stat().st_size for name in ("journal", "base-*") for path in folder.glob(f"{name}.log")
    )


def names(folder: Path, pattern: str = "*.log") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


def is_compacted(folder: Path) -> bool:
    return bool(names(folder, "base-*.log")) and not names(folder, "journal-*.log")


def look(service: ModelService, clock: FakeClock) -> None:
    clock.advance(LOOK_SECONDS + 1)
    service.tick()


async def test_a_journal_of_acknowledged_groups_is_compacted(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, compact_bytes=SMALL) as service:
        for number in range(3 * SMALL // 500):
            await group(service, f"g{number}", acknowledge=True)
        before = size(tmp_path)
        look(service, clock)
        await until(lambda: is_compacted(tmp_path))
        assert size(tmp_path) < before / 2


async def test_what_compaction_writes_of_acknowledged_groups_is_not_over(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, compact_bytes=SMALL) as service:
        for number in range(12):
            await group(service, f"g{number}", acknowledge=True)
        assert service._engine.shelf.share_over() == 1  # pyright: ignore[reportPrivateUsage] - nobody else says it
        await service.compact()
        assert service._engine.shelf.share_over() == 0  # pyright: ignore[reportPrivateUsage]
    async with running(tmp_path, clock, compact_bytes=SMALL) as service:
        assert service._engine.shelf.share_over() == 0  # pyright: ignore[reportPrivateUsage]
        assert service.group_status("g3").state == "acknowledged"


async def test_groups_that_wait_are_not_copied_for_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, compact_bytes=SMALL) as service:
        for number in range(3 * SMALL // 500):
            await group(service, f"g{number}", acknowledge=False)
        for _ in range(3):
            look(service, clock)
        assert names(tmp_path) == ["journal.log"]


async def test_archived_sessions_are_forgotten_in_time_though_all_else_is_live(
    tmp_path: Path,
) -> None:
    clock, wall = FakeClock(), FakeClock()
    async with running(
        tmp_path, clock, wall=wall, compact_bytes=SMALL, keep_closed_seconds=100.0
    ) as service:
        over = await open_session(service)
        await answered(service, over, user("x"))
        await service.close_session(over.id)
        clock.advance(service.config.evict_seconds + 1)
        service.tick()
        await service.compact()
        before = names(tmp_path)
        live = await open_session(service)
        turn = 0
        while size(tmp_path) < 3 * SMALL:
            turn += 1
            await answered(service, live, user(f"turn {turn}"))
        look(service, clock)
        assert names(tmp_path) == before
        wall.advance(101.0)
        look(service, clock)
        await until(lambda: not names(tmp_path, "archive-*.log"))
        with pytest.raises(NotFound):
            service.trajectory(over.id)
