"""How `rock sandbox` finds sandboxes: those of every harness and server of this user, or of one server.

A harness that runs is asked through its door, a server by HTTP. Containers of a harness that has no door, or
was killed, are reached past it.
"""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from rock.config import read_environment
from rock.errors import ConfigError, RockError
from rock.sandbox import api
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.docker.attached import HereSource, only
from rock.sandbox.docker.engine import Engine
from rock.sandbox.remote.door import doors
from rock.sandbox.remote.remote import RemoteProvider

Work = Callable[[ChannelSandbox], Awaitable[int]]


class Source(Protocol):
    async def list(self) -> list[api.SandboxInfo]: ...
    def attach(self, info: api.SandboxInfo) -> ChannelSandbox: ...
    async def close(self) -> None: ...


def server_dir() -> Path:
    return read_environment().state_dir / "sandbox"


def server_here() -> tuple[str, str] | None:
    """Address and key of the server that runs on this machine, if one does."""
    try:
        known = jsonlib.loads((server_dir() / "server.json").read_text())
        os.kill(int(known["pid"]), 0)
        return str(known["url"]), (server_dir() / "key").read_text().strip()
    except (OSError, ValueError, KeyError):
        return None


def address(url: str | None, key: str | None) -> tuple[str, str] | None:
    """The server that was asked for, on the command line or by the environment, and its key."""
    url, key = url or read_environment().sandbox_url, key or read_environment().sandbox_key
    if url is None:
        return None
    if not key:
        raise ConfigError("--key: the server of --url wants one (or set ROCK_SANDBOX_KEY)")
    return url, key


@asynccontextmanager
async def sources(url: str | None, key: str | None) -> AsyncGenerator[list[Source]]:
    """Where to look, the best informed first."""
    found: list[Source] = []
    if (given := address(url, key)) is not None:
        found.append(RemoteProvider(*given))
    else:
        if (here := server_here()) is not None:
            found.append(RemoteProvider(*here))
        found += doors()
        found.append(HereSource(Engine(read_environment().docker_host)))
    try:
        yield found
    finally:
        for source in found:
            await source.close()


async def every(places: Sequence[Source]) -> list[tuple[Source, api.SandboxInfo]]:
    """Each sandbox once. Raises what the one place to look does, if there is but one."""
    found: list[tuple[Source, api.SandboxInfo]] = []
    boxes: set[str] = set()
    for place in places:
        try:
            infos = await place.list()
        except RockError:
            if len(places) == 1:
                raise
            continue  # a harness that has just ended, or is of another version of rock
        for info in infos:
            if not {info.id, info.box} & boxes:
                found.append((place, info))
        boxes |= {name for info in infos for name in (info.id, info.box) if name}
    return found


async def with_sandbox(url: str | None, key: str | None, wanted: str, work: Work) -> int:
    """`work` on the sandbox whose id begins with `wanted`; what it started there then ends."""
    async with sources(url, key) as places:
        infos = {info.id: (source, info) for source, info in await every(places)}
        info = only([info for _, info in infos.values()], wanted)
        sandbox = infos[info.id][0].attach(info)
        try:
            return await work(sandbox)
        finally:
            await sandbox.detach()
