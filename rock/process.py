"""The only place that starts an operating-system process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

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
