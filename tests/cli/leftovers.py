"""Looking for processes by their family, from /proc: a zombie does not count as alive."""

import asyncio
from collections.abc import Callable
from pathlib import Path

Identity = tuple[int, str]
"""Pid and start time: a pid alone may be given to somebody else."""


def _stat(pid: int) -> list[str]:
    """State, parent, ... of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def children_of(pid: int) -> set[Identity]:
    """Every living descendant of `pid`."""
    parents: dict[int, int] = {}
    starts: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
            starts[int(entry.name)] = fields[19]
    found: set[int] = set()
    grown = {pid}
    while grown:
        grown = {child for child, parent in parents.items() if parent in grown} - found
        found |= grown
    return {(child, starts[child]) for child in found}


def gone(process: Identity) -> bool:
    fields = _stat(process[0])
    return not fields or fields[0] == "Z" or fields[19] != process[1]


def command_line(pid: int) -> bytes:
    """Empty for a process that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def wait_until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Poll until true; a bound, not a pause."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - /proc tells nobody when it changes
            await asyncio.sleep(0.02)
