"""`ChannelSandbox`: the whole sandbox contract on one helper's channel.

A provider makes the box, starts `rock-init` in it, and hands over a `Channel` and a function that
removes the box; everything that users call is here, so all providers behave alike.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import posixpath
import secrets
import socket
import time
import weakref
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rock.errors import (
    CommandRefused,
    SandboxDied,
    SandboxFileError,
)
from rock.sandbox.base import (
    DEFAULT_READ_LIMIT_BYTES,
    DEFAULT_TREE_LIMIT_BYTES,
    DEFAULT_TREE_LIMIT_ENTRIES,
    SandboxSpec,
)
from rock.sandbox.box.identity import AGENT_UID, Identity, home_of, identity_of, with_agent
from rock.sandbox.box.results import result_of
from rock.sandbox.box.stateful import (
    NOTHING_ENFORCED,
    Box,
    Enforced,
    Replacement,
    StatefulSandbox,
)
from rock.sandbox.box.variables import checked_name, encoded, merged
from rock.sandbox.channel.execution import Executed, Execution, Sink
from rock.sandbox.channel.frames import NO_FLAGS, ExecFlag, ExecRequest
from rock.sandbox.channel.process import ChannelProcess
from rock.sandbox.channel.recorder import Action, ended_by_errors
from rock.sandbox.channel.shell import ChannelShell
from rock.sandbox.command import (
    DEFAULT_KEPT_BYTES,
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Death,
    DeathCause,
    ExecResult,
    ExecStatus,
    Overflow,
    Process,
    ProcessInfo,
    Shell,
    TerminalSize,
)
from rock.sandbox.logbook import LogFiles
from rock.sandbox.state import Snapshot

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_TIMEOUT_SECONDS = 40 * 24 * 3600.0
_KEPT_PROCESSES = 100


class ChannelSandbox(StatefulSandbox):
    """A running sandbox behind a channel. `remove` ends the box and frees what the provider made.

    `diagnose` is asked why a box that should be there does not answer; it bounds its own waits.
    """

    def __init__(
        self,
        box: Box,
        spec: SandboxSpec,
        *,
        rlimits: Sequence[tuple[int, int]] = (),
        identity: Identity | None = None,
        variables: Mapping[str, str] | None = None,
        enforced: Enforced = NOTHING_ENFORCED,
        replacement: Replacement | None = None,
        log: LogFiles | None = None,
    ) -> None:
        super().__init__(box, spec, enforced, replacement, log=log)
        self.identity = identity if identity and spec.user is None else identity_of(spec)
        self.variables = dict(variables or {})
        """Of the image; the spec's are laid over them."""
        self.rlimits = tuple(rlimits)
        self._processes: dict[str, ChannelProcess] = {}
        self._shells: weakref.WeakSet[ChannelShell] = weakref.WeakSet()

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
        await self.network_of_the_spec()
        self.recorder.note("created", self.spec.image or "of the host's programs")

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
        flags = ExecFlag.STDIN if stdin else NO_FLAGS
        request = self._request(argv, timeout_seconds, cwd, env, user, flags)
        started = time.monotonic()
        action = self.recorder.command("exec", request.argv, user=user)
        with ended_by_errors(action):
            executed = await self._explained(
                self.channel.exec(
                    request,
                    stdin=stdin,
                    kept_bytes=output_limit_bytes,
                    kill_over_bytes=output_limit_bytes if overflow == "kill" else None,
                    tap=action.output,
                )
            )
            result = await self._result(executed, time.monotonic() - started)
            action.end(result)
        return result

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
        flags = ExecFlag.ANNOUNCE
        if terminal is not None:
            flags |= ExecFlag.TERMINAL
            env = {"TERM": "xterm-256color", **(env or {})}
        if stdin is None or stdin or terminal is not None:
            flags |= ExecFlag.STDIN
        seconds = _MAX_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
        request = self._request(argv, seconds, cwd, env, user, flags, terminal)
        action = self.recorder.command("process", request.argv, user=user)
        with ended_by_errors(action):
            execution, pid = await self._explained(
                self.channel.start(
                    request,
                    kept_bytes=output_limit_bytes,
                    kill_over_bytes=output_limit_bytes if overflow == "kill" else None,
                    stdin=None if terminal is not None and not stdin else stdin,
                    held=streamed,
                    tap=action.output,
                )
            )
        action.begin()
        process = ChannelProcess(
            secrets.token_hex(4),
            tuple(request.argv),
            pid,
            execution,
            streamed=streamed,
            bound_seconds=seconds + self.channel.silence_seconds,
            result_of=functools.partial(self._recorded_result, action),
        )
        self._processes[process.id] = process
        self._forget_old_processes()
        return process

    @property
    def processes(self) -> Mapping[str, Process]:
        return dict(self._processes)

    def _forget_old_processes(self) -> None:
        ended = [key for key, process in self._processes.items() if not process.running]
        for key in ended[: max(0, len(ended) - _KEPT_PROCESSES)]:
            del self._processes[key]

    async def shell(
        self,
        *,
        program: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Shell:
        async def start(argv: tuple[str, ...], status: Sink) -> Execution:
            flags = ExecFlag.SHELL | ExecFlag.ANNOUNCE
            variables = {"TERM": "dumb", **(env or {})}
            request = self._request(argv, _MAX_TIMEOUT_SECONDS, cwd, variables, user, flags)
            execution, _ = await self.channel.start(request, kept_bytes=0, status=status)
            return execution

        shell = ChannelShell(start, self._result, self.recorder)
        with self.recorder.doing("shell", program or "bash or sh"):
            await self._explained(shell.open(program))
        self._shells.add(shell)
        return shell

    async def _explained(self, work: Awaitable[T]) -> T:
        """`work`; if the box is gone, why."""
        try:
            return await work
        except SandboxDied as exc:
            death = await self.death()
            raise SandboxDied(f"{exc.message}: {death.detail}", cause=death.cause) from exc

    async def death(self) -> Death:
        """Why the box does not answer, asked when it does not."""
        if self._stopping is not None:
            return Death(DeathCause.STOPPED, "it was stopped")
        return await self.box.diagnose()

    async def _result(
        self, executed: Executed, elapsed_seconds: float, was_killed: bool = False
    ) -> ExecResult:
        result = result_of(executed, elapsed_seconds, was_killed)
        if result.status is ExecStatus.SANDBOX_DIED:
            return replace(result, death=await self.death())
        return result

    async def _recorded_result(
        self, action: Action, executed: Executed, elapsed_seconds: float, was_killed: bool
    ) -> ExecResult:
        result = await self._result(executed, elapsed_seconds, was_killed)
        action.end(result)
        return result

    def _request(
        self,
        argv: Sequence[str | bytes],
        timeout_seconds: float,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        flags: ExecFlag,
        terminal: TerminalSize | None = None,
    ) -> ExecRequest:
        self._check_running()
        if not argv or not argv[0]:
            raise CommandRefused("argv: got an empty command, expected a program and its arguments")
        if not 0 < timeout_seconds <= _MAX_TIMEOUT_SECONDS:
            raise CommandRefused(f"timeout_seconds: got {timeout_seconds}, expected more than 0")
        size = terminal or TerminalSize(0, 0)
        if not (0 <= size.rows < 65536 and 0 <= size.columns < 65536):
            raise CommandRefused(f"terminal: got {size}, expected numbers below 65536")
        return ExecRequest(
            argv=[encoded("argv", argument) for argument in argv],
            env=self._environment(env or {}, user),
            cwd=self._path(cwd or self.spec.workdir),
            user=os.fsencode(user or self.identity.user),
            timeout_ms=max(1, round(timeout_seconds * 1000)),
            flags=flags,
            rows=size.rows,
            columns=size.columns,
            limits=self.rlimits,
        )

    async def list_processes(self) -> list[ProcessInfo]:
        self._check_running()
        return await self._explained(self.channel.list_processes())

    async def read_file(self, path: str, *, max_bytes: int = DEFAULT_READ_LIMIT_BYTES) -> bytes:
        self._check_running()
        with self.recorder.doing("file", f"read {path}") as action:
            data = await self._explained(
                self.channel.read_file(self._path(path), max_bytes=max_bytes)
            )
            action.size_bytes = len(data)
        return data

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._check_running()
        with self.recorder.doing("file", f"write {path}") as action:
            action.size_bytes = len(data)
            await self._explained(
                self.channel.write_file(self._path(path), data, mode=mode, owner=self._owner)
            )

    async def upload(self, source: Path, target: str) -> None:
        self._check_running()
        with self.recorder.doing("file", f"upload to {target}"):
            await self._explained(
                self.channel.upload(source, self._path(target), owner=self._owner)
            )

    async def download(
        self,
        source: str,
        target: Path,
        *,
        max_bytes: int = DEFAULT_TREE_LIMIT_BYTES,
        max_entries: int = DEFAULT_TREE_LIMIT_ENTRIES,
    ) -> None:
        self._check_running()
        with self.recorder.doing("file", f"download {source}"):
            await self._explained(
                self.channel.download(
                    self._path(source), target, max_bytes=max_bytes, max_entries=max_entries
                )
            )

    async def listen(self, port: int = 0) -> socket.socket:
        self._check_running()
        with self.recorder.doing("listen", f"on port {port or 'of its choice'} inside"):
            return await self._explained(self.channel.listen(port))

    async def notice_end(self) -> None:
        ends = [process.wait() for process in self._processes.values() if process.running]
        await asyncio.gather(*ends, *(shell.close() for shell in self._shells))

    @property
    def _owner(self) -> bytes:
        return os.fsencode(self.identity.user)

    def _path(self, path: str) -> bytes:
        """Absolute inside the sandbox; a relative path starts at the working directory."""
        if not path or "\0" in path:
            raise SandboxFileError(
                f"path: got {path!r}, expected one with a character, and without NUL"
            )
        full = posixpath.join(self.spec.workdir, path)
        try:
            return os.fsencode(full.rstrip("/") or "/")
        except UnicodeEncodeError as exc:
            raise SandboxFileError(f"path: {path!r} is not text that has bytes ({exc})") from exc

    def environment(self) -> dict[str, str]:
        return self._merged({}, None)

    def _merged(self, extra: Mapping[str, str], user: str | None) -> dict[str, str]:
        return merged(
            self.variables,
            self.proxy_variables,
            self.spec.env,
            changes=self.env_changes,
            extra=extra,
            home=self.identity.home if user is None else home_of(user, self.identity.home),
        )

    def _environment(self, extra: Mapping[str, str], user: str | None) -> dict[bytes, bytes]:
        return {
            encoded("env", checked_name(name)): encoded(f"env {name}", value)
            for name, value in self._merged(extra, user).items()
        }

    async def _name_agent(self) -> None:
        """Give the default user a name where the image has none: `whoami`, git and ssh want one."""
        if self.identity.user != str(AGENT_UID) or self.spec.image is None:
            return
        try:
            known = await self.channel.read_file(b"/etc/passwd", max_bytes=1024 * 1024)
        except SandboxFileError:
            known = b""
        named = with_agent(known)
        if named is None:
            return
        try:
            await self.channel.write_file(b"/etc/passwd", named, mode=0o644, owner=b"")
        except SandboxFileError as exc:
            log.debug("sandbox %s: the agent user stays nameless: %s", self.id, exc)
