"""What a run stands on is killed under it, in every phase: afterwards ledger, records and world agree."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import ModelServiceError
from rock.modelservice.client.client import AdminClient
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.rollout.records.ledger import replay
from rock.rollout.records.outcome import TABLE, OutcomeClass, Phase
from rock.rollout.records.record import Record, decode
from rock.rollout.records.rundir import read_records
from rock.rollout.report.events import Event, PhaseEntered
from rock.rollout.run import RunResult, run
from rock.sandbox.base import Provider
from tests.needs import TEST_IMAGE
from tests.rollout.live import address, new_provider, run_file, wait_until, write_tasks
from tests.rollout.test_cancel import helpers
from tests.rollout.test_resume import command_line, live_pids

pytestmark = [pytest.mark.userns, pytest.mark.timeout(150)]


class World:
    """A service that is started again, a trainer likewise, and a run in which something is killed."""

    def __init__(self, folder: Path, service: ServiceProcess) -> None:
        self.folder = folder
        self.directory = folder / "run"
        self.service = service
        self.marker = f"marker-{uuid.uuid4().hex}"
        self.acks = folder / "acks.jsonl"
        self.held = folder / "acks.held"
        self.holds = False
        """The first trainer waits in the middle of a call, to be killed there."""
        self.trainer: process.Process | None = None
        self.killed = asyncio.Event()
        write_tasks(folder, "t")
        tasks = (folder / "tasks.jsonl").read_text().replace("solve", self.marker)
        (folder / "tasks.jsonl").write_text(tasks)

    @asynccontextmanager
    async def training(self, *, first: str = "-") -> AsyncGenerator[None, None]:
        """A trainer's process, started anew when it is killed."""
        self.holds = first != "-"
        keeping = asyncio.ensure_future(self._train(first))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            if self.trainer is not None:
                await process.stop(self.trainer)

    async def _train(self, hold: str) -> None:
        url, key = self.service.control_url, self.service.keys.trainer_key
        while True:
            self.trainer = await process.start(
                [sys.executable, "-m", "tests.rollout.trainer", url, key, self.acks, hold],
                env=inherited_environment(),
            )
            await self.trainer.wait()
            hold = "-"

    def agents(self) -> list[int]:
        return [
            pid
            for pid in live_pids()
            if (line := command_line(pid)).startswith(b"python3") and self.marker.encode() in line
        ]

    async def kill(self, victim: str) -> None:
        match victim:
            case "agent":
                await wait_until(self.held.exists)
                pids = self.agents()
            case "sandbox":
                pids = list(helpers())
            case "service":
                pids = [self.service.pid]
            case _:
                if self.holds:
                    await wait_until(self.held.exists)
                await wait_until(lambda: self.trainer is not None)
                assert self.trainer is not None
                pids = [self.trainer.pid]
        assert pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.killed.set()

    async def run(
        self, victim: str, phase: Phase, made: Provider | None = None, **fields: Any
    ) -> RunResult:
        """A run whose first attempt of the first episode meets the fault as it enters `phase`.

        In local sandboxes, or those of `made`; `fields` are the run file's.
        """
        kills: list[asyncio.Task[None]] = []

        def on_event(event: Event) -> None:
            if not isinstance(event, PhaseEntered) or event.phase is not phase or kills:
                return
            if (event.plan.index, event.plan.attempt) == (0, 1):
                kills.append(asyncio.ensure_future(self.kill(victim)))

        config = run_file(
            self.folder, episodes_per_task=2, concurrency=1, consume_timeout_seconds=30, **fields
        )
        async with made or new_provider() as provider:
            result = await run(
                config,
                directory=self.directory,
                service=address(self.service),
                provider=provider,
                on_event=on_event,
            )
        assert kills, "the phase never came"
        await kills[0]
        return result

    def attempts(self) -> list[Record]:
        paths = sorted((self.directory / "episodes").glob("*/*/attempt-*/record.json"))
        return [decode(path.read_bytes()) for path in paths]

    async def agree(self) -> None:
        """The ledger, the records, the trainer, the service and the machine tell one story."""
        state = replay((self.directory / "ledger.jsonl").read_bytes(), source="ledger")[0]
        (group,) = state.groups.values()
        assert (group.status, group.step) == ("consumed", 7)
        records = read_records(self.directory)
        assert [(e.cls, e.reward, e.final_attempt) for e in group.episodes] == [
            (r.outcome.cls, r.outcome.reward, r.attempt) for r in records
        ]
        taken = Counter((r.episode_id, r.attempt) for r in self.attempts())
        assert set(taken.values()) == {1}
        assert len(taken) == sum(episode.attempts for episode in group.episodes)
        assert not any(episode.running for episode in group.episodes)
        (ack,) = [json.loads(line) for line in self.acks.read_text().splitlines()]
        assert (ack["group_id"], ack["error"]) == (group.plan.group_id, None)
        assert ack["rewards"] == [record.outcome.reward for record in records]
        assert ack["sampled"] == [record.usage.trainable_tokens for record in records]
        async with AdminClient(self.service.control_url, self.service.keys.admin_key) as admin:
            for record in self.attempts():
                if record.session_id is not None:
                    await wait_until(lambda r=record: _closed(admin, r.session_id or ""))
        await wait_until(lambda: not helpers() and not self.agents())


