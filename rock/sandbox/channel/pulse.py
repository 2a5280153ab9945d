"""`Pulse`: whether a helper still answers, asked while commands wait for it.

A container that somebody pauses, a cgroup that is frozen and a first process that is stopped break no
connection: a command of ten hours would be waited for ten hours. So the helper is asked now and then.
Slow is not dead: where the machine has so much to do that the helper, or this process, gets no turn, or
the helper is seen to get on, its silence counts from anew, and only the command's own bound ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from rock.errors import RockError

log = logging.getLogger(__name__)

UNANSWERED_SECONDS = 30.0
"""So long a helper that gets nowhere may say nothing while a command runs."""
_QUARTERS = 4
_LATE_SECONDS = 1.0
"""A time-out that fires so much too late tells of this process, not of the helper."""
_RUNNABLE = "R"

Signs = tuple[str, ...]
"""Of one process: its state, then counters that grow when it gets on."""
Looking = Callable[[], Signs | None]


class Waiting(Protocol):
    """What waits for the helper."""

    def lose(self) -> None:
        """Wait no more: the helper is as good as gone."""
        ...


def unseen() -> None:
    """Signs of a helper on another machine, or in another pid namespace."""


def signs_of(pid: int) -> Signs | None:
    """None where there is no such process to see. Fields as in proc(5)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (OSError, ValueError):
        return None
    switches = [line for line in status if "ctxt_switches" in line]
    # state; minflt, majflt; utime, stime
    return (stat[0], stat[7], stat[9], stat[11], stat[12], *switches)


class Pulse:
    """Asks for as long as there is somebody to be told. `ask` raises `RockError` if it cannot."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        *,
        unanswered_seconds: float,
        looking: Looking,
    ) -> None:
        self._ask = ask
        self._quarter_seconds = unanswered_seconds / _QUARTERS
        self._looking = looking
        self._waiting: set[Waiting] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None

    def watch(self, waiting: Waiting) -> None:
        self._waiting.add(waiting)
        self._wind_up()

    def forget(self, waiting: Waiting) -> None:
        """Safe to call twice."""
        self._waiting.discard(waiting)
        if not self._waiting and self._asking is not None:
            self._asking.cancel()

    def _wind_up(self) -> None:
        if self._timer is None and self._asking is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._quarter_seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._waiting:
            self._asking = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        try:
            if await self._is_silent():
                for waiting in list(self._waiting):
                    waiting.lose()
        finally:
            self._asking = None
            self._wind_up()

    async def _is_silent(self) -> bool:
        """Whether it said nothing for three quarters on end, and did nothing either."""
        silent, before = 0, self._looking()
        while silent < _QUARTERS - 1:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._quarter_seconds):
                    await self._ask()
                return False
            except TimeoutError:
                silent += 1
            except RockError as exc:  # whoever waits notices an end by itself
                log.debug("the helper was not asked: %s", exc.message)
                return False
            late = time.monotonic() - began - self._quarter_seconds > _LATE_SECONDS
            now = self._looking()
            if late or _gets_on(before, now):
                silent = 0
            before = now
        return True


def _gets_on(before: Signs | None, now: Signs | None) -> bool:
    """Or would, if it were its turn."""
    return now is not None and (now[0] == _RUNNABLE or before != now)
