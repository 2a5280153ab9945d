"""When Python's cyclic collector runs in a service, whose calls stay in memory by the million.

By default each collection of the oldest generation looks at all of them: a pause of half a second for two
million objects, and longer each time, in which every agent waits. Nothing of the service's own needs
it: what it keeps is freed by counting references, and what it lets go has no cycles (a test holds
this). Garbage with cycles comes from libraries, and is young when it comes.

So the collector looks at an object once, when it is young, and then leaves it alone (`gc.freeze`). A few
objects that were in use at that moment and become garbage with cycles later stay behind; a whole
collection, which finds them, is made when there are twice as many objects as after the last one and
nobody has waited for a while, or when there are four times as many.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from typing import Literal, Never

log = logging.getLogger(__name__)

YOUNG_OBJECTS = 50_000
"""Objects made and kept between two looks; a look takes a quarter of a microsecond for each."""
LEAST_OBJECTS = 1_000_000
"""Below it nothing is worth a whole collection."""
PAUSE_SECONDS = 1.0
"""Between two questions whether a whole collection is due."""
QUIET_PAUSES = 3
"""After so many pauses in a row in which nobody waits, nobody is taken to come soon."""


class Collector:
    """Sets the rules for this process, while it is entered."""

    def __init__(
        self,
        *,
        young_objects: int = YOUNG_OBJECTS,
        least: int = LEAST_OBJECTS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._young_objects = young_objects
        self._least = least
        self._pause_seconds = pause_seconds
        self._kept = 0
        """Objects after the last whole collection."""
        self._counted = 0
        """Objects when they were counted last."""
        self._looks = 0
        """At young objects since then."""

    def __enter__(self) -> Collector:
        self._thresholds = gc.get_threshold()
        gc.collect()
        gc.freeze()
        self._kept = self._counted = gc.get_freeze_count()
        gc.set_threshold(self._young_objects, 1_000_000, 1_000_000)
        gc.callbacks.append(self._collected)
        return self

    def __exit__(self, *exc: object) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    async def watch(self, quiet: Callable[[], bool]) -> Never:
        """Make whole collections when they are due; `quiet` is asked whether nobody waits."""
        quiet_pauses = 0
        while True:
            await asyncio.sleep(self._pause_seconds)
            quiet_pauses = quiet_pauses + 1 if quiet() else 0
            if self.due(quiet=quiet_pauses >= QUIET_PAUSES):
                self.collect()

    def due(self, *, quiet: bool) -> bool:
        """Whether a whole collection should be made now; `quiet` says that nobody is there to wait for it."""
        bound = (2 if quiet else 4) * max(self._kept, self._least)
        if self._counted + self._looks * self._young_objects <= bound:
            return False
        # What was looked at and can be in no cycle is watched no longer: often most of it. Counting
        # takes a tenth of what looking takes.
        self._counted, self._looks = gc.get_freeze_count(), 0
        return self._counted > bound

    def collect(self) -> int:
        """Look at everything; how many objects could not be reached. Takes as long as it says above."""
        began = time.monotonic()
        gc.unfreeze()
        self._looks = 0
        found = gc.collect()
        gc.freeze()
        self._kept = self._counted = gc.get_freeze_count()
        log.info(
            "looked at all %d objects in %.2f s, %d were garbage",
            self._kept,
            time.monotonic() - began,
            found,
        )
        return found

    def _collected(self, phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 0:
            self._looks += 1
            gc.freeze()
