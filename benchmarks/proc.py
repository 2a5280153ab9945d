"""What processes cost: CPU time and memory of a process and its children, and which core they get."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def tree(pid: int) -> list[int]:
    """The process and all its descendants that are alive."""
    found = [pid]
    for one in found:
        for task in _tasks(one):
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time that the process and its descendants have used so far.

    From the scheduler, in nanoseconds, so that short measurements mean something.
    """
    total = 0
    for one in tree(pid):
        for task in _tasks(one):
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """Memory of this process alone that is in RAM."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def pin(pids: Iterable[int], core: int) -> bool:
    """Keep processes, their descendants and threads on one core; False where that is refused."""
    try:
        for pid in pids:
            for one in tree(pid):
                for task in _tasks(one):
                    os.sched_setaffinity(int(task.name), {core})
    except OSError:
        return False
    return True


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
