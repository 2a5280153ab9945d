"""What this machine has left for sandboxes, measured, and a clear no before it runs out.

Each resource is read from the kernel at the moment of asking. What a sandbox takes is a little and
known (its helper, its descriptors); what its commands will take is not, so some of everything is kept
free for those that are there. A refusal names the resource, the numbers, and what would help.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rock.errors import CapacityExceeded, SandboxError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One resource: how much is free, how much of it is kept free, and what one sandbox takes."""

    name: str
    free: int
    kept_free: int
    each: int
    remedy: str

    @property
    def sandboxes(self) -> int:
        """How many more fit."""
        return max(0, (self.free - self.kept_free) // self.each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one idle sandbox of a provider takes of this machine and of this process."""

    memory_bytes: int
    pids: int
    open_files: int
    disk_bytes: int


LOCAL_COST = Cost(memory_bytes=4 * _MIB, pids=2, open_files=3, disk_bytes=0)
DOCKER_COST = Cost(memory_bytes=12 * _MIB, pids=14, open_files=5, disk_bytes=1 * _MIB)
"""A container's shim has a dozen threads; measured by benchmarks/sandbox_state.py."""

_OF_THIS_PROCESS = {
    errno.EMFILE: "this process may have no more open files; raise the bound (ulimit -n)",
    errno.ENFILE: "this machine may have no more open files (fs.file-max)",
    errno.ETOOMANYREFS: "this user has too many descriptors on their way; raise ulimit -n",
    errno.ENOMEM: "no memory",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "this user's share of the disk is full",
}


def own_trouble(exc: OSError, what: str) -> SandboxError:
    """The error for what failed on this side, where the sandbox may well be fine."""
    if exc.errno in _OF_THIS_PROCESS:
        return CapacityExceeded(f"{what}: {_OF_THIS_PROCESS[exc.errno]}")
    place = f" ({exc.filename!s})" if exc.filename else ""
    return SandboxError(f"{what}: {exc.strerror}{place}")


def is_own_trouble(exc: OSError) -> bool:
    """Whether this process or its machine has run out of something."""
    return exc.errno in _OF_THIS_PROCESS


Measure = Callable[[Cost, Path], Sequence[Room]]


def measure(cost: Cost, disk: Path) -> list[Room]:
    """Every resource that this machine tells; `disk` is where sandboxes keep files."""
    found = [_memory(cost), _pids(cost), _open_files(cost)]
    if cost.disk_bytes:
        found.append(_disk(cost, disk))
    return [*found, *_kernel_tables()]


class Admission:
    """Says no to a sandbox that this machine has no room for. Counts those that are being made."""

    def __init__(self, cost: Cost, disk: Path, *, measured: Measure = measure) -> None:
        self._cost = cost
        self._disk = disk
        self._measured = measured
        self._starting = 0

    def __enter__(self) -> None:
        """Around the making of one. Raises `CapacityExceeded`."""
        for room in self._measured(self._cost, self._disk):
            if room.sandboxes <= self._starting:
                raise CapacityExceeded(
                    f"no room for another sandbox: {room.name}: {room.free} left, of which "
                    f"{room.kept_free} are kept free; one takes {room.each}, and {self._starting} "
                    f"are being made; {room.remedy}"
                )
        self._starting += 1

    def __exit__(self, *_: object) -> None:
        self._starting -= 1


def _memory(cost: Cost) -> Room:
    free, total = 0, 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            free = int(rest.split()[0]) * 1024
        if name == "MemTotal":
            total = int(rest.split()[0]) * 1024
    within = _cgroup_memory_left()
    return Room(
        name="bytes of memory",
        free=free if within is None else min(free, within),
        kept_free=min(256 * _MIB, total // 10),
        each=cost.memory_bytes,
        remedy="stop sandboxes, or bound their memory",
    )


def _cgroup_memory_left() -> int | None:
    """What the control group of this process leaves, in bytes; None if it bounds nothing."""
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        bound = _number(Path(limit))
        if bound is not None and bound < 1 << 60:
            return max(0, bound - (_number(Path(used)) or 0))
    return None


def _pids(cost: Cost) -> Room:
    bounds = [
        _number(Path(path)) for path in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max")
    ]
    bound = min((number for number in bounds if number is not None), default=32768)
    # The fourth field of loadavg is "running/all threads".
    used = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return Room(
        name="process numbers",
        free=bound - used,
        kept_free=min(1024, bound // 10),
        each=cost.pids,
        remedy="raise kernel.pid_max and kernel.threads-max",
    )


def _open_files(cost: Cost) -> Room:
    bound = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return Room(
        name="open files of this process",
        free=bound - len(os.listdir("/proc/self/fd")),  # noqa: PTH208 (names only, often)
        kept_free=min(128, bound // 8),
        each=cost.open_files,
        remedy="raise the bound on open files (ulimit -n)",
    )


def _disk(cost: Cost, folder: Path) -> Room:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return Room(
        name=f"bytes on the disk of {folder}",
        free=usage.free,
        kept_free=min(1024 * _MIB, usage.total // 20),
        each=cost.disk_bytes,
        remedy="free some space",
    )


def _kernel_tables() -> list[Room]:
    """Terminals are counted by the kernel; of inotify instances only the bound is known."""
    found: list[Room] = []
    bound, used = (
        _number(Path("/proc/sys/kernel/pty/max")),
        _number(Path("/proc/sys/kernel/pty/nr")),
    )
    if bound is not None and used is not None:
        found.append(
            Room(
                name="terminals",
                free=bound - used,
                kept_free=min(16, bound // 10),
                each=1,
                remedy="raise kernel.pty.max",
            )
        )
    watchers = _number(Path("/proc/sys/fs/inotify/max_user_instances"))
    if watchers is not None:
        found.append(
            Room(
                name="inotify instances of a user",
                free=watchers,
                kept_free=0,
                each=1,
                remedy="raise fs.inotify.max_user_instances",
            )
        )
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
