"""A run cancelled in any phase: sandbox, agent and session are gone, and a resume completes it."""

import asyncio
import functools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rock.modelservice.client.client import AdminClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.records.ledger import replay
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.records.record import decode
from rock.rollout.records.rundir import read_records
from rock.rollout.report.events import Event, PhaseEntered
from rock.rollout.run import RunResult, run
from rock.sandbox.base import Sandbox, SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.local import LocalProvider
from rock.sandbox.state import Snapshot
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks

pytestmark = pytest.mark.userns


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as started:
        yield started


def helpers() -> set[int]:
    """Sandboxes of this process: the helper's processes that are its children and not zombies."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(
                line.split(":\t", 1) for line in path.read_text().splitlines() if ":\t" in line
            )
        except OSError:
            continue
        mine = lines.get("PPid") == str(os.getpid()) and lines.get("Name") == "rock-init"
        if mine and not lines.get("State", "Z").startswith("Z"):
            found.add(int(path.parent.name))
    return found


def right(lease: Lease) -> str:
    return "done" if turn_of(lease) else "write 42"


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.TEARDOWN])
async def test_a_cancelled_attempt_leaves_nothing_and_is_run_again(
    tmp_path: Path, service: ServiceProcess, phase: Phase
) -> None:
    write_tasks(tmp_path, "t")
    directory = tmp_path / "run"
    seen: list[int] = []
    running: asyncio.Task[RunResult] | None = None

    def stop_in_phase(event: Event) -> None:
        if isinstance(event, PhaseEntered) and event.phase is phase and running is not None:
            seen.append(len(helpers()))
            running.cancel()

    async with new_provider() as provider, answering(service, right):
        go = functools.partial(
            run,
            run_file(tmp_path),
            directory=directory,
            service=address(service),
            provider=provider,
        )
        running = asyncio.ensure_future(go(on_event=stop_in_phase))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert seen == [0 if phase is Phase.PROVISION else 1]
        assert helpers() == set()
        first = decode(
            (directory / "episodes" / "t" / "0" / "attempt-1" / "record.json").read_bytes()
        )
        assert (first.outcome.cls, first.outcome.phase) == (OutcomeClass.CANCELLED, phase)
        if first.session_id is not None:
            async with AdminClient(service.control_url, service.keys.admin_key) as admin:
                assert (await admin.session(first.session_id)).state == "closed"
        result = await go()
    assert (result.exit_code, result.report.total.solved) == (0, 1)
    state, _ = replay((directory / "ledger.jsonl").read_bytes(), source="ledger")
    assert [g.episodes[0].attempts for g in state.groups.values()] == [2]


class Fragile(LocalProvider):
    """A provider whose first sandbox is stopped behind the harness's back."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Sandbox] = []

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None
    ) -> ChannelSandbox:
        sandbox = await super().create(spec, snapshot=snapshot)
        self.made.append(sandbox)
        return sandbox


@pytest.mark.parametrize("phase", [Phase.AGENT, Phase.GRADE])
async def test_a_sandbox_that_dies_is_infra_and_the_next_attempt_solves(
    tmp_path: Path, service: ServiceProcess, phase: Phase
) -> None:
    write_tasks(tmp_path, "t")
    killers: list[asyncio.Task[None]] = []

    def kill_in_phase(event: Event) -> None:
        if isinstance(event, PhaseEntered) and event.phase is phase and event.plan.attempt == 1:
            killers.append(asyncio.ensure_future(provider.made[0].stop()))

    async with Fragile() as provider, answering(service, right):
        result = await run(
            run_file(tmp_path),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
            on_event=kill_in_phase,
        )
    await asyncio.gather(*killers)
    (record,) = read_records(tmp_path / "run")
    assert (record.attempt, record.outcome.cls, result.exit_code) == (2, OutcomeClass.SOLVED, 0)
    first = decode(
        (tmp_path / "run" / "episodes" / "t" / "0" / "attempt-1" / "record.json").read_bytes()
    )
    assert (first.outcome.cls, first.outcome.reward) == (OutcomeClass.SANDBOX_DIED, None)
