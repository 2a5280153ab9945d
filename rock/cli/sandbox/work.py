"""Working in sandboxes: `rock sandbox exec|shell|cp`. Exit codes are those of what ran."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from rock.cli.output import write_raw
from rock.cli.sandbox.finding import with_sandbox
from rock.cli.sandbox.screen import end
from rock.errors import CommandNotFound, CommandRefused, ConfigError, RockError
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.command import ExecResult, ExecStatus, Process, TerminalSize

_TIMED_OUT = 124
_DIED = 125
_NOT_STARTED: dict[type[RockError], int] = {CommandRefused: 126, CommandNotFound: 127}


def run_exec(
    wanted: str,
    argv: Sequence[str],
    *,
    url: str | None,
    key: str | None,
    timeout_seconds: float,
    cwd: str | None,
    user: str | None,
    env: dict[str, str],
) -> None:
    """A command, its output as it comes; its exit code is ours."""

    async def work(sandbox: ChannelSandbox) -> int:
        async with sandbox.stream(
            argv, timeout_seconds=timeout_seconds, cwd=cwd, user=user, env=env
        ) as process:
            async for output in process.events():
                write_raw(output.data, to=output.stream)
            return _code(await process.wait())

    try:
        end(asyncio.run(with_sandbox(url, key, wanted, work)))
    except ConfigError:
        raise
    except RockError as exc:  # these are not the command's own codes
        typer.echo(f"rock: {exc.message}", err=True)
        raise typer.Exit(_NOT_STARTED.get(type(exc), _DIED)) from exc


def _code(result: ExecResult) -> int:
    if result.status is ExecStatus.EXITED:
        return result.exit_code or 0
    if result.status is ExecStatus.SIGNALED:
        return 128 + (result.signal or 0)
    detail = f": {result.death.detail}" if result.death else ""
    typer.echo(f"rock: the command ended as {result.status}{detail}", err=True)
    return _TIMED_OUT if result.status is ExecStatus.TIMED_OUT else _DIED


def run_shell(wanted: str, *, url: str | None, key: str | None, user: str | None) -> None:
    """A live shell on a terminal of the sandbox, as wide as this one."""

    async def work(sandbox: ChannelSandbox) -> int:
        script = "command -v bash >/dev/null && exec bash; exec sh"
        async with sandbox.stream(
            ["sh", "-c", script],
            timeout_seconds=7 * 24 * 3600.0,
            stdin=None,
            user=user,
            terminal=_size(),
        ) as process:
            with _raw_terminal():
                await _talk(process)
            return _code(await process.wait())

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


async def _talk(process: Process) -> None:
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    resized = asyncio.Event()

    async def type_on() -> None:
        while data := await typed.get():
            await process.write(data)
        # Ctrl-D, until it is taken: a shell that is still setting up its terminal loses it.
        while process.running:
            await process.write(b"\x04")
            await asyncio.sleep(0.3)

    async def resize() -> None:
        while True:
            await resized.wait()
            resized.clear()
            await process.resize(_size())

    _listen_to_stdin(loop, typed)
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    tasks = [asyncio.ensure_future(type_on()), asyncio.ensure_future(resize())]
    try:
        async for output in process.events():
            write_raw(output.data)
    finally:
        loop.remove_reader(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _listen_to_stdin(loop: asyncio.AbstractEventLoop, typed: asyncio.Queue[bytes]) -> None:
    def read() -> bytes:
        data = os.read(0, 4096)
        typed.put_nowait(data)
        if not data:
            loop.remove_reader(0)
        return data

    try:
        loop.add_reader(0, read)
    except PermissionError:  # a file, which is always ready
        while read():
            pass


def _size() -> TerminalSize:
    found = shutil.get_terminal_size()
    return TerminalSize(rows=found.lines, columns=found.columns)


@contextmanager
def _raw_terminal() -> Generator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def run_cp(source: str, target: str, *, url: str | None, key: str | None) -> None:
    """SANDBOX:PATH on one side; a file or a tree."""
    wanted, colon, inside = source.partition(":")
    if colon:

        async def out(sandbox: ChannelSandbox) -> int:
            await sandbox.download(inside, Path(target))
            return 0

        end(asyncio.run(with_sandbox(url, key, wanted, out)))
        return
    wanted, colon, inside = target.partition(":")
    if not colon:
        raise ConfigError("cp: write the sandbox's side as SANDBOX:PATH")

    async def into(sandbox: ChannelSandbox) -> int:
        await sandbox.upload(Path(source), inside)
        return 0

    end(asyncio.run(with_sandbox(url, key, wanted, into)))
