"""Groups that wait to be opened, and whose turn it is. No I/O.

Groups with the same bounds (their task's and tags' quotas) wait in one line, so that a full quota
holds back its own line only. Among lines with room the oldest group is next, or the one that the
curriculum weighs heaviest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from rock.rollout.scheduler.plan import GroupPlan

QuotaKey: TypeAlias = tuple[str, str]
"""`("task", id)` or `("tag", name)`."""


class Curriculum(Protocol):
    """Whose turn it is, by what earlier groups achieved. Only the order is its; every group's turn
    comes, since there are finitely many."""

    def weigh(self, plan: GroupPlan) -> float:
        """The heaviest group is opened next; of equal ones the one that waited longest."""
        ...

    def learn(self, plan: GroupPlan, rewards: Sequence[float]) -> None:
        """A group went out with these rewards."""
        ...


class Pool:
    """Waiting groups by quota keys. A group that is put back keeps its place in the order."""

    def __init__(self, curriculum: Curriculum | None = None) -> None:
        self._curriculum = curriculum
        self._lines: dict[tuple[QuotaKey, ...], dict[str, tuple[int, GroupPlan]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, plan: GroupPlan, keys: tuple[QuotaKey, ...], place: int) -> None:
        """`place` orders groups; one that comes back is among the first by its old place."""
        line = self._lines.setdefault(keys, {})
        late = bool(line) and next(reversed(line.values()))[0] > place
        line[plan.group_id] = (place, plan)
        self._count += 1
        if late:
            self._lines[keys] = dict(sorted(line.items(), key=lambda item: item[1][0]))

    def remove(self, group_id: str, keys: tuple[QuotaKey, ...]) -> None:
        line = self._lines.get(keys, {})
        if line.pop(group_id, None) is not None:
            self._count -= 1
        if not line:
            self._lines.pop(keys, None)

    def take(self, has_room: Callable[[tuple[QuotaKey, ...]], bool]) -> str | None:
        """The id of the next group, which waits no longer; None if none may be opened."""
        best: tuple[float, int] | None = None
        found: tuple[str, tuple[QuotaKey, ...]] | None = None
        for keys, line in self._lines.items():
            if not has_room(keys):
                continue
            for group_id, (place, plan) in line.items():
                weight = self._curriculum.weigh(plan) if self._curriculum else 0.0
                if best is None or (weight, -place) > best:
                    best, found = (weight, -place), (group_id, keys)
                if self._curriculum is None:
                    break  # the first of its line is the oldest
        if found is None:
            return None
        self.remove(*found)
        return found[0]
