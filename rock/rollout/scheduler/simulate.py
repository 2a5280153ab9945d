"""The same scheduler on a clock of its own: a machine, a trainer and attempts that take drawn times.

    result = simulate(scheduler, durations=lambda plan, index: …, train_seconds=60)

What happens in a real run happens here at simulated moments: attempts end, losers are stopped and
their stop takes a moment, the trainer takes a step's groups, trains, and raises the policy version.
Between two decisions nothing passes unseen, so hours of a run take milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.plan import Cancel, Decision, Ending, GroupPlan, Settled, Start

Durations = Callable[[GroupPlan, int], float]
Endings = Callable[[GroupPlan, int], Ending]
Observe = Callable[[float, object], None]


def counts(_plan: GroupPlan, _index: int) -> Ending:
    """Every attempt counts."""
    return Ending(kind="valid")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is around the scheduler. Times are seconds.

    `groups_per_step` and `train_seconds` describe the trainer: it takes that many groups, trains,
    raises the version, and acknowledges them. It samples with the old version meanwhile. Without
    `groups_per_step` it takes every group at once and its version stays.
    """

    durations: Durations
    endings: Endings = counts
    groups_per_step: int | None = None
    train_seconds: float = 0.0
    stop_seconds: float = 0.0
    """How long it takes until a stopped attempt has ended."""


@dataclass(slots=True)
class Simulated:
    """What came of it."""

    seconds: float = 0.0
    published_at: dict[str, float] = field(default_factory=dict[str, float])
    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    consumed_at: dict[str, float] = field(default_factory=dict[str, float])
    dropped: list[str] = field(default_factory=list[str])
    kept_seconds: list[float] = field(default_factory=list[float])
    stopped_seconds: list[float] = field(default_factory=list[float])
    starts: int = 0
    busy_seconds: float = 0.0
    """Attempt seconds, those of stopped attempts included."""
    worst_staleness: int = 0
    """Steps between the policy that began a sample and the one that took it."""
    step_seconds: list[float] = field(default_factory=list[float])
    versions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """By member: the policy version that began its sample, if it counts."""


@dataclass(slots=True)
class _Attempt:
    began: float
    number: int
    version: int
    stopping: bool = False


