"""Whose fault is it that a grader gave no reward: its own, or that of what the agent left?

An agent that cannot solve a task could still keep its failure out of the statistics, by leaving work
that hangs, kills or confuses the grader. So a grader that gave nothing is tried over the untouched
task, in a sandbox of its own. If it gives a reward there, it works, and the agent's work scores 0.0.
If it gives none there either, it is broken, and there is no reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from rock.rollout.grading.scores import Grade
from rock.rollout.records.outcome import OutcomeClass

DOUBTED = frozenset({OutcomeClass.GRADER_BROKEN, OutcomeClass.GRADER_TIMEOUT})
"""Ends of a grading that the work may have brought about."""


class Controls:
    """What the graders of a run gave for untouched tasks: each is tried once, and only when in doubt."""

    def __init__(self) -> None:
        self._given: dict[str, Grade] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def settle(
        self, task_id: str, given: Grade, over_untouched: Callable[[], Awaitable[Grade]]
    ) -> Grade:
        """The grade that stands for `given`, which has no reward. Raises what `over_untouched` raises."""
        async with self._locks.setdefault(task_id, asyncio.Lock()):
            if task_id not in self._given:
                self._given[task_id] = await over_untouched()
            control = self._given[task_id]
        if control.reward is None:
            return given
        detail = f"{given.detail}; over the untouched task it gave {control.reward:g}"
        return replace(given, reward=0.0, cls=None, detail=detail)
