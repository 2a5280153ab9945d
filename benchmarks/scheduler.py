"""What each scheduling rule is worth, on the distributions of the papers that proposed it.

    python benchmarks/scheduler.py [--seeds 20] [--json] [--check]

The scheduler of real runs is driven by `rock.rollout.scheduler.simulate`; only time is simulated.
Every experiment compares it with what it replaces, with the same attempts and the same room:

- *queue*: 8 prompts x 8 responses are needed, some groups are filtered out (all rewards equal).
  Batch by batch, against a queue with 16 more prompts that stops once 8 groups are there.
- *asynchrony*: 64 environments, 30 turns, each turn's latency N(10, 10) s cut at 0. All environments
  in step, against each at its own pace.
- *redundancy*: 32 groups of 8 with stragglers (one attempt in twenty takes ten times as long), against
  36 groups of 9 of which the first 32 x 8 win.
- *async ratio*: rollout and training take turns (0), against a training that takes what earlier
  policies began (1, 2). The bound on staleness is checked.

Medians over the seeds. Published: queue scheduling 3.4x, environment-level asynchrony 2.46x, redundancy
1.6x and more, asynchronous training 1.2x to 2.2x. `--check` fails below the bars here.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rock.rollout.scheduler.bias import length_bias
from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.plan import Ending, GroupPlan, SchedulePolicy
from rock.rollout.scheduler.simulate import Simulated, World, simulate

BARS = {"queue": 2.0, "asynchrony": 2.0, "redundancy": 2.0, "async ratio 1": 1.3}
"""Times faster, at least."""


@dataclass(frozen=True)
class Gain:
    name: str
    before_seconds: float
    after_seconds: float
    note: str = ""

    @property
    def times(self) -> float:
        return self.before_seconds / self.after_seconds


def plans(count: int, size: int, extra: int = 0) -> list[GroupPlan]:
    return [
        GroupPlan(group_id=f"g{n:05d}", task_id=f"t{n}", size=size, extra=extra)
        for n in range(count)
    ]


def drawn(seed: int, draw: Callable[[random.Random], float]) -> Callable[[GroupPlan, int], float]:
    """The same duration for the same member, whatever the schedule."""

    def of(plan: GroupPlan, index: int) -> float:
        return draw(random.Random(f"{seed}/{plan.group_id}/{index}"))

    return of


def until_first_step(
    policy: SchedulePolicy, groups: list[GroupPlan], world: World
) -> tuple[float, Simulated]:
    """Seconds until the trainer has the groups of a step."""
    result = simulate(Scheduler(policy), groups, world)
    assert policy.groups_per_step is not None
    return sorted(result.published_at.values())[policy.groups_per_step - 1], result


def long_tailed(source: random.Random) -> float:
    """Seconds of one response: median 20, the longest of hundreds about ten times that."""
    return source.lognormvariate(3.0, 0.9)


def queue(seed: int) -> Gain:
    needed, size, more = 8, 8, 16
    seconds = drawn(seed, long_tailed)
    useless = {f"g{n:05d}" for n in range(400) if random.Random(f"{seed}/{n}").random() < 0.5}

    def ending(plan: GroupPlan, _index: int) -> Ending:
        return Ending(kind="invalid" if plan.group_id in useless else "valid")

    groups = plans(64, size)
    before, found, number = 0.0, 0, 0
    while found < needed:
        batch = groups[number : number + needed]
        before += max(seconds(plan, index) for plan in batch for index in range(size))
        found += sum(plan.group_id not in useless for plan in batch)
        number += needed
    policy = SchedulePolicy(
        concurrency=needed * size,
        groups_per_step=needed,
        extra_groups=more,
        partial="drop",
        max_group_cancels=1000,
    )
    after, _ = until_first_step(policy, groups, World(durations=seconds, endings=ending))
    return Gain("queue", before, after, f"{needed} x {size}, {more} more prompts")


def asynchrony(seed: int) -> Gain:
    count, turns = 64, 30
    source = random.Random(seed)
    latencies = [[max(0.0, source.gauss(10, 10)) for _ in range(turns)] for _ in range(count)]
    before = sum(max(row[turn] for row in latencies) for turn in range(turns))
    policy = SchedulePolicy(concurrency=count)
    world = World(durations=lambda plan, index: sum(latencies[int(plan.group_id[1:]) * 8 + index]))
    after = simulate(Scheduler(policy), plans(count // 8, 8), world).seconds
    return Gain("asynchrony", before, after, f"{count} environments, {turns} turns, N(10, 10) s")


def straggling(source: random.Random) -> float:
    seconds = source.lognormvariate(3.0, 0.4)
    return seconds * 10 if source.random() < 0.05 else seconds


def redundancy(seed: int) -> Gain:
    seconds = drawn(seed, straggling)
    world = World(durations=seconds)
    plain = SchedulePolicy(concurrency=32 * 8, groups_per_step=32)
    before, _ = until_first_step(plain, plans(32, 8), world)
    spare = SchedulePolicy(concurrency=36 * 9, groups_per_step=32, extra_groups=4)
    after, result = until_first_step(spare, plans(36, 8, extra=1), world)
    bias = length_bias(result.kept_seconds, result.stopped_seconds)
    return Gain(
        "redundancy",
        before,
        after,
        f"32 x 8 of 36 x 9; kept shorter by {100 * (bias.shortened or 0):.0f} %, "
        f"{bias.stopped} stopped",
    )


def async_ratio(seed: int, ratio: int) -> Gain:
    seconds = drawn(seed, long_tailed)

    def steps(bound: int) -> float:
        policy = SchedulePolicy(concurrency=64, groups_per_step=8, max_staleness=bound)
        world = World(durations=seconds, groups_per_step=8, train_seconds=60.0)
        result = simulate(Scheduler(policy), plans(8 * 12, 8), world)
        assert result.worst_staleness <= bound
        return statistics.mean(result.step_seconds)

    return Gain(f"async ratio {ratio}", steps(0), steps(ratio), "8 x 8 per step, 60 s of training")


EXPERIMENTS: list[Callable[[int], Gain]] = [
    queue,
    asynchrony,
    redundancy,
    lambda seed: async_ratio(seed, 1),
    lambda seed: async_ratio(seed, 2),
]


def measure(seeds: int) -> list[Gain]:
    """One median experiment each, by gain."""
    found: list[Gain] = []
    for experiment in EXPERIMENTS:
        gains = sorted((experiment(seed) for seed in range(seeds)), key=lambda gain: gain.times)
        found.append(gains[len(gains) // 2])
    return found


def decisions_per_second(members: int = 20_000) -> float:
    """How fast the scheduler itself is, with a thousand attempts at once."""
    policy = SchedulePolicy(concurrency=1000)
    world = World(durations=drawn(0, long_tailed))
    started = time.perf_counter()
    simulate(Scheduler(policy), plans(members // 8, 8), world)
    return members / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    gains = measure(args.seeds)
    rate = decisions_per_second()
    if args.json:
        rows = [{**asdict(gain), "times": gain.times} for gain in gains]
        print(json.dumps({"gains": rows, "attempts_per_second": rate}, indent=2))
    else:
        for gain in gains:
            times = (
                f"{gain.before_seconds:7.0f} s → {gain.after_seconds:5.0f} s  {gain.times:5.2f} x"
            )
            print(f"{gain.name:<14} {times}   {gain.note}")
        print(f"the scheduler and its simulation: {rate:,.0f} attempts per second")
    missed = [gain for gain in gains if gain.times < BARS.get(gain.name, 0.0)]
    for gain in missed:
        print(f"below its bar of {BARS[gain.name]} x: {gain.name}", file=sys.stderr)
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
