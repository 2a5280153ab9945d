"""A harness that is killed or interrupted: nothing is left behind, nothing finished is done again."""

import asyncio
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import LedgerError
from rock.modelservice.client.client import TrainerClient
from rock.modelservice.client.worker import serve
from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.keys import read_keys
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.records.ledger import replay
from rock.rollout.records.ledger_state import State
from rock.rollout.records.rundir import read_records
from rock.rollout.run import EXIT_INTERRUPTED, resume, run
from rock.testing import ScriptedPolicy
from tests.rollout.live import run_file, wait_until, write_tasks

pytestmark = [pytest.mark.userns, pytest.mark.timeout(150)]


class Scene:
    """A run of tasks a, b and c in which, for now, nobody answers c."""

    def __init__(self, folder: Path) -> None:
        self.directory = folder / "run"
        self.path = folder / "run.yaml"
        self.marker = f"marker-{uuid.uuid4().hex}"
        self.release = asyncio.Event()
        self.seen: list[Lease] = []
        write_tasks(folder, "a", "b", "c")
        text = (folder / "tasks.jsonl").read_text().replace("solve", self.marker)
        (folder / "tasks.jsonl").write_text(text)
        self.config = run_file(
            folder, episodes_per_task=2, concurrency=2, provider="local", consume_timeout_seconds=20
        )
        self.path.write_text(self.config.model_dump_json())

    async def answer(self, lease: Lease) -> str:
        self.seen.append(lease)
        if lease.labels["task_id"] == "c":
            await self.release.wait()
        return "done" if turn_of(lease) else "write 42"

    def state(self) -> State:
        ledger = self.directory / "ledger.jsonl"
        return replay(ledger.read_bytes() if ledger.exists() else b"", source="ledger")[0]

    def half_done(self) -> bool:
        """a and b are published; both episodes of c are running and wait for the model."""
        groups = list(self.state().groups.values())
        waiting = [lease for lease in self.seen if lease.labels["task_id"] == "c"]
        return (
            len(groups) == 3
            and all(group.published for group in groups[:2])
            and len({lease.session_id for lease in waiting}) == 2
            and len(self.agents()) >= 2
        )

    def agents(self) -> list[int]:
        """Live processes of this scene's agents, seen from the host."""
        return [pid for pid in live_pids() if self.marker.encode() in command_line(pid)]

    def service(self) -> Ready:
        return msgspec.json.decode(
            (self.directory / "service" / READY_FILE).read_bytes(), type=Ready
        )

    @asynccontextmanager
    async def trainer(self) -> AsyncGenerator[None, None]:
        """Answers calls and consumes groups as soon as there is a service."""
        task = asyncio.ensure_future(self._train())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _train(self) -> None:
        await wait_until((self.directory / "service" / READY_FILE).exists, seconds=60)
        url = self.service().control_url
        key = read_keys(self.directory / "service").trainer_key
        async with TrainerClient(url, key) as client, asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(ScriptedPolicy(self.answer), url=url, key=key))
            while True:
                claimed = await client.claim_rollouts("t", wait_seconds=5)
                await client.ack_rollouts([item.lease_id for item in claimed])

    @asynccontextmanager
    async def harness(self) -> AsyncGenerator[process.Process, None]:
        started = await process.start(
            [sys.executable, "-m", "rock", "run", str(self.path), "--out", str(self.directory)],
            env=inherited_environment(),
        )
        try:
            yield started
        finally:
            await process.stop(started)


def live_pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def command_line(pid: int) -> bytes:
    """Empty for a process that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def _finish(scene: Scene) -> None:
    """Resume in this process, answer everything, and check what must hold then."""
    before = len(scene.seen)
    scene.release.set()
    (scene.directory / "service" / READY_FILE).unlink(missing_ok=True)
    async with scene.trainer():
        result = await run(scene.path, directory=scene.directory)
    assert (result.exit_code, result.report.total.solved) == (0, 6)
    assert (result.published, result.consumed) == (3, 3)
    assert {lease.labels["task_id"] for lease in scene.seen[before:]} == {"c"}
    for record in read_records(scene.directory):
        assert record.attempt == (2 if record.task_id == "c" else 1)
        assert record.group_id.endswith(f".{'abc'.index(record.task_id):05d}")


def first_attempt(scene: Scene, index: int) -> dict[str, Any]:
    folder = scene.directory / "episodes" / "c" / str(index) / "attempt-1"
    return json.loads((folder / "record.json").read_text())


async def test_after_sigkill_nothing_is_left_and_a_resume_redoes_nothing(scene: Scene) -> None:
    async with scene.harness() as harness, scene.trainer():
        await wait_until(scene.half_done, seconds=60)
        service = scene.service().pid
        assert command_line(service)
        run_id = scene.state().run_id
        harness.send_signal(signal.SIGKILL)
        assert await asyncio.wait_for(harness.wait(), 10) == -signal.SIGKILL
    await wait_until(lambda: not scene.agents() and not command_line(service))
    await _finish(scene)
    assert scene.state().run_id == run_id
    assert [first_attempt(scene, index)["outcome"]["class"] for index in (0, 1)] == [
        "interrupted",
        "interrupted",
    ]


async def test_ctrl_c_stops_everything_and_the_run_can_be_resumed(scene: Scene) -> None:
    async with scene.harness() as harness, scene.trainer():
        await wait_until(scene.half_done, seconds=60)
        service = scene.service().pid
        assert command_line(service)
        os.kill(harness.pid, signal.SIGINT)
        assert await asyncio.wait_for(harness.wait(), 30) == EXIT_INTERRUPTED
        assert not scene.agents()
        assert not command_line(service)
    assert not any(
        episode.running for group in scene.state().groups.values() for episode in group.episodes
    )
    assert [first_attempt(scene, index)["outcome"]["class"] for index in (0, 1)] == [
        "cancelled",
        "cancelled",
    ]
    await _finish(scene)


async def test_a_finished_run_is_only_reported(scene: Scene) -> None:
    scene.release.set()
    async with scene.trainer():
        first = await run(scene.path, directory=scene.directory)
    calls = len(scene.seen)
    again = await resume(scene.directory)
    assert (again.report, again.consumed) == (first.report, 3)
    assert len(scene.seen) == calls


async def test_a_record_that_the_ledger_missed_is_taken_over(scene: Scene) -> None:
    scene.release.set()
    async with scene.trainer():
        await run(scene.path, directory=scene.directory)
    ledger = scene.directory / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ended = [number for number, line in enumerate(lines) if b'"ended"' in line]
    ledger.write_bytes(b"".join(lines[: ended[-1]]))
    calls = len(scene.seen)
    (scene.directory / "service" / READY_FILE).unlink(missing_ok=True)
    async with scene.trainer():
        again = await run(scene.path, directory=scene.directory)
    assert (again.report.total.solved, again.consumed) == (6, 3)
    assert len(scene.seen) == calls


async def test_a_task_that_changed_is_refused_by_name(scene: Scene, tmp_path: Path) -> None:
    scene.release.set()
    async with scene.trainer():
        await run(scene.path, directory=scene.directory)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace(f"{scene.marker} b", "something else"))
    with pytest.raises(LedgerError, match="b has other contents now"):
        await run(scene.path, directory=scene.directory)
    write_tasks(tmp_path, "a")
    with pytest.raises(LedgerError, match="tasks: the run was started with others"):
        await run(scene.path, directory=scene.directory)
