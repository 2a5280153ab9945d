"""SIGKILL at random moments, of the service and of workers, with many calls in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.modelservice.faults.storm import Storm


@pytest.mark.parametrize("seed", [1])
async def test_a_few_kills_lose_repeat_and_confuse_nothing(tmp_path: Path, seed: int) -> None:
    settings = {
        "compact_bytes": 20_000,
        "compact_share": 0.0,
    }  # so that some come in the middle of a compaction
    storm = Storm(tmp_path, seed=seed, agents=60, workers=2, in_flight=30, settings=settings)
    report = await storm.run(kills=3)
    print(report)  # noqa: T201 - the seed and the figures, shown when it fails
    assert report.faults == []
    assert report.ended["delivered"] > 0
    assert report.continued > 0
    assert report.compactions > 0
    assert report.syncs > 0


async def test_a_disk_that_fills_up_acknowledges_nothing_it_cannot_keep(tmp_path: Path) -> None:
    storm = Storm(tmp_path, seed=2, agents=60, workers=2, in_flight=30, full_disks=1.0)
    report = await storm.run(kills=2)
    print(report)  # noqa: T201
    assert report.faults == []
    assert report.full_disks == 2


@pytest.mark.soak
@pytest.mark.timeout(1500)
async def test_sixty_faults_with_a_thousand_calls_in_flight(tmp_path: Path, soak_seed: int) -> None:
    storm = Storm(
        tmp_path,
        seed=soak_seed,
        agents=1500,
        workers=3,
        in_flight=1000,
        full_disks=0.05,
        settings={"compact_bytes": 1 << 20, "compact_share": 0.0},
    )
    report = await storm.run(kills=60)
    print(report)  # noqa: T201
    assert report.faults == []
    assert report.kills + report.full_disks == 60
    assert report.kills >= 50
    assert report.continued >= 100
    assert report.syncs >= 20
    assert report.compactions >= 3
    assert min(report.in_flight) >= 1000
