"""The only place that starts an operating-system process."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

Process = asyncio.subprocess.Process
DEVNULL = subprocess.DEVNULL
PIPE = subprocess.PIPE


async def start(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    stdin: int | IO[bytes] = DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
    new_session: bool = True,
) -> Process:
    """Start `argv` with exactly `env`. In a session of its own, a Ctrl-C at the terminal spares it."""
    _wait_by_descriptor()
    return await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        cwd=cwd,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
    )


if sys.version_info < (3, 12):

    class _DescriptorWatcher(asyncio.PidfdChildWatcher):
        """Waits for children by a descriptor of each, in whichever loop has started them.

        Before 3.12 asyncio keeps a thread for each child, which thousands of sandboxes cannot have, and
        its own class of this kind knows one loop only.
        """

        def is_active(self) -> bool:
            return True

        def add_child_handler(self, pid: int, callback: Callable[..., object], *args: Any) -> None:
            loop = asyncio.get_running_loop()
            descriptor = os.pidfd_open(pid)

            def ended() -> None:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                try:
                    _, status = os.waitpid(pid, 0)
                    code = os.waitstatus_to_exitcode(status)
                except ChildProcessError:  # somebody else has waited for it
                    code = 255
                callback(pid, code, *args)

            loop.add_reader(descriptor, ended)


@functools.cache
def _wait_by_descriptor() -> None:
    """Once per process, where asyncio does not do so by itself."""
    if sys.version_info < (3, 12):
        try:
            os.close(os.pidfd_open(os.getpid()))
        except OSError:
            return
        with contextlib.suppress(NotImplementedError):  # a loop with ways of its own (uvloop)
            watcher = _DescriptorWatcher()
            asyncio.set_child_watcher(watcher)  # pyright: ignore[reportDeprecated] (not before 3.12)


async def stop(process: Process, *, grace_seconds: float = 5.0) -> int:
    """SIGTERM, then SIGKILL after the grace to the process's whole group; the exit code.

    Survives the caller's cancellation: the process is reaped before the cancellation goes on.
    """
    task = asyncio.ensure_future(_stop(process, grace_seconds))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _stop(process: Process, grace_seconds: float) -> int:
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), grace_seconds)
        except TimeoutError:
            _signal_group(process.pid, signal.SIGKILL)
    return await process.wait()


def _signal_group(pid: int, signum: int) -> None:
    """Signal the group that `pid` leads, or `pid` alone if it leads none."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signum)
        else:
            os.kill(pid, signum)
