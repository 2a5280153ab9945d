"""`rock sandbox`: look into sandboxes that run, whoever made them, and serve some to others.

Without `--url` these are the docker sandboxes of this user on this machine, and those of a `rock sandbox
serve` that runs here. Commands keep the exit code of what they ran: 124 is a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as jsonlib
import os
import secrets
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import typer

from rock.config import read_environment
from rock.errors import ConfigError, NotFound, NotSupported
from rock.sandbox import api
from rock.sandbox.base import SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.command import ExecResult, ExecStatus, Process, ProcessInfo, TerminalSize
from rock.sandbox.docker.attached import HereSource, ages, cpu_shares, only
from rock.sandbox.docker.engine import Engine
from rock.sandbox.docker.reaper import reap
from rock.sandbox.doctor import choose_provider, providers
from rock.sandbox.remote.remote import RemoteProvider, RemoteSandbox
from rock.sandbox.remote.server import SandboxServer, serving

_TIMED_OUT = 124
_DIED = 125
Work = Callable[[ChannelSandbox], Awaitable[int]]


class Source(Protocol):
    async def list(self) -> list[api.SandboxInfo]: ...
    def attach(self, info: api.SandboxInfo) -> ChannelSandbox: ...
    async def close(self) -> None: ...


def _server_dir() -> Path:
    return read_environment().state_dir / "sandbox"


def _server_here() -> tuple[str, str] | None:
    """Address and key of the server that runs on this machine, if one does."""
    try:
        known = jsonlib.loads((_server_dir() / "server.json").read_text())
        os.kill(int(known["pid"]), 0)
        return str(known["url"]), (_server_dir() / "key").read_text().strip()
    except (OSError, ValueError, KeyError):
        return None


@asynccontextmanager
async def _sources(url: str | None, key: str | None) -> AsyncGenerator[list[Source]]:
    found: list[Source] = []
    url, key = url or read_environment().sandbox_url, key or read_environment().sandbox_key
    if url is not None:
        if not key:
            raise ConfigError("--key: the server of --url wants one (or set ROCK_SANDBOX_KEY)")
        found.append(RemoteProvider(url, key))
    else:
        found.append(HereSource(Engine(read_environment().docker_host)))
        if (here := _server_here()) is not None:
            found.append(RemoteProvider(*here))
    try:
        yield found
    finally:
        for source in found:
            await source.close()


async def _with(url: str | None, key: str | None, wanted: str, work: Work) -> int:
    async with _sources(url, key) as sources:
        infos = {info.id: (source, info) for source in sources for info in await source.list()}
        info = only([info for _, info in infos.values()], wanted)
        sandbox = infos[info.id][0].attach(info)
        try:
            return await work(sandbox)
        finally:
            await sandbox.channel.close()


def _end(code: int) -> None:
    if code:
        raise typer.Exit(code)


def run_ps(wanted: str | None, *, url: str | None, key: str | None, as_json: bool) -> None:
    """Every sandbox; or the processes of one."""
    if wanted is None:
        infos = asyncio.run(_list(url, key))
        if as_json:
            typer.echo(api.encode(infos))
            return
        rows = [
            (
                info.id,
                info.provider,
                ages(info.age_seconds),
                info.spec.image or "-",
                info.spec.workdir,
            )
            for info in infos
        ]
        _table(("sandbox", "provider", "age", "image", "workdir"), rows)
        return

    async def show(sandbox: ChannelSandbox) -> int:
        found = await sandbox.list_processes()
        if as_json:
            typer.echo(api.encode(found))
        else:
            _print_processes(found, {})
        return 0

    _end(asyncio.run(_with(url, key, wanted, show)))


async def _list(url: str | None, key: str | None) -> list[api.SandboxInfo]:
    async with _sources(url, key) as sources:
        return [info for source in sources for info in await source.list()]


def run_top(wanted: str, *, url: str | None, key: str | None, seconds: float, rounds: int) -> None:
    """The processes of one sandbox, busiest first, again and again (`rounds` 0: until interrupted)."""

    async def show(sandbox: ChannelSandbox) -> int:
        before = {one.pid: one.cpu_seconds for one in await sandbox.list_processes()}
        began, count = time.monotonic(), 0
        while not rounds or count < rounds:
            await asyncio.sleep(seconds)
            found = await sandbox.list_processes()
            after = {one.pid: one.cpu_seconds for one in found}
            shares = cpu_shares(before, after, began)
            found.sort(key=lambda one: -shares[one.pid])
            _print_processes(found, shares)
            before, began, count = after, time.monotonic(), count + 1
        return 0

    _end(asyncio.run(_with(url, key, wanted, show)))


def _print_processes(found: Sequence[ProcessInfo], shares: dict[int, float]) -> None:
    rows = [
        (
            str(one.pid),
            str(one.parent),
            str(one.uid),
            one.state,
            f"{100 * shares[one.pid]:.0f}%" if one.pid in shares else f"{one.cpu_seconds:.2f}s",
            f"{one.resident_bytes / 1024**2:.1f}M",
            " ".join(one.command),
        )
        for one in found
    ]
    _table(("pid", "parent", "uid", "", "cpu", "memory", "command"), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns; the last one is cut at the edge of a terminal."""
    every = [columns, *([_plain(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in every) for at in range(len(columns) - 1)]
    edge = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for row in every:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, row[-1]])[:edge])


