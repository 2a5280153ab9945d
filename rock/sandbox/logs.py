"""What happened in a sandbox, as plain values: no I/O.

An *action* is something that somebody did to a sandbox: a command, a script of a shell, a file, a reset.
It has an entry when it has ended; one that lasts has another when it began, and further ones with what it
wrote meanwhile. Entries are redacted before they are written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

ActionKind: TypeAlias = Literal[
    "created",
    "exec",
    "process",
    "shell",
    "script",
    "file",
    "listen",
    "env",
    "network",
    "snapshot",
    "restore",
    "reset",
    "pause",
    "resume",
]
Part: TypeAlias = Literal["began", "output", "ended"]
"""What of an action an entry tells."""
DONE = "done"
"""The status of an ended action that is no command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One line of a sandbox's log."""

    at: float
    """Seconds since 1970."""
    action: str
    """The same in all entries of one action."""
    kind: ActionKind
    part: Part
    by: str = ""
    """Who did it: `harness`, `server`, `client` (of a server), `attached` (another process)."""
    what: str = ""
    """The command, as a shell would want it, the path, or a few words. Cut at 500 characters."""
    status: str = ""
    """Of an ended one: an `ExecStatus`, `done`, or the code of the error that it raised."""
    exit_code: int | None = None
    signal: int | None = None
    seconds: float | None = None
    """Of an ended one: how long it took."""
    stdout_bytes: int = 0
    """Of an ended one: all that it wrote; of a file, its size."""
    stderr_bytes: int = 0
    stdout: bytes = b""
    """What it wrote since its last entry, or the beginning and the end of that."""
    stderr: bytes = b""
    left_out_bytes: int = 0
    """How much was written since the last entry and is in no entry: from the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPage:
    """A part of a log. The next part begins at `cursor`."""

    entries: tuple[LogEntry, ...]
    cursor: str
    complete: bool = True
    """False if there were entries before these, after the cursor asked from, that are kept no more."""


class Sink(Protocol):
    """Where entries go. Never waits and never raises: a log that cannot be written ends no command."""

    def add(self, entry: LogEntry) -> None: ...


class Nowhere:
    """The sink of a sandbox that keeps no log."""

    def add(self, entry: LogEntry) -> None:
        """Nothing."""
