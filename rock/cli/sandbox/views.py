"""Looking into sandboxes: `rock sandbox ps|top|logs|env|diff`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import typer

from rock.cli.sandbox.finding import address, every, sources, with_sandbox
from rock.cli.sandbox.screen import end, plain, table
from rock.errors import NotFound, ProviderUnavailable
from rock.sandbox import api, host_dirs
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.command import ProcessInfo
from rock.sandbox.docker.attached import ages, cpu_shares
from rock.sandbox.logs import LogEntry


def run_ps(wanted: str | None, *, url: str | None, key: str | None, as_json: bool) -> None:
    """Every sandbox; or the processes of one."""
    if wanted is None:
        infos = asyncio.run(_list(url, key))
        if as_json:
            typer.echo(api.encode(infos).decode())
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
        table(("sandbox", "provider", "age", "image", "workdir"), rows)
        return

    async def show(sandbox: ChannelSandbox) -> int:
        found = await sandbox.list_processes()
        if as_json:
            typer.echo(api.encode(found).decode())
        else:
            _print_processes(found, {})
        return 0

    end(asyncio.run(with_sandbox(url, key, wanted, show)))


async def _list(url: str | None, key: str | None) -> list[api.SandboxInfo]:
    async with sources(url, key) as places:
        return [info for _, info in await every(places)]


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

    end(asyncio.run(with_sandbox(url, key, wanted, show)))


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
    table(("pid", "parent", "uid", "", "cpu", "memory", "command"), rows)


def run_diff(wanted: str, *, url: str | None, key: str | None) -> None:
    """What was written since it was made; `-` is what was removed."""

    async def work(sandbox: ChannelSandbox) -> int:
        changes = await sandbox.diff()
        for one in changes.entries:
            mark = "-" if one.kind == "removed" else "+"
            size = f"  {one.size_bytes} bytes" if one.kind == "file" else f"  ({one.kind})"
            typer.echo(f"{mark} {plain(one.path)}{'' if mark == '-' else size}")
        if not changes.complete:
            typer.echo("rock: there is more, or something could not be read", err=True)
        return 0

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


def run_env(
    wanted: str,
    *,
    url: str | None,
    key: str | None,
    changes: Mapping[str, str | None],
    as_json: bool,
) -> None:
    """The variables that a later command there gets, after changing some."""

    async def work(sandbox: ChannelSandbox) -> int:
        if changes:
            await sandbox.set_env(changes)
        found = sandbox.environment()
        if as_json:
            typer.echo(api.encode(found).decode())
            return 0
        for name, value in sorted(found.items()):
            typer.echo(f"{name}={plain(value)}")
        return 0

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


_FOLLOW_SECONDS = 20.0


def run_logs(
    wanted: str,
    *,
    url: str | None,
    key: str | None,
    follow: bool,
    tail: int | None,
    as_json: bool,
) -> None:
    """What was done to a sandbox, and what its commands wrote; until it ends, or interrupted."""

    async def work(sandbox: ChannelSandbox) -> int:
        page = await sandbox.read_log(tail=tail)
        _print_log(page.entries, as_json=as_json)
        while follow:
            try:
                page = await sandbox.read_log(after=page.cursor, wait_seconds=_FOLLOW_SECONDS)
            except (NotFound, ProviderUnavailable):
                break  # the sandbox has ended, and its log with it
            if not page.complete:
                typer.echo("rock: some entries were dropped before they were read", err=True)
            _print_log(page.entries, as_json=as_json)
        return 0

    try:
        end(asyncio.run(with_sandbox(url, key, wanted, work)))
    except NotFound:
        left = None if address(url, key) else host_dirs.find_log(host_dirs.default_base(), wanted)
        if left is None:
            raise
        # Its harness was killed: this is what it had written down.
        _print_log(left.read(tail=tail).entries, as_json=as_json)


def _print_log(entries: Sequence[LogEntry], *, as_json: bool) -> None:
    for entry in entries:
        if as_json:
            typer.echo(api.encode(entry).decode())
            continue
        if entry.part != "output":
            typer.echo(_line(entry))
        for mark, data in (("|", entry.stdout), ("!", entry.stderr)):
            for line in data.decode(errors="replace").splitlines():
                typer.echo(f"  {entry.action[:4]} {mark} {plain(line)}")
        if entry.left_out_bytes:
            typer.echo(f"  {entry.action[:4]} ({entry.left_out_bytes} bytes of it are left out)")


def _line(entry: LogEntry) -> str:
    moment = datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    words = [moment, entry.action[:4], entry.by, entry.kind, plain(entry.what)]
    if entry.part == "began":
        return "  ".join([*words, "…"])
    how = entry.status
    if entry.exit_code is not None:
        how = f"{how} {entry.exit_code}"
    if entry.signal is not None:
        how = f"{how} {entry.signal}"
    took = "" if entry.seconds is None else f"{1000 * entry.seconds:.1f} ms"
    size = [f"{count} bytes{of}" for count, of in _sizes(entry) if count]
    return "  ".join(word for word in [*words, f"→ {how}", took, *size] if word)


def _sizes(entry: LogEntry) -> tuple[tuple[int, str], tuple[int, str]]:
    if entry.kind == "file":
        return (entry.stdout_bytes, ""), (0, "")
    return (entry.stdout_bytes, " out"), (entry.stderr_bytes, " err")