async def _closed(admin: AdminClient, session_id: str) -> bool:
    with contextlib.suppress(ModelServiceError):
        return (await admin.session(session_id)).state == "closed"
    return False


ALL = [
    *((victim, phase) for victim in ("sandbox", "service", "trainer") for phase in Phase),
    ("agent", Phase.AGENT),  # it lives in no other
]
QUICK = {("sandbox", Phase.AGENT), ("service", Phase.EXPORT), ("trainer", Phase.AGENT)}
CASES: list[Any] = [
    pytest.param(*case, id="-".join(case), marks=() if case in QUICK else pytest.mark.soak)
    for case in ALL
    if case != ("sandbox", Phase.PROVISION)  # there is none yet
]


@pytest.mark.parametrize(("victim", "phase"), CASES)
async def test_whatever_is_killed_in_whatever_phase_the_books_agree(
    tmp_path: Path, victim: str, phase: Phase
) -> None:
    process_of_service = ServiceProcess(tmp_path / "service", exit_with_parent=True)
    async with kept_up(process_of_service) as service:
        world = World(tmp_path, service)
        holding = {"agent": "1", "trainer": "0"} if phase is Phase.AGENT else {}
        async with world.training(first=holding.get(victim, "-")):
            result = await world.run(victim, phase)
            assert world.killed.is_set()
            assert (result.exit_code, result.consumed) == (0, 1)
            await world.agree()
    first = next(r for r in world.attempts() if (r.index, r.attempt) == (0, 1)).outcome
    if victim == "agent":
        # The policy's own end: graded, counted, and not run again.
        assert (first.cls, first.in_loss) == (OutcomeClass.AGENT_SIGNALED, True)
        assert len(world.attempts()) == 2
    elif victim == "sandbox" and phase is not Phase.TEARDOWN:
        assert (TABLE[first.cls].cause, first.reward) == ("infra", None)
        assert result.report.total.solved == 2
    else:
        assert result.report.total.solved == 2


HOG = "data = bytearray(300 * 1024**2); print(len(data))"
DOCKER = (
    "docker kill $(docker ps -q --filter label=task_id={task_id} --filter label=run_id={run_id})"
)


@pytest.mark.docker
@pytest.mark.soak
async def test_a_container_out_of_memory_is_the_policys_and_a_killed_one_is_not(
    tmp_path: Path,
) -> None:
    names = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("hog", "killed")]
    write_tasks(tmp_path, *names)
    kills: list[asyncio.Task[int]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, PhaseEntered) and event.phase is Phase.AGENT:
            plan = event.plan
            if plan.task_id == names[1] and plan.attempt == 1:
                kills.append(asyncio.ensure_future(_sh(DOCKER.format(**plan.labels()))))

    script = f'case $0 in hog*) exec python3 -c "{HOG}";; esac; sleep 5; echo 42 > answer.txt'
    config = run_file(
        tmp_path,
        agent={
            "command": ["sh", "-c", script, "{task_id}"],
            "files": {},
            "requires_model": False,
        },
        image=TEST_IMAGE,
        provider="docker",
        limits={"memory_bytes": 64 * 1024**2},
    )
    result = await run(config, directory=tmp_path / "run", on_event=on_event)
    assert [await kill for kill in kills] == [0]
    assert result.exit_code == 0
    hog, killed = read_records(tmp_path / "run")
    assert (hog.outcome.cls, hog.attempt) == (OutcomeClass.OOM, 1)
    assert (hog.outcome.in_loss, hog.outcome.reward) == (True, 0.0)
    assert (killed.outcome.cls, killed.attempt) == (OutcomeClass.SOLVED, 2)
    first = (tmp_path / "run/episodes" / names[1] / "0/attempt-1/record.json").read_bytes()
    assert decode(first).outcome.cls is OutcomeClass.SANDBOX_DIED
    assert await _sh(f'test -z "$(docker ps -aq --filter label=run_id={hog.run_id})"') == 0


async def _sh(script: str) -> int:
    started = await process.start(["sh", "-c", script], env=inherited_environment())
    return await asyncio.wait_for(started.wait(), 30)
