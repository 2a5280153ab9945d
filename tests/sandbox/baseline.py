"""What a process has of its machine: taken before and after, to see that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from dataclasses import astuple, dataclass
from pathlib import Path

_OF_AN_ENGINE = re.compile(r"/(overlay2|containers|netns)/")
"""Mounts of containers, which others may be starting meanwhile."""


@dataclass(frozen=True)
class Baseline:
    """What this process has of the machine, without the containers that others may be using."""

    descriptors: int
    children: int
    threads: int
    """But for those that an event loop keeps for its calls."""
    mounts: int
    groups: int

    @classmethod
    def now(cls) -> Baseline:
        tasks = list(Path("/proc/self/task").iterdir())
        children = "".join((task / "children").read_text() for task in tasks).split()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        groups = Path("/sys/fs/cgroup").glob(f"*/rock/*.{os.getpid()}.*")
        return cls(
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            children=len(children),
            threads=len(tasks) - len([one for one in threading.enumerate() if _is_pooled(one)]),
            mounts=len([line for line in mounts if not _OF_AN_ENGINE.search(line)]),
            groups=len(list(groups)),
        )

    def is_more_than(self, other: Baseline) -> bool:
        """Of anything. What an earlier test had left may have gone meanwhile."""
        return any(
            mine > theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)
        )


async def until_same(before: Baseline) -> Baseline:
    """What is freed off the path is freed in the end."""
    deadline = time.monotonic() + 30
    while (now := Baseline.now()).is_more_than(before):
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {now}, before: {before}")
        await asyncio.sleep(0.1)
    return now


def _is_pooled(thread: threading.Thread) -> bool:
    return thread.name.startswith("asyncio_")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
