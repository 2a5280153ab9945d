"""A harness killed in every phase, and at random moments: nothing is lost, nothing is done twice."""

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.records.ledger import replay
from rock.rollout.records.ledger_state import State
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.records.record import decode
from rock.rollout.records.rundir import read_records
from tests.rollout.live import answering, run_file, wait_until, write_tasks

pytestmark = [pytest.mark.userns, pytest.mark.timeout(300)]


class World:
    """A service, a trainer that consumes groups, and a run that is started again and again."""

    def __init__(self, folder: Path, service: ServiceProcess, *tasks: str) -> None:
        self.folder = folder
        self.service = service
        self.directory = folder / "run"
        self.consumed = Counter[str]()
        self.answered = Counter[tuple[str, str]]()
        """Last turns given, by episode and attempt."""
        write_tasks(folder, *tasks)
        config = run_file(
            folder,
            episodes_per_task=2,
            concurrency=2,
            provider="local",
            consume_timeout_seconds=30,
        )
        self.file = folder / "run.json"
        self.file.write_text(config.model_dump_json())

    def answer(self, lease: Lease) -> str:
        if not turn_of(lease):
            return "write 42"
        self.answered[lease.labels["episode_id"], lease.labels["attempt"]] += 1
        return "done"

    async def harness(self, where: str) -> int:
        """The exit code of one harness, -9 if it killed itself."""
        started = await process.start(
            [
                sys.executable,
                "-m",
                "tests.rollout.killed",
                self.file,
                self.directory,
                self.service.state_dir,
                where,
            ],
            env=inherited_environment(),
        )
        try:
            return await asyncio.wait_for(started.wait(), 90)
        finally:
            await process.stop(started)

    @asynccontextmanager
    async def trainer(self) -> AsyncGenerator[None, None]:
        keys = self.service.keys
        async with (
            answering(self.service, self.answer),
            TrainerClient(self.service.control_url, keys.trainer_key) as client,
        ):
            consuming = asyncio.ensure_future(self._consume(client))
            try:
                yield
            finally:
                consuming.cancel()
                await asyncio.gather(consuming, return_exceptions=True)

    async def _consume(self, client: TrainerClient) -> None:
        while True:
            for item in await client.claim_rollouts("t", max_groups=8, wait_seconds=5):
                (result,) = await client.ack_rollouts([item.lease_id])
                assert result.error is None
                self.consumed[item.group.group_id] += 1

    def state(self) -> State:
        return replay((self.directory / "ledger.jsonl").read_bytes(), source="ledger")[0]

    async def check(self) -> None:
        """The ledger, the records, the trainer and the service agree."""
        state = self.state()
        assert self.consumed == dict.fromkeys(state.groups, 1), "each group is consumed once"
        assert {group.status for group in state.groups.values()} == {"consumed"}
        records = read_records(self.directory)
        assert len(records) == sum(len(group.episodes) for group in state.groups.values())
        assert {record.outcome.cls for record in records} == {OutcomeClass.SOLVED}
        assert max(self.answered.values()) == 1, "no attempt was answered twice"
        async with AdminClient(self.service.control_url, self.service.keys.admin_key) as admin:
            for path in (self.directory / "episodes").glob("*/*/attempt-*"):
                session = path / "session"
                if session.exists():
                    assert (await admin.session(session.read_text())).state == "closed"
        attempts = sum(episode.attempts for g in state.groups.values() for episode in g.episodes)
        kept = list((self.directory / "episodes").glob("*/*/attempt-*/record.json"))
        assert len(kept) == attempts, "every attempt has its record"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[ServiceProcess, None]:
    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as started:
        yield started


@pytest.mark.parametrize(
    "phases",
    [
        pytest.param((Phase.AGENT, Phase.GRADE), id="two"),
        pytest.param(tuple(Phase), id="every", marks=pytest.mark.soak),
    ],
)
async def test_a_harness_killed_in_its_phases_loses_and_repeats_nothing(
    tmp_path: Path, service: ServiceProcess, phases: tuple[Phase, ...]
) -> None:
    world = World(tmp_path, service, "a")
    async with world.trainer():
        for phase in phases:
            assert await world.harness(phase.value) == -signal.SIGKILL
        assert await world.harness("-") == 0
        await wait_until(lambda: sum(world.consumed.values()) == 1)
    await world.check()
    classes = Counter(
        decode(path.read_bytes()).outcome.cls
        for path in (world.directory / "episodes").glob("*/*/attempt-*/record.json")
    )
    assert classes[OutcomeClass.INTERRUPTED] >= len(phases) - 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
async def test_a_harness_killed_at_random_moments_loses_and_repeats_nothing(
    tmp_path: Path, service: ServiceProcess, seed: int
) -> None:
    world = World(tmp_path, service, "a", "b", "c")
    source = random.Random(seed)
    async with world.trainer():
        codes = [await world.harness(f"#{source.randint(2, 24)}") for _ in range(6)]
        assert -signal.SIGKILL in codes
        assert await world.harness("-") == 0
        await wait_until(lambda: sum(world.consumed.values()) == 3)
    await world.check()
