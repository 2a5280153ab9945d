"""The sandbox contract. Every provider keeps it; `rock.testing.sandbox_conformance` proves it.

A *provider* makes sandboxes from a `SandboxSpec`. A *sandbox* runs commands, moves files and opens
a listening socket inside its own network. Two kinds of trouble are kept apart:

- *The command failed* is a result: `exec` returns an `ExecResult` with a status and whatever output
  there was.
- *The box failed* raises a `SandboxError`: the program, directory or user does not exist
  (`CommandNotFound`, `BadWorkdir`, `BadUser`), the program cannot be started (`CommandRefused`),
  or the box is gone (`SandboxDied`). A box that goes while a command runs is the status
  `sandbox_died` of its result, so that the output until then is kept.

Bytes in are bytes out: nothing is decoded, stripped or joined. Every wait has a bound.
"""

from __future__ import annotations

import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from rock.errors import NotSupported, SandboxError
from rock.sandbox.command import (
    DEFAULT_KEPT_BYTES,
    DEFAULT_OUTPUT_LIMIT_BYTES,
    ExecResult,
    ExecStatus,
    Overflow,
    Process,
    ProcessInfo,
    Shell,
    TerminalSize,
)
from rock.sandbox.logs import LogPage
from rock.sandbox.spec import IMAGE_USER, BuildNetwork, Limits, Mount, NetworkName, SandboxSpec
from rock.sandbox.state import Capability, Changes, ResetReceipt, Snapshot

__all__ = [
    "DEFAULT_DIFF_ENTRIES",
    "DEFAULT_OUTPUT_LIMIT_BYTES",
    "DEFAULT_READ_LIMIT_BYTES",
    "DEFAULT_TREE_LIMIT_BYTES",
    "DEFAULT_TREE_LIMIT_ENTRIES",
    "IMAGE_USER",
    "Availability",
    "BuildNetwork",
    "Built",
    "ExecResult",
    "ExecStatus",
    "Limits",
    "Mount",
    "NetworkName",
    "Origin",
    "Process",
    "ProcessInfo",
    "Provider",
    "Sandbox",
    "SandboxSpec",
    "Shell",
    "TerminalSize",
]

Origin: TypeAlias = Literal["new", "pool", "snapshot"]
DEFAULT_DIFF_ENTRIES = 10_000
DEFAULT_READ_LIMIT_BYTES = 64 * 1024 * 1024
DEFAULT_TREE_LIMIT_BYTES = 1024**3
DEFAULT_TREE_LIMIT_ENTRIES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """Whether a provider works on this machine, and if not, why and what would help."""

    available: bool
    detail: str
    remedy: str | None = None


