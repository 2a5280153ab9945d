"""Does the agent get anywhere? The watch over one attempt, and what others tell it.

Two things are signs of life: a call to the model, which ModelService reports, and processor time
that is used in the sandbox. A call that waits for its answer is the model's time, not the agent's,
and stops the clock. Only if there was neither for the whole limit the agent is said to be stuck.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rock.errors import SandboxDied, SandboxError
from rock.modelservice.wire.pulse import SessionPulse
from rock.rollout.records.evidence import of_a_living_box
from rock.rollout.records.outcome import OutcomeClass
from rock.sandbox.base import Sandbox
from rock.types import Clock

LOOK_SECONDS = 10.0
"""The sandbox is asked this often at most, and only once the model has not been for a while."""
ASK_SECONDS = 5.0
BUSY_SHARE = 0.01
"""Of one processor: less than this is a program that only waits, and looks at the clock."""
_PROCESSES = ["sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null; true"]

Processes: TypeAlias = Mapping[tuple[int, int], int]
"""By process id and start time: ticks of processor time, those of its ended children included."""


@dataclass(slots=True)
class Handle:
    """What the harness and an attempt tell each other while it runs."""

    stop_class: OutcomeClass = OutcomeClass.CANCELLED
    """The class of the attempt if it is cancelled now."""
    stop_detail: str = ""
    session_id: str | None = None
    """Set by the attempt while its session is open."""
    pulse: SessionPulse | None = None
    """Set by the harness: the session's last signs of life."""


class Watchdog:
    """When an agent is stuck. No I/O; time is passed in."""

    def __init__(self, limit_seconds: float, now: float) -> None:
        self.limit_seconds = limit_seconds
        self._alive_at = now
        self._seen: tuple[float, Processes] | None = None

    def quiet_seconds(self, now: float) -> float:
        return now - self._alive_at

    def stuck(self, now: float) -> bool:
        return self.quiet_seconds(now) >= self.limit_seconds

    def heard(self, pulse: SessionPulse, now: float) -> None:
        """The model service says how the session is."""
        if pulse.queued or pulse.leased:
            self._alive_at = now
        elif pulse.last_call_age_seconds is not None:
            self._alive_at = max(self._alive_at, now - pulse.last_call_age_seconds)

    def saw(self, processes: Processes, now: float) -> None:
        """What runs in the sandbox, and what it has used since it began."""
        before, self._seen = self._seen, (now, processes)
        if before is None:
            return
        since, known = before
        used = sum(ticks - known[name] for name, ticks in processes.items() if name in known)
        if used >= max(1.0, BUSY_SHARE * (now - since) * _TICKS_PER_SECOND):
            self._alive_at = now


_TICKS_PER_SECOND: int = os.sysconf("SC_CLK_TCK")


def parse_processes(text: bytes) -> Processes:
    """Lines of /proc/PID/stat (proc(5): utime 14, stime 15, cutime 16, cstime 17, starttime 22)."""
    found: dict[tuple[int, int], int] = {}
    for line in text.splitlines():
        pid, _, rest = line.partition(b" ")
        fields = rest.rpartition(b")")[2].split()  # the name in brackets may contain anything
        if pid.isdigit() and len(fields) >= 20:
            found[int(pid), int(fields[19])] = sum(int(field) for field in fields[11:15])
    return found


async def until_stuck(handle: Handle, sandbox: Sandbox, watchdog: Watchdog, clock: Clock) -> None:
    """Returns once the agent in `sandbox` is stuck. Runs until cancelled otherwise."""
    limit = watchdog.limit_seconds
    look = min(LOOK_SECONDS, limit / 4)
    while not watchdog.stuck(clock()):
        await asyncio.sleep(look)
        if handle.pulse is not None:
            watchdog.heard(handle.pulse, clock())
        if watchdog.quiet_seconds(clock()) >= limit / 2 - look:
            watchdog.saw(await _processes(sandbox), clock())


async def _processes(sandbox: Sandbox) -> Processes:
    """None where the sandbox cannot say: then the model's word decides alone. Raises `SandboxDied`."""
    try:
        result = await sandbox.exec(_PROCESSES, timeout_seconds=ASK_SECONDS)
    except SandboxDied:
        raise
    except SandboxError:  # such as an image without a shell
        return {}
    result = of_a_living_box(result, "while its agent was watched")
    return parse_processes(result.stdout)
