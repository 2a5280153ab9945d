"""A scheduler under whatever can happen to it, in any order: it ends, and nothing is lost on the way."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.plan import (
    Cancel,
    Ending,
    GroupPlan,
    Reopen,
    SchedulePolicy,
    Settled,
    Start,
)

ODD = (0.0, -1.0, 1e300, float("inf"), float("-inf"), float("nan"))


class Whims:
    """A curriculum that weighs without sense."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self.learned: list[tuple[str, Sequence[float]]] = []

    def weigh(self, plan: GroupPlan) -> float:
        return self._source.choice(ODD)

    def learn(self, plan: GroupPlan, rewards: Sequence[float]) -> None:
        self.learned.append((plan.group_id, rewards))


def some_policy(source: random.Random) -> SchedulePolicy:
    def maybe(*values: int) -> int | None:
        return source.choice([None, *values])

    step = maybe(1, 2, 50)
    return SchedulePolicy(
        concurrency=source.choice([1, 2, 5, 64]),
        groups_per_step=step,
        extra_groups=source.choice([0, 1, 9]) if step else 0,
        max_group_cancels=source.choice([0, 2]),
        max_staleness=maybe(0, 1, 1000),
        max_stale_reopens=source.choice([0, 3]),
        buffer_groups=None if step else maybe(1, 3),
        partial=source.choice(["partial", "drop", "refill"]),
        min_valid=source.choice([0, 1, 3]),
        max_refills=source.choice([0, 2]),
        starts_per_second=source.choice([None, 0.1, 100.0]),
        start_burst=source.choice([1, 7]),
        queue_wait_seconds=source.choice([None, 0.5]),
        task_concurrency=maybe(1, 2),
        tag_concurrency={tag: 1 for tag in "abc" if source.random() < 0.5},
    )


class Walk:
    """Drives one scheduler at random, and keeps what it decided."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.now = 0.0
        self.version = 0
        self.curriculum = Whims(source)
        self.scheduler = Scheduler(
            some_policy(source), curriculum=source.choice([None, self.curriculum])
        )
        self.plans = [
            GroupPlan(
                group_id=f"g{number}",
                task_id=f"t{source.randrange(3)}",
                size=source.randint(1, 4),
                extra=source.choice([0, 0, 1, 6]),
                tags=tuple(source.choices("abcd", k=source.randrange(4))),
            )
            for number in range(source.randint(1, 7))
        ]
        for plan in self.plans:
            self.scheduler.add(plan)
        self.running: set[tuple[str, int]] = set()
        self.cancelled: set[tuple[str, int]] = set()
        self.out: dict[str, Settled] = {}
        self.taken: set[str] = set()

    def decide(self) -> None:
        for decision in self.scheduler.decide(self.now):
            match decision:
                case Start(group_id, index):
                    assert (group_id, index) not in self.running
                    assert group_id not in self.out
                    self.running.add((group_id, index))
                case Cancel(group_id, index):
                    assert (group_id, index) in self.running - self.cancelled
                    self.cancelled.add((group_id, index))
                case Reopen(group_id):
                    assert group_id not in self.taken
                case Settled(group_id):
                    assert group_id not in self.out, "settled once, unless it came back"
                    self.out[group_id] = decision
        assert len(self.running) <= self.scheduler.policy.concurrency
        assert self.scheduler.running == len(self.running)

    def end(self, ending: Ending) -> None:
        if self.running:
            key = self.source.choice(sorted(self.running))
            self.running.remove(key)
            self.cancelled.discard(key)
            self.scheduler.ended(*key, ending, self.now)

    def random_ending(self) -> Ending:
        return Ending(
            kind=self.source.choice(["valid", "valid", "invalid", "again"]),
            version=self.source.choice([None, 0, self.version]),
            after_seconds=self.source.choice([0.0, 3.0]),
            no_room=self.source.random() < 0.1,
        )

    def published(self) -> list[str]:
        return sorted(name for name, settled in self.out.items() if settled.publish)

    def happen(self) -> None:
        """One thing that happens, sensible or not."""
        match self.source.randrange(8):
            case 0 | 1 | 2:
                self.end(self.random_ending())
            case 3:
                self.version += self.source.choice([0, 1, 7])
                self.scheduler.policy_version(self.source.choice([self.version, 0, -3]))
            case 4 if self.published():
                name = self.source.choice(self.published())
                self.taken.add(name)
                self.scheduler.consumed(name)
                self.scheduler.learn(name, [0.5])
            case 5 if self.published():
                name = self.source.choice(self.published())
                self.scheduler.withdrawn(name, self.version)
                if name not in self.taken:
                    del self.out[name]
            case 6 if self.running:
                key = self.source.choice(sorted(self.running))
                self.scheduler.sampled(*key, self.source.choice([0, self.version]))
            case _:
                self.scheduler.queue_wait(self.source.choice([0.0, 9.0]), self.now)
        self.now += self.source.choice([0.0, 0.0, 0.5, 20.0])

    def run_out(self) -> None:
        """From here on everything goes well. A bound, within which the run must be over."""
        for _ in range(3000):
            self.decide()
            if self.scheduler.finished:
                return
            for name in self.published():
                if name not in self.taken:
                    self.taken.add(name)
                    self.scheduler.consumed(name)
            self.end(Ending(kind="valid", version=self.version))
            moment = self.scheduler.next_time(self.now)
            self.now = max(self.now + 0.01, moment or 0.0)
        raise AssertionError(f"not finished: {self.scheduler.policy}, {self.plans}, {self.out}")


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60))
def test_whatever_happened_before_every_group_ends_once_all_goes_well(
    seed: int, steps: int
) -> None:
    walk = Walk(random.Random(seed))
    for _ in range(steps):
        walk.decide()
        walk.happen()
    walk.run_out()
    assert not walk.running
    assert walk.out.keys() == {plan.group_id for plan in walk.plans}
    for plan in walk.plans:
        settled = walk.out[plan.group_id]
        assert len(settled.chosen) == len(set(settled.chosen)) <= plan.size + plan.extra


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_trainer_that_takes_nothing_holds_the_run_and_is_told_of(seed: int) -> None:
    """Either everything is settled, or it is said that the trainer is what is waited for."""
    walk = Walk(random.Random(seed))
    for _ in range(2000):
        walk.decide()
        if not walk.running and walk.scheduler.next_time(walk.now) is None:
            break
        walk.end(Ending(kind="valid"))
        walk.now = max(walk.now + 0.01, walk.scheduler.next_time(walk.now) or 0.0)
    assert walk.scheduler.finished or walk.scheduler.held_by_trainer
    bound = walk.scheduler.policy.buffer_groups
    assert bound is None or len(walk.out) <= bound
