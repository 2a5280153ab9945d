"""Trainers that die over an acknowledgement: each group is consumed once, in the step that was said first."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rock import process
from rock.config import inherited_environment
from rock.modelservice.client.client import TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.modelservice.policies.scripted import turn_of
from rock.rollout.records.ledger import replay
from rock.rollout.run import RunResult, run
from tests.rollout.acking import STEPS
from tests.rollout.live import address, answering, run_file, write_tasks

pytestmark = [pytest.mark.userns, pytest.mark.timeout(120)]


async def train(service: ServiceProcess, log: Path, how: str) -> int:
    """One life of a trainer; its exit code."""
    argv = [sys.executable, "-m", "tests.rollout.acking", service.control_url]
    argv += [service.keys.trainer_key, str(service.state_dir), str(log), how]
    started = await process.start(argv, env=inherited_environment())
    try:
        return await asyncio.wait_for(started.wait(), 60)
    finally:
        await process.stop(started)


async def run_beside(
    folder: Path, service: ServiceProcess, trainers: asyncio.Task[Any]
) -> RunResult:
    """A run of one group, over when somebody has consumed it."""
    write_tasks(folder, "t")
    config = run_file(folder, provider="local", consume_timeout_seconds=60)
    async with answering(service, lambda lease: "done" if turn_of(lease) else "write 42"):
        result = await run(config, directory=folder / "run", service=address(service))
    await trainers
    return result


CASES: list[Any] = [
    # How trainers live, one after the other; their exit codes; in which step the group is consumed;
    # what acknowledgements are answered with.
    pytest.param(["claimed", "once"], [-9, 0], "once", [[None]], id="killed-before"),
    pytest.param(["unread"], [-9], "unread", [], id="killed-before-the-reply"),
    pytest.param(["cut"], [0], "cut", [[None]], id="service-killed-before-the-reply"),
    pytest.param(["twice"], [0], "twice", [[None, None]], id="said-twice"),
    pytest.param(["late"], [0], "late", [["lease_lost", None]], id="after-redelivery"),
]
QUICK = {"killed-before-the-reply", "service-killed-before-the-reply"}
MARKED = [
    pytest.param(*case.values, id=case.id, marks=() if case.id in QUICK else pytest.mark.soak)
    for case in CASES
]


@pytest.mark.parametrize(("lives", "ends", "step", "codes"), MARKED)
async def test_a_group_is_consumed_once_whoever_dies_over_its_acknowledgement(
    tmp_path: Path, lives: list[str], ends: list[int], step: str, codes: list[list[str | None]]
) -> None:
    log = tmp_path / "log.jsonl"
    log.touch()
    async with kept_up(ServiceProcess(tmp_path / "service", exit_with_parent=True)) as service:

        async def trainers() -> list[int]:
            return [await train(service, log, how) for how in lives]

        training = asyncio.create_task(trainers())
        result = await run_beside(tmp_path, service, training)
        assert (training.result(), result.consumed) == (ends, 1)
        assert [json.loads(line)["codes"] for line in log.read_text().splitlines()] == codes
        state = replay((tmp_path / "run/ledger.jsonl").read_bytes(), source="ledger")[0]
        (group,) = state.groups.values()
        assert (group.status, group.step) == ("consumed", STEPS[step])
        lines = (tmp_path / "run/ledger.jsonl").read_text().splitlines()
        assert sum('"consumed"' in line for line in lines) == 1
        # After one more restart, nobody is offered it any more.
        os.kill(service.pid, signal.SIGKILL)
        async with TrainerClient(service.control_url, service.keys.trainer_key) as client:
            assert await client.claim_rollouts("other", wait_seconds=0) == []