def _plain(text: str) -> str:
    """What a sandbox says must not steer the terminal of who looks at it."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


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
                stream = sys.stdout if output.stream == "stdout" else sys.stderr
                stream.buffer.write(output.data)
                stream.buffer.flush()
            return _code(await process.wait())

    _end(asyncio.run(_with(url, key, wanted, work)))


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

    _end(asyncio.run(_with(url, key, wanted, work)))


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
            sys.stdout.buffer.write(output.data)
            sys.stdout.buffer.flush()
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

        _end(asyncio.run(_with(url, key, wanted, out)))
        return
    wanted, colon, inside = target.partition(":")
    if not colon:
        raise ConfigError("cp: write the sandbox's side as SANDBOX:PATH")

    async def into(sandbox: ChannelSandbox) -> int:
        await sandbox.upload(Path(source), inside)
        return 0

    _end(asyncio.run(_with(url, key, wanted, into)))


def run_env(wanted: str, *, url: str | None, key: str | None) -> None:
    """The variables that a command there gets."""

    async def work(sandbox: ChannelSandbox) -> int:
        for name, value in sorted(sandbox.environment().items()):
            typer.echo(f"{name}={value}")
        return 0

    _end(asyncio.run(_with(url, key, wanted, work)))


def run_reset(wanted: str, *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        receipt = await sandbox.reset()
        typer.echo(jsonlib.dumps(asdict(receipt)))
        return 0 if receipt.clean else 1

    _end(asyncio.run(_with(url, key, wanted, work)))


def run_diff(wanted: str, *, url: str | None, key: str | None) -> None:
    """What was written since it was made; `-` is what was removed."""

    async def work(sandbox: ChannelSandbox) -> int:
        changes = await _served(sandbox).diff()
        for one in changes.entries:
            mark = "-" if one.kind == "removed" else "+"
            size = f"  {one.size_bytes} bytes" if one.kind == "file" else f"  ({one.kind})"
            typer.echo(f"{mark} {_plain(one.path)}{'' if mark == '-' else size}")
        if not changes.complete:
            typer.echo("rock: there is more, or something could not be read", err=True)
        return 0

    _end(asyncio.run(_with(url, key, wanted, work)))


def _served(sandbox: ChannelSandbox) -> RemoteSandbox:
    if not isinstance(sandbox, RemoteSandbox):
        raise NotSupported("this is for sandboxes of a server: see `rock sandbox serve`")
    return sandbox


def run_snapshot(wanted: str, *, url: str | None, key: str | None) -> None:
    """Keep a served sandbox's files on its server; prints the snapshot's id."""

    async def work(sandbox: ChannelSandbox) -> int:
        typer.echo((await _served(sandbox).keep_snapshot()).id)
        return 0

    _end(asyncio.run(_with(url, key, wanted, work)))


def run_restore(wanted: str, snapshot: str, *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        receipt = await _served(sandbox).restore_kept(snapshot)
        typer.echo(jsonlib.dumps(asdict(receipt)))
        return 0 if receipt.clean else 1

    _end(asyncio.run(_with(url, key, wanted, work)))


def run_snapshots(*, url: str | None, key: str | None, drop: Sequence[str]) -> None:
    """What the server keeps, after dropping some."""

    async def work() -> list[api.SnapshotInfo]:
        async with _sources(url, key) as sources:
            servers = [source for source in sources if isinstance(source, RemoteProvider)]
            for server in servers:
                for one in drop:
                    await server.drop_snapshot(one)
            return [info for server in servers for info in await server.snapshots()]

    rows = [(info.id, ages(info.age_seconds), info.sandbox) for info in asyncio.run(work())]
    _table(("snapshot", "age", "of sandbox"), rows)


def run_stop(wanted: Sequence[str], *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        await sandbox.stop()
        return 0

    for one in wanted:
        _end(asyncio.run(_with(url, key, one, work)))


def run_reap() -> None:
    """Remove what harnesses that are gone have left on this machine's engine."""

    async def work() -> None:
        engine = Engine(read_environment().docker_host)
        try:
            removed = await reap(engine)
        finally:
            await engine.close()
        for name in (*removed.containers, *removed.directories):
            typer.echo(f"removed {name}")

    asyncio.run(work())


def run_create(
    image: str | None,
    *,
    url: str | None,
    key: str | None,
    lease_seconds: float,
    snapshot: str | None = None,
) -> None:
    """A sandbox on a server; it lives until it is stopped, or its lease runs out unused."""

    async def work() -> None:
        here = (url, key) if url and key else _server_here()
        if here is None:
            raise NotFound("no sandbox server runs here; start one with `rock sandbox serve`")
        provider = RemoteProvider(*here)
        try:
            info = await provider.create_unowned(
                SandboxSpec(image=image), lease_seconds, snapshot_id=snapshot
            )
        finally:
            await provider.close()
        typer.echo(info.id)

    asyncio.run(work())


def run_serve(provider: str, *, host: str, port: int, allow_mounts: bool) -> None:
    """Serve until interrupted; the key is made at the first start and only this user can read it."""
    asyncio.run(_serve(provider, host, port, allow_mounts))


async def _serve(name: str, host: str, port: int, allow_mounts: bool) -> None:
    folder = _server_dir()
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(folder / "key")
    docker_host = read_environment().docker_host
    found = {one.name: one for one in providers(docker_host)}
    chosen = await choose_provider(docker_host) if name == "auto" else found[name]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = SandboxServer(chosen, key=key, allow_mounts=allow_mounts)
    known = folder / "server.json"
    async with serving(server, host=host, port=port) as url:
        known.write_text(jsonlib.dumps({"url": url, "pid": os.getpid()}))
        typer.echo(f"sandboxes: {url}   (made by {chosen.name}; the key: {folder / 'key'})")
        typer.echo("Ctrl-C stops it, and every sandbox that it made.")
        try:
            await stop.wait()
        finally:
            known.unlink(missing_ok=True)


def _key(path: Path) -> str:
    with contextlib.suppress(FileExistsError):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return path.read_text().strip()
