"""What is due when: one moment per name, in O(log n), without a timer object for each; and the time
of day, which goes on while no process runs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from time import CLOCK_REALTIME, clock_gettime


def epoch_seconds() -> float:
    """Seconds since 1970: the one clock that two runs of a service share."""
    return clock_gettime(CLOCK_REALTIME)  # a third of what a datetime costs


class Timers:
    """Moments by name. Setting a name again moves its moment."""

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._moments)

    def moment(self, name: str) -> float | None:
        """When a name is due; None if it is not known."""
        return self._moments.get(name)

    def set(self, name: str, moment: float) -> None:
        self._moments[name] = moment
        heapq.heappush(self._heap, (moment, name))
        if len(self._heap) > 2 * len(self._moments) + 64:
            self._shrink()

    def drop(self, name: str) -> None:
        """Forget a name; unknown names are fine."""
        if (
            self._moments.pop(name, None) is not None
            and len(self._heap) > 2 * len(self._moments) + 64
        ):
            self._shrink()

    def due(self, now: float) -> Iterator[str]:
        """Each name whose moment has come, forgotten as it is yielded."""
        while self._heap and self._heap[0][0] <= now:
            moment, name = heapq.heappop(self._heap)
            if self._moments.get(name) == moment:  # else dropped, or moved since
                del self._moments[name]
                yield name

    def _shrink(self) -> None:
        # Dropped and moved entries stay in the heap until they surface or outnumber the live ones.
        self._heap = [(moment, name) for name, moment in self._moments.items()]
        heapq.heapify(self._heap)
