"""`ChannelSandbox`: the whole sandbox contract on one helper's channel.

A provider makes the box, starts `rock-init` in it, and hands over a `Channel` and a function that
removes the box; everything that users call is here, so all providers behave alike.
"""

from __future__ import annotations

import asyncio
import logging
import os
import posixpath
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rock.errors import (
    CommandRefused,
    SandboxBusy,
    SandboxDied,
    SandboxError,
    SandboxFileError,
)
from rock.sandbox import frames
from rock.sandbox.base import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TREE_LIMIT_BYTES,
    DEFAULT_TREE_LIMIT_ENTRIES,
    ExecResult,
    ExecStatus,
    Limits,
    Sandbox,
    SandboxSpec,
)
from rock.sandbox.box_state import BoxState
from rock.sandbox.channel import Channel
from rock.sandbox.ending import to_the_end
from rock.sandbox.execution import Executed
from rock.sandbox.frames import EndKind, ExecRequest, FrameType
from rock.sandbox.state import Capability, ResetReceipt, ResetTier, Snapshot

log = logging.getLogger(__name__)

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AGENT_UID = 1000
AGENT_NAME = "agent"
AGENT_HOME = "/home/agent"
_MAX_TIMEOUT_SECONDS = 40 * 24 * 3600.0
_EXIT_CODE_OF_A_KILLED_CHILD = 128 + signal.SIGKILL
_ROOT = ("root", "0")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs commands and owns uploaded files: as `/etc/passwd` inside names it, and its home."""

    user: str
    home: str


def identity_of(spec: SandboxSpec) -> Identity:
    """The user that `spec` asks for; an unprivileged one unless it asks for root."""
    if spec.user is None:
        return Identity(str(AGENT_UID), AGENT_HOME)
    name = spec.user.partition(":")[0]
    return Identity(spec.user, "/root" if name in _ROOT else AGENT_HOME)


def common_rlimits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """What every provider sets on a command: no core dumps, and the bound on open files."""
    pairs = [(resource.RLIMIT_CORE, 0)]
    if limits.open_files is not None:
        pairs.append((resource.RLIMIT_NOFILE, limits.open_files))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Enforced:
    """What a provider can and enforces for one spec, and what of the spec it does not."""

    capabilities: frozenset[Capability] = frozenset()
    missing: tuple[str, ...] = ()


NOTHING_ENFORCED = Enforced()


class Replacement(Protocol):
    """Gives a box to take the place of a sandbox's own, from a pool or new; from then on it is that
    sandbox's, and whoever keeps book of sandboxes knows it under the new box's id."""

    async def __call__(self, sandbox: ChannelSandbox) -> tuple[ChannelSandbox, ResetTier]: ...


class ChannelSandbox(Sandbox):
    """A running sandbox behind a channel. `remove` ends the box and frees what the provider made."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        *,
        state: BoxState,
        remove: Callable[[], Awaitable[None]],
        rlimits: Sequence[tuple[int, int]] = (),
        identity: Identity | None = None,
        variables: Mapping[str, str] | None = None,
        enforced: Enforced = NOTHING_ENFORCED,
        replacement: Replacement | None = None,
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.channel = channel
        self.identity = identity if identity and spec.user is None else identity_of(spec)
        self._variables = dict(variables or {})
        self.state = state
        self.replacement = replacement
        """Who makes a box to take this one's place, where it cannot be reset itself."""
        self._remove = remove
        self._rlimits = tuple(rlimits)
        self._enforced = enforced
        self._stopping: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def prepare(self, snapshot: Snapshot | None = None) -> None:
        """Check that the helper answers, and make the home and working directories; or what was kept."""
        owner = os.fsencode(self.identity.user)
        await self.channel.ping()
        await self.state.begin()
        await self.channel.make_directory(b"/tmp", mode=0o1777, owner=b"")
        mounted = {mount.target.rstrip("/") for mount in self.spec.mounts}
        for path in (self.identity.home, self.spec.workdir):
            if path.rstrip("/") in mounted:
                continue  # a host directory keeps its owner and mode
            await self.channel.make_directory(self._path(path), mode=0o755, owner=owner)
        await self._name_agent()
        await self.state.seal(snapshot)

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
    ) -> ExecResult:
        self._check_running()
        if not argv or not argv[0]:
            raise CommandRefused("argv: got an empty command, expected a program and its arguments")
        if not 0 < timeout_seconds <= _MAX_TIMEOUT_SECONDS:
            raise CommandRefused(f"timeout_seconds: got {timeout_seconds}, expected more than 0")
        request = ExecRequest(
            argv=[_encoded("argv", argument) for argument in argv],
            env=self._environment(env or {}, user),
            cwd=self._path(cwd or self.spec.workdir),
            user=os.fsencode(user or self.identity.user),
            timeout_ms=max(1, round(timeout_seconds * 1000)),
            has_stdin=bool(stdin),
            limits=self._rlimits,
        )
        started = time.monotonic()
        executed = await self.channel.exec(
            request, stdin=stdin, output_limit_bytes=output_limit_bytes
        )
        return _result(executed, time.monotonic() - started)

    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        self._check_running()
        return await self.channel.read_file(self._path(path), max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_running()
        await self.channel.write_file(self._path(path), data, mode=mode, owner=self._owner)

    async def upload(self, source: Path, target: str) -> None:
        self._check_running()
        await self.channel.upload(source, self._path(target), owner=self._owner)

    async def download(
        self,
        source: str,
        target: Path,
        *,
        max_bytes: int = DEFAULT_TREE_LIMIT_BYTES,
        max_entries: int = DEFAULT_TREE_LIMIT_ENTRIES,
    ) -> None:
        self._check_running()
        await self.channel.download(
            self._path(source), target, max_bytes=max_bytes, max_entries=max_entries
        )

    async def listen(self, port: int = 0) -> socket.socket:
        self._check_running()
        return await self.channel.listen(port)

    @property
    def capabilities(self) -> frozenset[Capability]:
        in_place = {Capability.RESET_IN_PLACE, Capability.SNAPSHOT} if self.state.in_place else set()
        return self._enforced.capabilities | in_place | {Capability.PAUSE}

    @property
    def not_enforced(self) -> tuple[str, ...]:
        return self._enforced.missing

    async def reset(self) -> ResetReceipt:
        self._check_not_stopped()
        try:
            return await self.state.reset()
        except SandboxBusy:
            raise
        except SandboxError as exc:
            if self.replacement is None:
                raise
            return await self._be_replaced(self.replacement, exc.message)

    async def snapshot(self) -> Snapshot:
        self._check_not_stopped()
        return await self.state.snapshot()

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        self._check_not_stopped()
        return await self.state.restore(snapshot)

    async def pause(self) -> None:
        self._check_not_stopped()
        await self.state.pause()

    async def resume(self) -> None:
        self._check_not_stopped()
        await self.state.resume()

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._end())
        await to_the_end(self._join(self._stopping))

    async def _join(self, stopping: asyncio.Future[None]) -> None:
        await stopping

    async def _end(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving)
        await _removed(self._remove, self.state)

    async def _be_replaced(self, replacement: Replacement, reason: str) -> ResetReceipt:
        """Another box takes this one's place; this one is removed meanwhile."""
        started = time.monotonic()
        other, tier = await replacement(self)
        leaving = asyncio.ensure_future(_removed(self._remove, self.state))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leave)
        self.id, self.channel, self.state = other.id, other.channel, other.state
        self._remove = other.hand_over()
        seconds = time.monotonic() - started
        return ResetReceipt(
            tier=tier, seconds=seconds, ended=0, same_network=False, reason=reason
        )

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a box that was replaced is left to the reaper: %s", error)

    def hand_over(self) -> Callable[[], Awaitable[None]]:
        """Give the box up to whoever calls; its own `stop` does nothing any more."""
        remove, self._remove = self._remove, _nothing
        self._stopping = asyncio.ensure_future(_nothing())
        return remove

    @property
    def _owner(self) -> bytes:
        return os.fsencode(self.identity.user)

    def _check_running(self) -> None:
        self._check_not_stopped()
        self.state.check_idle()

    def _check_not_stopped(self) -> None:
        if self._stopping is not None:
            raise SandboxDied(f"sandbox {self.id} was stopped")

    def _path(self, path: str) -> bytes:
        """Absolute inside the sandbox; a relative path starts at the working directory."""
        if not path or "\0" in path:
            raise SandboxFileError(f"path: got {path!r}, expected a path without NUL")
        full = posixpath.join(self.spec.workdir, path)
        try:
            return os.fsencode(full.rstrip("/") or "/")
        except UnicodeEncodeError as exc:
            raise SandboxFileError(f"path: {path!r} is not text that has bytes ({exc})") from exc

    def _environment(self, extra: Mapping[str, str], user: str | None) -> dict[bytes, bytes]:
        is_root = user is not None and user.partition(":")[0] in _ROOT
        base = {
            "PATH": DEFAULT_PATH,
            "HOME": "/root" if is_root else self.identity.home,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
        }
        merged = {**base, **self._variables, **self.spec.env, **extra}
        for name in merged:
            if not name or "=" in name:
                raise CommandRefused(f"env: got the name {name!r}, expected one without '='")
        return {
            _encoded("env", name): _encoded(f"env {name}", value) for name, value in merged.items()
        }

    async def _name_agent(self) -> None:
        """Give the default user a name where the image has none: `whoami`, git and ssh want one."""
        if self.identity.user != str(AGENT_UID) or self.spec.image is None:
            return
        try:
            known = await self.channel.read_file(b"/etc/passwd", max_bytes=1024 * 1024)
        except SandboxFileError:
            known = b""
        if any(line.split(b":")[2:3] == [b"%d" % AGENT_UID] for line in known.splitlines()):
            return
        entry = f"{AGENT_NAME}:x:{AGENT_UID}:{AGENT_UID}::{AGENT_HOME}:/bin/sh\n".encode()
        separator = b"" if not known or known.endswith(b"\n") else b"\n"
        try:
            await self.channel.write_file(
                b"/etc/passwd", known + separator + entry, mode=0o644, owner=b""
            )
        except SandboxFileError as exc:
            log.debug("sandbox %s: the agent user stays nameless: %s", self.id, exc)


