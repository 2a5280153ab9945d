"""Commands of a sandbox: how one ends, one that is running, and a shell that is kept.

Bytes stay bytes. Whoever wants text uses `TextDecoder`, which never cuts a character in two.
"""

from __future__ import annotations

import codecs
import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

StreamName = Literal["stdout", "stderr"]
Overflow = Literal["kill", "truncate"]
"""At the output limit: end the command, or let it go on and leave out the middle."""

DEFAULT_OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
DEFAULT_KEPT_BYTES = 1024 * 1024
"""Of each stream of a command that runs in the background or is streamed."""


class ExecStatus(enum.StrEnum):
    """How a command ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    TIMED_OUT = "timed_out"
    OOM_KILLED = "oom_killed"
    OUTPUT_LIMIT = "output_limit"
    SANDBOX_DIED = "sandbox_died"


class DeathCause(enum.StrEnum):
    """Why a sandbox does not answer, as far as its provider can find out."""

    STOPPED = "stopped"
    """By its owner."""
    LIFETIME = "lifetime"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    """Its first process was ended from outside."""
    GONE = "gone"
    """Nothing is left that could tell: removed, or lost with its engine."""
    PAUSED = "paused"
    """It is there, but its processes do not run."""
    ENGINE_GONE = "engine_gone"
    """The engine that could tell does not answer."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Death:
    cause: DeathCause
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command did. Output is partial when the status is not `exited` or `signaled`.

    `stdout` and `stderr` hold at most the output limit each; `stdout_bytes` and `stderr_bytes` count
    everything that was written. Where more was written than is kept, the beginning and the end are
    kept: what is missing was between them, at `stdout_gap` (an offset into `stdout`). `exit_code` is
    set only for `exited`, `signal` only for `signaled`, `death` only for `sandbox_died`.
    """

    status: ExecStatus
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    duration_seconds: float
    stdout_gap: int | None = None
    stderr_gap: int | None = None
    death: Death | None = None

    @property
    def ok(self) -> bool:
        """True if the command ran to its end with exit code 0."""
        return self.status is ExecStatus.EXITED and self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of the output of a command that may still run; see `ExecResult`."""

    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    stdout_gap: int | None
    stderr_gap: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult(ExecResult):
    """What one script did in a shell, and what became of the shell.

    `alive`: it goes on where it is. `ended`: the script ended it (`exit`, `set -e`, a signal); the
    status is the shell's own. `replaced`: it could not be stopped without ending it; a new one, with
    nothing of the old one's state, has taken its place.
    """

    shell: Literal["alive", "ended", "replaced"]


@dataclass(frozen=True, slots=True)
class Output:
    """Some bytes that a command has just written. With a terminal all of it is `stdout`."""

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class TerminalSize:
    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """A process of a sandbox, whoever started it, as it is seen inside."""

    pid: int
    parent: int
    uid: int
    state: str
    """The kernel's letter: R, S, D, T, Z, …"""
    cpu_seconds: float
    resident_bytes: int
    command: tuple[str, ...]
    """Cut at 4 KiB; `[name]` where there is none."""


class TextDecoder:
    """Bytes of one stream in, text out, whatever the cut; what is no UTF-8 becomes U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left of a character that never became whole."""
        return self._decoder.decode(b"", final=True)


class Process(ABC):
    """A command that runs. `async with`: leaving it ends the command and everything it started."""

    id: str
    argv: tuple[bytes, ...]
    pid: int
    """In the sandbox."""

    @property
    @abstractmethod
    def running(self) -> bool: ...

    @abstractmethod
    def events(self) -> AsyncIterator[Output]:
        """What the command writes, as it writes it; for one reader, of a streamed command.

        A reader that is slow stops the command in its next write: nothing piles up here.
        """

    @abstractmethod
    def so_far(self) -> Kept:
        """The output until now, bounded as it is at the end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give it stdin; waits while it does not read. What it no longer reads is dropped."""

    @abstractmethod
    async def close_stdin(self) -> None: ...

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the program itself; nothing happens if it has ended."""

    @abstractmethod
    async def resize(self, size: TerminalSize) -> None: ...

    @abstractmethod
    async def kill(self) -> ExecResult:
        """End it and everything it started, then answer."""

    @abstractmethod
    async def wait(self) -> ExecResult:
        """Its result. Cancelling the wait does not end the command. Raises nothing of the box."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()


class Shell(ABC):
    """A shell that is kept: directory, variables and functions go from one script to the next.

    Scripts run one after the other, in the order in which they were asked for.
    """

    program: str

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    async def run(
        self,
        script: str | bytes,
        *,
        timeout_seconds: float,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ShellResult:
        """Run a script of any size and wait for it; its stdin is empty.

        After a time-out, or at the output limit, the script is interrupted as by Ctrl-C and what it
        started is killed. Processes that earlier scripts left in the background stay, and what they
        write while no script runs is in nobody's result. Raises `ShellEnded`, `SandboxDied`.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the shell and everything that runs in it. Safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
