"""The phases of one attempt: which one it is in, how long each took, and when each must be over.

    provision → setup → agent → export → grade → teardown

Every phase has a bound of its own. The bound on the whole lies around those up to the agent's end:
what is left of it cuts theirs, so an attempt that was slow to begin has less time for its agent. What
the agent did is always fetched and graded in the time that these have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from rock.rollout.records.outcome import Phase
from rock.types import Clock

LEAST_SECONDS = 0.01
"""What a phase gets that begins when the whole is over: enough to fail in it, by its name."""
_WITHIN_THE_WHOLE = frozenset({Phase.PROVISION, Phase.SETUP, Phase.AGENT})


class Phases:
    """Where one attempt is. `phase` is blamed for what is raised while it is entered."""

    def __init__(
        self, clock: Clock, *, whole_seconds: float | None, on_enter: Callable[[Phase], None]
    ) -> None:
        self._clock = clock
        self._end = None if whole_seconds is None else clock() + whole_seconds
        self._on_enter = on_enter
        self.phase = Phase.PROVISION
        self.seconds: dict[str, float] = {}

    def bounded(self, phase: Phase, seconds: float) -> float:
        """`seconds`, or less if the attempt as a whole has less left for the phase."""
        if self._end is None or phase not in _WITHIN_THE_WHOLE:
            return seconds
        return max(LEAST_SECONDS, min(seconds, self._end - self._clock()))

    @asynccontextmanager
    async def enter(
        self, phase: Phase, seconds: float, *, slack_seconds: float = 0.0
    ) -> AsyncGenerator[float]:
        """Be in `phase` for at most `seconds`, of which the rest of the whole is given. Yields how
        many that are. `slack_seconds` is for a bound that the other side keeps: only if that is
        exceeded, too, `TimeoutError` is raised."""
        before, started = self.phase, self._clock()
        self.phase = phase
        if phase is not before or not self.seconds:
            self._on_enter(phase)
        bound = self.bounded(phase, seconds)
        try:
            async with asyncio.timeout(bound + slack_seconds):
                yield bound
        finally:
            spent = self._clock() - started
            self.seconds[phase.value] = round(self.seconds.get(phase.value, 0.0) + spent, 6)
