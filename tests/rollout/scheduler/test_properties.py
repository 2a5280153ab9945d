"""What the scheduler promises, for any groups, bounds, endings and times, on a simulated clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
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
from rock.rollout.scheduler.simulate import Simulated, World, simulate

pytestmark = pytest.mark.timeout(120)

TAGS: tuple[str, ...] = ("easy", "hard")


@dataclass
class Case:
    """One drawn run: what there is to do, under which bounds, and how attempts go."""

    policy: SchedulePolicy
    plans: list[GroupPlan]
    seconds: dict[tuple[str, int], list[float]]
    kinds: dict[tuple[str, int], list[Ending]]
    world_step: int | None
    train_seconds: float
    stop_seconds: float
    tries: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])

    def duration(self, plan: GroupPlan, index: int) -> float:
        key = (plan.group_id, index)
        self.tries[key] += 1
        drawn = self.seconds[key]
        return drawn[self.tries[key] % len(drawn)]

    def ending(self, plan: GroupPlan, index: int) -> Ending:
        """As drawn; after that everything counts, since attempts do end for good some day."""
        drawn = self.kinds[plan.group_id, index]
        return drawn.pop(0) if drawn else Ending(kind="valid")


ENDINGS = st.sampled_from(
    [
        Ending(kind="valid"),
        Ending(kind="invalid"),
        Ending(kind="again"),
        Ending(kind="again", after_seconds=7.5),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    step = draw(st.none() | st.integers(1, 3))
    world_step = step if step else draw(st.none() | st.integers(1, 2))
    policy = SchedulePolicy(
        concurrency=draw(st.integers(1, 9)),
        groups_per_step=step,
        extra_groups=draw(st.integers(0, 2)) if step else 0,
        max_staleness=draw(st.none() | st.integers(0, 2)),
        buffer_groups=None if step else draw(st.none() | st.integers(world_step or 1, 4)),
        partial=draw(st.sampled_from(["partial", "drop", "refill"])),
        min_valid=draw(st.integers(0, 2)),
        starts_per_second=draw(st.none() | st.sampled_from([0.5, 3.0])),
        start_burst=draw(st.integers(1, 3)),
        task_concurrency=draw(st.none() | st.integers(1, 3)),
        tag_concurrency=draw(st.dictionaries(st.sampled_from(TAGS), st.integers(1, 3), max_size=2)),
    )
    plans = [
        GroupPlan(
            group_id=f"g{number}",
            task_id=f"t{draw(st.integers(0, 3))}",
            size=draw(st.integers(1, 4)),
            extra=draw(st.integers(0, 2)),
            tags=tuple(draw(st.sets(st.sampled_from(TAGS)))),
        )
        for number in range(draw(st.integers(1, 8)))
    ]
    members = [(plan.group_id, i) for plan in plans for i in range(plan.size + plan.extra)]
    times = st.lists(st.sampled_from([0.0, 1.0, 1.5, 4.0, 30.0]), min_size=1, max_size=3)
    return Case(
        policy=policy,
        plans=plans,
        seconds={key: draw(times) for key in members},
        kinds={key: draw(st.lists(ENDINGS, max_size=2)) for key in members},
        world_step=world_step,
        train_seconds=draw(st.sampled_from([0.0, 2.0, 25.0])),
        stop_seconds=draw(st.sampled_from([0.0, 0.5, 3.0])),
    )


class Watch:
    """Checks every promise that holds at every moment, from the decisions alone."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.plans = {plan.group_id: plan for plan in case.plans}
        self.running: set[tuple[str, int]] = set()
        self.done: dict[tuple[str, int], Ending] = {}
        self.settled: dict[str, Settled] = {}
        self.cancelled: set[tuple[str, int]] = set()
        self.consumed: set[str] = set()
        self.under_way: set[str] = set()
        self.starts: list[float] = []
        self.ended = 0

    def __call__(self, now: float, event: object) -> None:
        match event:
            case Start():
                self._start(now, (event.group_id, event.index))
            case Cancel():
                key = (event.group_id, event.index)
                assert key in self.running, "only what runs can be told to stop"
                assert key not in self.cancelled, "once is enough"
                self.cancelled.add(key)
                if event.reason == "redundant_group":
                    self.under_way.discard(event.group_id)
            case Reopen():
                del self.done[event.group_id, event.index]
                self.settled.pop(event.group_id, None)
            case Settled():
                self.settled[event.group_id] = event
                if not event.publish:
                    self.under_way.discard(event.group_id)
            case str():
                self.consumed.add(event)
            case (str() as group_id, int() as index, Ending() as ending):
                self._end((group_id, index), ending)
            case _:
                raise AssertionError(f"an unknown event {event}")

    def _start(self, now: float, key: tuple[str, int]) -> None:
        assert key not in self.running, "two attempts of one member"
        assert key not in self.done, "a member that has ended for good"
        assert key[0] not in self.settled, "a group that has its members"
        self.running.add(key)
        self.starts.append(now)
        policy = self.case.policy
        self.under_way.add(key[0])
        ahead = len(self.under_way - self.consumed)
        if policy.buffer_groups is not None:
            assert ahead <= policy.buffer_groups
        if policy.groups_per_step is not None and policy.max_staleness is not None:
            step = policy.groups_per_step + policy.extra_groups
            assert ahead <= (policy.max_staleness + 1) * step + policy.extra_groups
        assert len(self.running) <= policy.concurrency
        used = Counter(tag for group_id, _ in self.running for tag in self.plans[group_id].tags)
        assert all(used[tag] <= bound for tag, bound in policy.tag_concurrency.items())
        tasks = Counter(self.plans[group_id].task_id for group_id, _ in self.running)
        if policy.task_concurrency is not None:
            assert max(tasks.values()) <= policy.task_concurrency
        if policy.starts_per_second is not None:
            recent = sum(at > now - 10.0 for at in self.starts)
            assert recent <= policy.start_burst + 10.0 * policy.starts_per_second + 1e-6

    def _end(self, key: tuple[str, int], ending: Ending) -> None:
        self.running.remove(key)
        self.cancelled.discard(key)
        self.ended += 1
        if ending.kind != "again":
            self.done[key] = ending

    def check_end(self, result: Simulated) -> None:
        case = self.case
        assert not self.running
        assert self.ended == result.starts, "every attempt has one end"
        assert self.settled.keys() == self.plans.keys(), "every group is settled"
        assert result.consumed_at.keys() | set(result.dropped) == self.plans.keys()
        for group_id, chosen in result.chosen.items():
            if group_id in result.dropped:
                continue
            plan = self.plans[group_id]
            assert len(chosen) <= plan.size
            valid = [i for i in chosen if self.done[group_id, i].kind == "valid"]
            if len(valid) < plan.size:
                assert case.policy.partial != "drop"
                assert len(valid) >= case.policy.min_valid
        if case.policy.max_staleness is not None:
            assert result.worst_staleness <= case.policy.max_staleness


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_nothing_is_lost_or_run_twice_and_every_bound_is_kept(case: Case) -> None:
    scheduler = Scheduler(case.policy)
    watch = Watch(case)
    world = World(
        durations=case.duration,
        endings=case.ending,
        groups_per_step=case.world_step,
        train_seconds=case.train_seconds,
        stop_seconds=case.stop_seconds,
    )
    result = simulate(scheduler, case.plans, world, observe=watch, max_events=20_000)
    watch.check_end(result)


def test_a_group_that_is_dropped_when_the_trainer_refuses_it_ends_the_run() -> None:
    """Five groups of nothing but staleness: the last becomes too old once more than it may."""
    policy = SchedulePolicy(concurrency=4, max_staleness=0)
    plans = [GroupPlan(group_id=f"g{number}", task_id="t", size=1) for number in range(5)]
    world = World(
        durations=lambda _plan, _index: 0.0,
        endings=lambda _plan, _index: Ending(kind="valid"),
        groups_per_step=1,
    )
    result = simulate(Scheduler(policy), plans, world, max_events=20_000)
    assert result.dropped == ["g4"]
    assert sorted(result.consumed_at) == ["g0", "g1", "g2", "g3"]
