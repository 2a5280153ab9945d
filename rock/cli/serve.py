"""`rock serve` and `rock session`: a ModelService for people, and a key to it for an agent."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from rock.cli.arguments import pairs
from rock.config import read_environment, validated
from rock.errors import ConfigError, ServiceUnavailable
from rock.modelservice.backends.config import policies_of
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.hosting.fleet import ServiceFleet
from rock.modelservice.hosting.server import Ready, read_ready, run
from rock.modelservice.keys import read_keys
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.telemetry import logs
from rock.modelservice.wire import SessionCreated, SessionLimits, SessionSpec

CONNECT_SECONDS = 2.0
_SHARDS = "rock serve --shards sets it"
_NOT_SET = {"state_dir": "use --state-dir", "shard": _SHARDS, "shard_control_ports": _SHARDS}
"""Settings that --set does not take, and why."""
SILENT_SECONDS = 1.0
"""A wait that is longer says what it waits for."""


def service_dir(given: Path | None) -> Path:
    return (given or read_environment().state_dir / "service").resolve()


def run_serve(
    state_dir: Path | None,
    *,
    backends: Sequence[str],
    api_base: str | None,
    settings: Sequence[str],
    shards: int | None = None,
) -> None:
    folder = service_dir(state_dir)
    given = pairs(settings, "--set")
    for name in given.keys() & _NOT_SET:
        raise ConfigError(f"rock serve --set: {name}: {_NOT_SET[name]}")
    values: dict[str, Any] = {**given, "state_dir": folder}
    environment = read_environment()
    logs.configure(environment.log_level, environment.log_format)
    config = validated(ServiceConfig, values, source="rock serve --set")
    if shards is not None:
        fleet = ServiceFleet(
            folder, shards=shards, settings=given, backends=backends, api_base=api_base
        )
        asyncio.run(_run_fleet(fleet))
        return
    if any(folder.glob("shard-*")):
        raise ConfigError(f"{folder} is the state of a service of several shards; use --shards")
    policies = policies_of(backends, api_base=api_base, file=config.backends_file)
    run(config, policies=policies, on_ready=lambda ready: _announce(folder, ready))


async def _run_fleet(fleet: ServiceFleet) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    starting = asyncio.ensure_future(fleet.__aenter__())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            return
        starting.result()
        for number, url in enumerate(fleet.agent_urls):
            typer.echo(f"agents:   {url}/v1   (shard {number}; a key for one: rock session)")
        keys = fleet.state_dir / "keys.json"
        typer.echo(f"trainer:  {fleet.control_url}      (of all shards; its key: {keys})")
        typer.echo("Ctrl-C stops them; their journals keep every call.")
        await stopped
    finally:
        for task in (starting, stopped):
            task.cancel()
        await asyncio.gather(starting, stopped, return_exceptions=True)
        await fleet.stop()


def _announce(folder: Path, ready: Ready) -> None:
    typer.echo(f"agents:   {ready.agent_url}/v1   (a key for one: rock session)")
    typer.echo(f"trainer:  {ready.control_url}      (its key: {folder / 'keys.json'})")
    typer.echo("Ctrl-C stops it; the journal keeps every call.")


def open_session(
    state_dir: Path | None,
    *,
    backend: str | None,
    max_calls: int | None,
    labels: Sequence[str],
    wait_seconds: float,
) -> None:
    folder = service_dir(state_dir)
    ready = wait_for_service(folder, wait_seconds=wait_seconds)
    spec = SessionSpec(
        labels=pairs(labels, "--label"), limits=SessionLimits(max_calls=max_calls), backend=backend
    )
    created = asyncio.run(_create(ready.control_url, read_keys(folder).admin_key, spec))
    # The key goes where programs expect one; in the URL it would be in their logs.
    typer.echo(f"OPENAI_BASE_URL={created.base_url.replace(f'/s/{created.key}', '')}")
    typer.echo(f"OPENAI_API_KEY={created.key}")


async def _create(url: str, key: str, spec: SessionSpec) -> SessionCreated:
    async with AdminShards(url, key) as admin:
        return await admin.create_session(spec)


def wait_for_service(folder: Path, *, wait_seconds: float) -> Ready:
    """Where the service with this state directory listens. Raises ServiceUnavailable."""
    began = time.monotonic()
    said = False
    while (ready := read_ready(folder)) is None or not _listens(ready.control_url):
        waited = time.monotonic() - began
        if waited < wait_seconds and waited > SILENT_SECONDS and not said:
            said = True
            typer.echo(
                f"rock: waiting up to {wait_seconds:g} s for a service in {folder}", err=True
            )
        if waited >= wait_seconds:
            last = f" (the last one there, pid {ready.pid}, was killed)" if ready else ""
            raise ServiceUnavailable(
                f"no service is running in {folder}{last}; start one with "
                f"`rock serve --state-dir {folder}`"
            )
        time.sleep(0.05)
    return ready


def _listens(url: str) -> bool:
    """Whether anybody does: a service that was killed leaves its address behind."""
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False
