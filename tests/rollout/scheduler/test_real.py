"""Real processes that sleep, on the real clock, take as long as the simulation says."""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rock import process
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.records.rundir import read_records
from rock.rollout.run import run
from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.plan import Cancel, Ending, GroupPlan, SchedulePolicy, Start
from rock.rollout.scheduler.simulate import World, simulate
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks


class Clockwork:
    """Carries the scheduler's decisions out with `sleep` processes."""

    def __init__(self, scheduler: Scheduler, seconds: dict[tuple[str, int], float]) -> None:
        self.scheduler = scheduler
        self.seconds = seconds
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.wake = asyncio.Event()
        self.began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self.began

    async def run(self) -> float:
        while True:
            self.wake.clear()
            for decision in self.scheduler.decide(self.now()):
                if isinstance(decision, Start):
                    key = (decision.group_id, decision.index)
                    self.tasks[key] = asyncio.ensure_future(self.attempt(*key))
                elif isinstance(decision, Cancel):
                    self.tasks[decision.group_id, decision.index].cancel()
            if self.scheduler.finished:
                return self.now()
            async with asyncio.timeout(30):
                await self.wake.wait()

    async def attempt(self, group_id: str, index: int) -> None:
        ending = Ending(kind="again")
        sleeping = await process.start(["sleep", f"{self.seconds[group_id, index]:.3f}"], env={})
        try:
            if await sleeping.wait() == 0:
                ending = Ending(kind="valid")
        finally:
            await process.stop(sleeping)
            self.scheduler.ended(group_id, index, ending, self.now())
            self.wake.set()


async def test_sleeping_processes_take_as_long_as_simulated_ones() -> None:
    source = random.Random(1)
    policy = SchedulePolicy(concurrency=8)
    plans = [
        GroupPlan(group_id=f"g{n}", task_id=f"t{n}", size=2, extra=1 if n < 3 else 0)
        for n in range(6)
    ]
    seconds = {
        (plan.group_id, index): source.uniform(0.4, 2.5) for plan in plans for index in range(3)
    }
    world = World(durations=lambda plan, index: seconds[plan.group_id, index])
    expected = simulate(Scheduler(policy), plans, world).seconds
    scheduler = Scheduler(policy)
    for plan in plans:
        scheduler.add(plan)
    assert await Clockwork(scheduler, seconds).run() == pytest.approx(expected, rel=0.1)


async def test_a_long_tail_with_redundant_members_takes_as_long_as_simulated_and_not_as_without() -> (
    None
):
    """The papers' tail (log-normal, as in benchmarks/scheduler.py) on a smaller scale. Without what is
    simulated the run would take half as long again at least, so the agreement says something."""
    source = random.Random(11)
    policy = SchedulePolicy(concurrency=24)
    seconds = {
        (f"g{number}", index): 3.0 * min(6.0, source.lognormvariate(-0.4, 0.9))
        for number in range(4)
        for index in range(6)
    }
    world = World(durations=lambda plan, index: seconds[plan.group_id, index])

    def groups(extra: int) -> list[GroupPlan]:
        names = [f"g{number}" for number in range(4)]
        return [GroupPlan(group_id=name, task_id=name, size=4, extra=extra) for name in names]

    expected = simulate(Scheduler(policy), groups(2), world).seconds
    assert simulate(Scheduler(policy), groups(0), world).seconds > 1.5 * expected
    scheduler = Scheduler(policy)
    for plan in groups(2):
        scheduler.add(plan)
    assert await Clockwork(scheduler, seconds).run() == pytest.approx(expected, rel=0.1)


@pytest.mark.soak
@pytest.mark.userns
@pytest.mark.timeout(300)
async def test_a_run_in_sandboxes_takes_as_long_as_simulated(tmp_path: Path) -> None:
    """Agents that sleep; what an episode takes beside is measured with one that does not."""
    names = [f"t{number}" for number in range(6)]
    sleeps = {name: 3.0 + 1.7 * number for number, name in enumerate(names)}

    def answer_with(sleeping: bool) -> Callable[[Lease], str]:
        def answer(lease: Lease) -> str:
            pause = f"sleep {sleeps[lease.labels['task_id']] if sleeping else 0}"
            return ("write 42", pause, "done")[turn_of(lease)]

        return answer

    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as service:
        walls: list[float] = []
        overhead = 0.0
        for sleeping in (False, True):
            write_tasks(tmp_path, *names)
            config = run_file(tmp_path, episodes_per_task=2, concurrency=3 if sleeping else 1)
            folder = tmp_path / f"run-{sleeping}"
            async with new_provider() as provider, answering(service, answer_with(sleeping)):
                began = time.monotonic()
                await run(config, directory=folder, service=address(service), provider=provider)
                walls.append(time.monotonic() - began)
            if not sleeping:
                records = read_records(folder)
                overhead = sum(record.seconds for record in records) / len(records)
    plans = [GroupPlan(group_id=name, task_id=name, size=2) for name in names]
    world = World(durations=lambda plan, _: sleeps[plan.task_id] + overhead)
    expected = simulate(Scheduler(SchedulePolicy(concurrency=3)), plans, world).seconds
    assert walls[1] == pytest.approx(expected, rel=0.1)