async def _removed(remove: Callable[[], Awaitable[None]], state: BoxState) -> None:
    try:
        await remove()
    finally:
        state.release()


async def _nothing() -> None:
    """What there is to remove of a box that was handed over."""


def _encoded(field: str, value: str | bytes) -> bytes:
    """Text as bytes; a model can write half of a surrogate pair, which has none."""
    try:
        return os.fsencode(value)
    except UnicodeEncodeError as exc:
        raise CommandRefused(f"{field}: it is not text that has bytes ({exc})") from exc


def _result(executed: Executed, elapsed_seconds: float) -> ExecResult:
    status, exit_code, number = ExecStatus.SANDBOX_DIED, None, None
    if executed.reply is not None and executed.reply.type is FrameType.LOST:
        # The command killed its own supervisor; what it left was then killed by PID 1.
        status, number = ExecStatus.SIGNALED, int(signal.SIGKILL)
    elif executed.reply is not None and executed.reply.type is FrameType.RESULT:
        ended = frames.parse_result(executed.reply.body)
        elapsed_seconds = ended.duration_seconds
        status, exit_code, number = _status(ended, executed.over_limit)
    return ExecResult(
        status=status,
        exit_code=exit_code,
        signal=number,
        stdout=executed.stdout,
        stderr=executed.stderr,
        stdout_bytes=executed.stdout_bytes,
        stderr_bytes=executed.stderr_bytes,
        duration_seconds=elapsed_seconds,
    )


def _status(ended: frames.Ended, over_limit: bool) -> tuple[ExecStatus, int | None, int | None]:
    """An out-of-memory kill is told from the box's own counter, and from nothing else."""
    if over_limit:
        return ExecStatus.OUTPUT_LIMIT, None, None
    if ended.kind is EndKind.TIMED_OUT:
        return ExecStatus.TIMED_OUT, None, None
    if ended.kind is EndKind.SIGNALED:
        if ended.oom_kills and ended.value == signal.SIGKILL:
            return ExecStatus.OOM_KILLED, None, None
        return ExecStatus.SIGNALED, None, ended.value
    if ended.kind is EndKind.KILLED:
        return ExecStatus.SANDBOX_DIED, None, None
    if ended.oom_kills and ended.value == _EXIT_CODE_OF_A_KILLED_CHILD:
        return ExecStatus.OOM_KILLED, None, None
    return ExecStatus.EXITED, ended.value, None
