"""Curricula that come with rock: whose turn it is, by what earlier groups achieved."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rock.rollout.scheduler.plan import GroupPlan
from rock.rollout.scheduler.pool import Curriculum

TARGET = 0.5
"""The success rate at which rewards inside a group differ most."""
MEMORY = 0.8
"""Share of a tag's mean that stays when another group comes; older groups fade."""


class BySuccess:
    """The tag whose tasks are solved closest to half of the time comes first.

    A tag of which nothing is known yet comes before all others, so each is tried; a task with
    several tags is as heavy as the mean of theirs.
    """

    def __init__(self, *, target: float = TARGET) -> None:
        self._target = target
        self._means: dict[str, float] = {}

    def weigh(self, plan: GroupPlan) -> float:
        if not plan.tags:
            return -abs(self._target)
        return math.fsum(self._of(tag) for tag in plan.tags) / len(plan.tags)

    def _of(self, tag: str) -> float:
        mean = self._means.get(tag)
        return 1.0 if mean is None else -abs(mean - self._target)

    def learn(self, plan: GroupPlan, rewards: Sequence[float]) -> None:
        if not rewards:
            return
        mean = math.fsum(rewards) / len(rewards)
        for tag in plan.tags:
            before = self._means.get(tag)
            self._means[tag] = mean if before is None else MEMORY * before + (1 - MEMORY) * mean


def curriculum(name: str) -> Curriculum | None:
    """The curriculum of a run file's name; None keeps the order of the tasks."""
    return BySuccess() if name == "by_success" else None
