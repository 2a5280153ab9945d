"""The life and state of sandboxes: `rock sandbox create|stop|reap|reset|snapshot|restore|snapshots`."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Sequence
from dataclasses import asdict

import typer

from rock.cli.sandbox.finding import address, server_here, sources, with_sandbox
from rock.cli.sandbox.screen import end, table
from rock.config import read_environment
from rock.errors import NotFound, NotSupported, ProviderUnavailable
from rock.sandbox import api
from rock.sandbox.base import SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.docker.attached import ages
from rock.sandbox.docker.engine import Engine
from rock.sandbox.docker.reaper import reap
from rock.sandbox.local import cgroups
from rock.sandbox.remote.remote import RemoteProvider, RemoteSandbox


def run_reset(wanted: str, *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        receipt = await sandbox.reset()
        typer.echo(jsonlib.dumps(asdict(receipt)))
        return 0 if receipt.clean else 1

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


def _served(sandbox: ChannelSandbox) -> RemoteSandbox:
    if not isinstance(sandbox, RemoteSandbox):
        raise NotSupported(
            "the harness of this sandbox opens no door, or is gone: it alone could keep its files"
        )
    return sandbox


def run_snapshot(wanted: str, *, url: str | None, key: str | None) -> None:
    """Keep a sandbox's files with its server or harness; prints the snapshot's id."""

    async def work(sandbox: ChannelSandbox) -> int:
        typer.echo((await _served(sandbox).keep_snapshot()).id)
        return 0

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


def run_restore(wanted: str, snapshot: str, *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        receipt = await _served(sandbox).restore_kept(snapshot)
        typer.echo(jsonlib.dumps(asdict(receipt)))
        return 0 if receipt.clean else 1

    end(asyncio.run(with_sandbox(url, key, wanted, work)))


def run_snapshots(*, url: str | None, key: str | None, drop: Sequence[str]) -> None:
    """What servers and harnesses keep, after dropping some."""

    async def work() -> list[api.SnapshotInfo]:
        found: list[api.SnapshotInfo] = []
        missing = set(drop)
        async with sources(url, key) as places:
            for place in places:
                if not isinstance(place, RemoteProvider):
                    continue
                try:
                    known = await place.snapshots()
                    for info in known:
                        if info.id in drop:
                            await place.drop_snapshot(info.id)
                            missing.discard(info.id)
                    found += [info for info in known if info.id not in drop]
                except ProviderUnavailable:
                    if url:
                        raise
        if missing:
            raise NotFound(
                f"there is no snapshot {min(missing)}; `rock sandbox snapshots` lists them"
            )
        return found

    rows = [(info.id, ages(info.age_seconds), info.sandbox) for info in asyncio.run(work())]
    table(("snapshot", "age", "of sandbox"), rows)


def run_stop(wanted: Sequence[str], *, url: str | None, key: str | None) -> None:
    async def work(sandbox: ChannelSandbox) -> int:
        await sandbox.stop()
        return 0

    for one in wanted:
        end(asyncio.run(with_sandbox(url, key, one, work)))


def run_reap() -> None:
    """Remove what harnesses that are gone have left on this machine and its engine."""

    async def work() -> None:
        engine = Engine(read_environment().docker_host)
        try:
            cgroups.remove_leftovers()
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
        here = address(url, key) or server_here()
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
