"""The Docker engine is killed or started again in every phase: afterwards all books agree, and it is clean."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rock import process
from rock.config import inherited_environment
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.rollout.records.outcome import TABLE, OutcomeClass, Phase
from rock.sandbox.docker import DockerProvider
from tests.private_engine import PrivateEngine, private_engine
from tests.rollout.live import wait_until
from tests.rollout.test_faults import World

pytestmark = [
    pytest.mark.docker,
    pytest.mark.userns,
    pytest.mark.soak,
    pytest.mark.timeout(180),
]


class EngineWorld(World):
    """One whose sandboxes are containers of an engine that is the victim."""

    def __init__(self, folder: Path, service: ServiceProcess, engine: PrivateEngine) -> None:
        super().__init__(folder, service)
        self.engine = engine

    async def kill(self, victim: str) -> None:
        if victim == "engine killed":
            await self.engine.kill()
        else:
            await self.engine.stop()
        await self.engine.start()
        self.killed.set()

    async def containers(self) -> list[str]:
        asked = await process.start(
            ["docker", "--host", self.engine.host, "ps", "--all", "--quiet"],
            env=inherited_environment(),
            stdout=process.PIPE,
        )
        out, _ = await asyncio.wait_for(asked.communicate(), 30)
        return out.decode().split()

    async def clean(self) -> bool:
        return not await self.containers()


SLOW = ["sh", "-c", 'sleep 4; exec python3 /opt/agent.py "$0"', "{instruction}"]
"""An agent that still works when the engine is back."""
CASES: list[Any] = [
    pytest.param(victim, phase, restore, id=f"{victim}-{phase}{'-restored' if restore else ''}")
    for victim in ("engine killed", "engine restarted")
    for phase in Phase
    for restore in (False, True)
    if not restore or phase in (Phase.AGENT, Phase.TEARDOWN)
]


@pytest.mark.parametrize(("victim", "phase", "restore"), CASES)
async def test_an_engine_that_fails_in_whatever_phase_costs_attempts_and_nothing_else(
    tmp_path: Path, victim: str, phase: Phase, restore: bool
) -> None:
    async with (
        private_engine(live_restore=restore) as engine,
        kept_up(ServiceProcess(tmp_path / "service", exit_with_parent=True)) as service,
    ):
        world = EngineWorld(tmp_path, service, engine)
        async with world.training():
            result = await world.run(
                victim,
                phase,
                DockerProvider(host=engine.host),
                infra={"backoff_seconds": 0.2},
                agent={"command": SLOW} if phase is Phase.AGENT else {},
            )
            assert world.killed.is_set()
            assert (result.exit_code, result.consumed) == (0, 1), result.failure
            await world.agree()
        await wait_until(world.clean)
    assert result.report.total.solved == 2
    if phase is Phase.AGENT and not restore:
        # An engine that starts again ends the containers that it finds.
        first = world.attempts()[0].outcome
        assert (first.phase, first.cls) == (Phase.AGENT, OutcomeClass.SANDBOX_DIED)
    for record in world.attempts():
        cls = record.outcome.cls
        if cls is not OutcomeClass.SOLVED:
            assert (TABLE[cls].cause, record.outcome.reward) == ("infra", None), record.outcome
