"""`rock sandbox serve`: sandboxes of this machine for clients elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json as jsonlib
import os
import secrets
import signal
from pathlib import Path

import typer

from rock.cli.sandbox.finding import server_dir
from rock.config import read_environment
from rock.errors import ConfigError
from rock.sandbox.doctor import choose_provider, providers
from rock.sandbox.remote.server import SandboxServer, serving


def run_serve(provider: str, *, host: str, port: int, allow_mounts: bool) -> None:
    """Serve until interrupted; the key is made at the first start and only this user can read it."""
    try:
        asyncio.run(_serve(provider, host, port, allow_mounts))
    except OSError as exc:
        raise ConfigError(f"serve: {host} port {port}: {exc.strerror}") from exc


async def _serve(name: str, host: str, port: int, allow_mounts: bool) -> None:
    folder = server_dir()
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