class _Simulation:
    def __init__(
        self, scheduler: Scheduler, plans: dict[str, GroupPlan], world: World, observe: Observe
    ) -> None:
        self.scheduler = scheduler
        self.plans = plans
        self.world = world
        self.observe = observe
        self.now = 0.0
        self.version = 0
        self.result = Simulated()
        self.events: list[tuple[float, int, str, str, int]] = []
        """(moment, number, kind, group, index); the number of an attempt's end names the attempt."""
        self.number = 0
        self.attempts: dict[tuple[str, int], _Attempt] = {}
        self.waiting: list[str] = []
        """Published groups, oldest first."""
        self.training: list[str] = []
        """Groups that the trainer has taken and not yet acknowledged."""
        self.step_began = 0.0

    def run(self, bound: int) -> Simulated:
        self.scheduler.policy_version(0)
        for _ in range(bound):
            if self._decided():  # what the trainer takes makes room, so more may be decided now
                continue
            if self._over():
                self.result.seconds = self.now
                return self.result
            self._advance()
        raise RuntimeError(f"the simulation did not end within {bound} events")

    def _over(self) -> bool:
        return self.scheduler.finished and not self.waiting and not self.training

    def _decided(self) -> bool:
        """Do what the scheduler decides at this moment; whether that was anything."""
        decisions = self.scheduler.decide(self.now)
        for decision in decisions:
            self._do(decision)
        self._take()
        return bool(decisions)

    def _do(self, decision: Decision) -> None:
        self.observe(self.now, decision)
        match decision:
            case Start():
                self._begin(decision.group_id, decision.index)
            case Cancel():
                self._stop(decision.group_id, decision.index)
            case Settled(publish=True):
                self.waiting.append(decision.group_id)
                self.result.published_at[decision.group_id] = self.now
                self.result.chosen[decision.group_id] = decision.chosen
            case Settled():
                self.result.dropped.append(decision.group_id)
            case _:
                pass

    def _begin(self, group_id: str, index: int) -> None:
        seconds = self.world.durations(self.plans[group_id], index)
        number = self._push(self.now + seconds, "end", group_id, index)
        attempt = _Attempt(self.now, number, self.version)
        self.attempts[group_id, index] = attempt
        self.result.starts += 1
        self.result.versions.pop((group_id, index), None)
        self.scheduler.sampled(group_id, index, self.version)

    def _stop(self, group_id: str, index: int) -> None:
        attempt = self.attempts[group_id, index]
        attempt.stopping = True
        moment = self.now + self.world.stop_seconds
        attempt.number = self._push(moment, "end", group_id, index)

    def _push(self, moment: float, kind: str, group_id: str = "", index: int = 0) -> int:
        self.number += 1
        heapq.heappush(self.events, (moment, self.number, kind, group_id, index))
        return self.number

    def _take(self) -> None:
        """The trainer takes groups: each at once without steps, else a step's together."""
        size = self.world.groups_per_step
        if size is None:
            for group_id in self.waiting:
                self._took(group_id)
                self._acknowledge(group_id)
            self.waiting.clear()
            return
        bound = self.scheduler.policy.max_staleness
        for group_id in list(self.waiting):
            if bound is not None and self.version - self._oldest(group_id) > bound:
                self.waiting.remove(group_id)
                self.scheduler.withdrawn(group_id, self.version)
        enough = len(self.waiting) >= size or (self.scheduler.finished and self.waiting)
        if self.training or not enough:
            return
        self.training, self.waiting = self.waiting[:size], self.waiting[size:]
        for group_id in self.training:
            self._took(group_id)
        self._push(self.now + self.world.train_seconds, "trained")

    def _oldest(self, group_id: str) -> int:
        versions = self.result.versions
        members = [(group_id, index) for index in self.result.chosen[group_id]]
        return min((versions[m] for m in members if m in versions), default=self.version)

    def _acknowledge(self, group_id: str) -> None:
        self.observe(self.now, group_id)
        self.scheduler.consumed(group_id)

    def _took(self, group_id: str) -> None:
        self.result.consumed_at[group_id] = self.now
        staleness = self.version - self._oldest(group_id)
        self.result.worst_staleness = max(self.result.worst_staleness, staleness)

    def _advance(self) -> None:
        """On to the next moment at which anything happens."""
        wake = self.scheduler.next_time(self.now)
        while self.events and self._obsolete():
            heapq.heappop(self.events)
        if wake is not None and (not self.events or wake < self.events[0][0]):
            self.now = max(self.now, wake)
            return
        if not self.events:
            raise RuntimeError("the scheduler waits for nothing")
        self.now, _, kind, group_id, index = heapq.heappop(self.events)
        if kind == "trained":
            self._trained()
        else:
            self._end(group_id, index)

    def _obsolete(self) -> bool:
        _, number, kind, group_id, index = self.events[0]
        attempt = self.attempts.get((group_id, index))
        return kind == "end" and (attempt is None or attempt.number != number)

    def _trained(self) -> None:
        self.version += 1
        self.result.step_seconds.append(self.now - self.step_began)
        self.step_began = self.now
        self.scheduler.policy_version(self.version)
        for group_id in self.training:
            self._acknowledge(group_id)
        self.training = []

    def _end(self, group_id: str, index: int) -> None:
        attempt = self.attempts.pop((group_id, index))
        seconds = self.now - attempt.began
        self.result.busy_seconds += seconds
        if attempt.stopping:
            self.result.stopped_seconds.append(seconds)
            ending = Ending(kind="again")
        else:
            ending = self.world.endings(self.plans[group_id], index)
            if ending.kind == "valid":
                self.result.kept_seconds.append(seconds)
                self.result.versions[group_id, index] = attempt.version
        self.observe(self.now, (group_id, index, ending))
        self.scheduler.ended(group_id, index, ending, self.now)


def ignore(_now: float, _event: object) -> None:
    """For a simulation that nobody watches."""


def simulate(
    scheduler: Scheduler,
    plans: list[GroupPlan],
    world: World,
    *,
    observe: Observe = ignore,
    max_events: int = 5_000_000,
) -> Simulated:
    """Add `plans` to the scheduler and run until the trainer has taken everything.

    `observe` sees every decision, every attempt's end as (group id, index, ending), and the id of
    every group that is acknowledged. Raises `RuntimeError` if the scheduler stops without being finished, which would be a bug in it.
    """
    for plan in plans:
        scheduler.add(plan)
    return _Simulation(scheduler, {plan.group_id: plan for plan in plans}, world, observe).run(
        max_events
    )