class Sandbox(ABC):
    """One running sandbox. Use as `async with`; `stop` is idempotent and survives cancellation."""

    id: str
    spec: SandboxSpec
    origin: Origin = "new"
    """How it came to be: made for whoever asked, or ahead (`pool`), or from a snapshot."""

    @abstractmethod
    async def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        timeout_seconds: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        overflow: Overflow = "kill",
    ) -> ExecResult:
        """Run `argv` (no shell) and wait for it; then nothing that it started is left.

        On a timeout or at the output limit everything the command started is killed first; with
        `overflow="truncate"` it goes on, and the middle of its output is left out. `env` is laid over
        the spec's. Raises `CommandNotFound`, `CommandRefused`, `BadWorkdir`, `BadUser`, `SandboxDied`.
        """

    @abstractmethod
    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        timeout_seconds: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = b"",
        terminal: TerminalSize | None = None,
        streamed: bool = False,
        output_limit_bytes: int = DEFAULT_KEPT_BYTES,
        overflow: Overflow = "truncate",
    ) -> Process:
        """Start `argv` and return once it runs; it ends with the sandbox at the latest.

        `stdin=None` leaves stdin open for `Process.write`. `terminal` runs it on a terminal of that
        size. `streamed` makes `Process.events` deliver its output, which then must be read. The last
        hundred processes stay in `processes` when they have ended. Raises what `exec` does.
        """

    @property
    @abstractmethod
    def processes(self) -> Mapping[str, Process]:
        """What `spawn` and `stream` started, by id, oldest first."""

    @contextlib.asynccontextmanager
    async def stream(
        self,
        argv: Sequence[str | bytes],
        *,
        timeout_seconds: float,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = b"",
        terminal: TerminalSize | None = None,
        output_limit_bytes: int = DEFAULT_KEPT_BYTES,
        overflow: Overflow = "truncate",
    ) -> AsyncGenerator[Process]:
        """A command whose output is read while it runs; leaving the block ends it.

        async with sandbox.stream(["make"], timeout_seconds=600) as process:
            async for output in process.events():
                ...
            result = await process.wait()
        """
        process = await self.spawn(
            argv,
            timeout_seconds=timeout_seconds,
            cwd=cwd,
            env=env,
            user=user,
            stdin=stdin,
            terminal=terminal,
            streamed=True,
            output_limit_bytes=output_limit_bytes,
            overflow=overflow,
        )
        async with process:
            yield process

    @abstractmethod
    async def shell(
        self,
        *,
        program: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Shell:
        """A shell to run scripts in one after the other: bash if there is one, else sh."""

    @abstractmethod
    async def list_processes(self) -> list[ProcessInfo]:
        """What runs inside now, the helper's own processes included. Needs nothing of the image."""

    @abstractmethod
    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        """The bytes of one regular file. Raises `SandboxFileError` (missing, a directory, too big)."""

    @abstractmethod
    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace one file, making missing parent directories."""

    @abstractmethod
    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or tree to `target`, keeping modes, symlinks and empty directories."""

    @abstractmethod
    async def download(
        self,
        source: str,
        target: Path,
        *,
        max_bytes: int = DEFAULT_TREE_LIMIT_BYTES,
        max_entries: int = DEFAULT_TREE_LIMIT_ENTRIES,
    ) -> None:
        """Copy a file or tree out to the host path `target`, which must not exist yet.

        Nothing is written outside `target`: links are recreated, never followed. Raises
        `UnsafeArchive` when the tree is over the size or entry cap.
        """

    @abstractmethod
    async def listen(self, port: int = 0) -> socket.socket:
        """A listening TCP socket on 127.0.0.1 *inside the sandbox's network*, owned by the caller.

        Whoever accepts on it serves the sandbox; nothing else outside is reachable through it.
        `port=0` picks a free one: read it from `getsockname()`.
        """

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this sandbox can do and enforces, beyond the methods above. Never more than is true."""
        return frozenset()

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """What the spec asks for and this machine does not enforce, in words."""
        return ()

    async def reset(self) -> ResetReceipt:
        """Back to how it was when it was created, as fast as this machine can; with a receipt.

        Commands still running end as `signaled`. Raises `SandboxError` if it cannot be done at all;
        the sandbox is then of no more use.
        """
        raise NotSupported("reset: this provider makes a new sandbox instead")

    async def snapshot(self) -> Snapshot:
        """Keep the files as they are now. Raises `SandboxBusy` while a command runs, `NotSupported`."""
        raise NotSupported("snapshot: this provider keeps no states")

    async def diff(self, *, max_entries: int = DEFAULT_DIFF_ENTRIES) -> Changes:
        """What was written and removed since it was made, which is what a reset would undo.

        Writable mounts are the host's and not in it. Raises `NotSupported`, `SandboxBusy`.
        """
        raise NotSupported("diff: this provider does not know what was written")

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        """Like `reset`, but back to `snapshot`, which must be of a sandbox made of the same."""
        raise NotSupported("restore: this provider keeps no states")

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The variables of a command that asks for none of its own."""

    async def set_env(self, changes: Mapping[str, str | None]) -> None:
        """Set variables for later commands, or take them away (None), whoever starts them.

        They are laid over the spec's, and under those of a single command. What runs keeps what it has,
        kept shells included. A reset brings back the spec's. Raises `CommandRefused`.
        """
        raise NotSupported("set_env: this provider's variables do not change")

    async def read_log(
        self, *, after: str = "", tail: int | None = None, wait_seconds: float = 0.0
    ) -> LogPage:
        """What was done to it, by whomever: entries after the cursor `after`, or the last `tail` ones.

        With `wait_seconds` it waits so long for the first entry. Bounded: of a long life the beginning
        and the end are kept. Ends with the sandbox. Raises `NotSupported`, `BadRequest`.
        """
        raise NotSupported("log: this provider writes nothing down")

    async def set_network(
        self,
        network: NetworkName,
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        """Change what may be reached from now on; connections no longer allowed are cut.

        Here `full` is every public host, through the same proxy as `allowlist`. A sandbox that was
        created with `full` has a network of its own, which cannot be taken away: `NotSupported`. What
        was passed out by `listen` stays: whoever serves it decides. A reset brings back the spec's.
        """
        raise NotSupported("set_network: this provider's networks do not change")

    async def pause(self) -> None:
        """Stop every process where it is; until `resume` the sandbox raises `SandboxBusy`.

        The time-outs of commands go on meanwhile. Safe to call twice.
        """
        raise NotSupported("pause: this provider cannot stop processes")

    async def resume(self) -> None:
        """Let the processes go on. Safe to call twice."""
        raise NotSupported("resume: this provider cannot stop processes")

    @abstractmethod
    async def stop(self) -> None:
        """End every process of the sandbox and remove its files. Safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """An image that a provider has built, or had."""

    reference: str
    """For `SandboxSpec.image`."""
    user: str
    """Its own user; empty where it names none."""
    log: str | None = None
    """What the build said; None where the image was there."""


class Provider(ABC):
    """Makes sandboxes of one kind. `async with`; closing it stops every sandbox it still owns."""

    name: str
    builds_images: bool = False

    async def build_image(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        timeout_seconds: float = 600.0,
        network: BuildNetwork = "engine",
    ) -> Built:
        """The image of a Dockerfile in the directory `context`; what is there already is not built again.

        Its commands run as the engine runs them, as root and not as a sandbox, with `network`.
        Raises `NotSupported` unless `builds_images`, `BuildFailed` with the log, `ConfigError` for a
        Dockerfile that is not there, `ProviderUnavailable` for a base image that is not.
        """
        raise NotSupported(f"build_image: the {self.name} provider builds no images")

    @abstractmethod
    async def probe(self) -> Availability:
        """Try what this provider needs, for real, and say what works."""

    @abstractmethod
    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A running sandbox. Whatever a failed start had made is removed before it raises.

        With `snapshot`, of this provider and a sandbox of the same spec, it starts from those files.
        """

    async def recover(self, sandbox: Sandbox, snapshot: Snapshot) -> Sandbox:
        """`sandbox` back at `snapshot`; if it is of no more use, another one that starts there.

        Then `sandbox` is stopped. For an episode that goes on from its last good state after a fault of
        the machine. Raises what `create` raises.
        """
        try:
            await sandbox.restore(snapshot)
        except SandboxError:
            await sandbox.stop()
            return await self.create(sandbox.spec, snapshot=snapshot)
        return sandbox

    async def fork(self, sandbox: Sandbox, count: int = 1) -> list[Sandbox]:
        """`count` new sandboxes that start from the files of `sandbox` as they are now.

        Raises what `snapshot` and `create` raise; then none of them is left.
        """
        snapshot = await sandbox.snapshot()
        made: list[Sandbox] = []
        try:
            for _ in range(count):
                made.append(await self.create(sandbox.spec, snapshot=snapshot))
        except BaseException:
            for other in made:
                await other.stop()
            raise
        finally:
            snapshot.release()
        return made

    def sandboxes(self) -> list[Sandbox]:
        """Those that it has made and that were not stopped."""
        return []

    @abstractmethod
    async def close(self) -> None:
        """Stop what is left and free the provider's own resources. Safe to call twice."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
