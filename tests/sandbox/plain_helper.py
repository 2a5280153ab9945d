"""`rock-init serve` as an ordinary process without namespaces: for tests of the channel itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rock import process
from rock.errors import SandboxDied
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import PathConnector
from rock.sandbox.channel.execution import Executed
from rock.sandbox.channel.frames import (
    NO_FLAGS,
    Ended,
    ExecFlag,
    ExecRequest,
    FrameType,
    parse_result,
)
from rock.sandbox.helper import helper_path

PATH = b"/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Helper:
    process: process.Process
    channel: Channel
    socket: Path

    async def run(
        self,
        *argv: str,
        stdin: bytes = b"",
        timeout_ms: int = 20_000,
        env: Mapping[bytes, bytes] | None = None,
        limits: Sequence[tuple[int, int]] = (),
    ) -> Executed:
        request = ExecRequest(
            argv=[argument.encode() for argument in argv],
            env={b"PATH": PATH, **(env or {})},
            cwd=str(self.socket.parent).encode(),
            user=b"",
            timeout_ms=timeout_ms,
            flags=ExecFlag.STDIN if stdin else NO_FLAGS,
            limits=limits,
        )
        return await self.channel.exec(request, stdin=stdin, kept_bytes=1 << 20)


def ended(executed: Executed) -> Ended:
    assert executed.reply is not None
    assert executed.reply.type is FrameType.RESULT
    return parse_result(executed.reply.body)


@asynccontextmanager
async def plain_helper(folder: Path, *options: str) -> AsyncGenerator[Helper]:
    socket = folder / "helper.sock"
    argv = [helper_path(), "serve", socket, "--lifetime", "120", *options]
    started = await process.start(argv, env={}, cwd=folder)
    try:
        helper = Helper(started, Channel(PathConnector(socket)), socket)
        deadline = time.monotonic() + 10
        while True:
            try:
                await helper.channel.ping()
                break
            except SandboxDied:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
        yield helper
    finally:
        await process.stop(started)


def is_running(pid: int) -> bool:
    """Whether a process of this host runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status and "State:\tX" not in status


async def until(what: str, condition: Callable[[], bool], *, within_seconds: float = 20.0) -> None:
    """Wait for a condition. Fails, naming it, when it does not come true in time."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_seconds} seconds for: {what}"
        await asyncio.sleep(0.02)


async def wait_until_gone(pid: int) -> None:
    await until(f"process {pid} is gone", lambda: not is_running(pid))


async def read_when_written(path: Path) -> str:
    """The first line of a file that another process is about to write."""
    await until(f"{path} is written", lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text().strip()  # noqa: ASYNC240 - a few bytes, just written
