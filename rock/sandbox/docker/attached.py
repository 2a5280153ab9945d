"""Sandboxes that another process made: the view from above, for people and tools.

Their harness answers for them if it has a door (`remote.door`). Where it has none, or is gone, a container
can still be reached, past it: its control socket is in a directory of this user (`host_dirs`), and so is what
it is. What only a harness knows (layers, snapshots, variables changed meanwhile) is then out of reach. What
is attached is used, never owned: only an explicit `stop` ends it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rock.errors import BadRequest, NotFound, NotSupported, SandboxError
from rock.sandbox import api, host_dirs
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.box.identity import Identity
from rock.sandbox.box.stateful import Box
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import PathConnector
from rock.sandbox.docker.container import SOCKET_NAME
from rock.sandbox.docker.engine import Engine
from rock.sandbox.owner import wall_seconds

_NO_DOOR = "the harness of this sandbox opens no door, or is gone; it alone knows"


class AttachedSandbox(ChannelSandbox):
    """A container of a harness that is not asked."""

    async def set_env(self, changes: Mapping[str, str | None]) -> None:
        raise NotSupported(f"set_env: {_NO_DOOR} the variables of its commands")


class HereSource:
    """The docker sandboxes of this user on this machine."""

    def __init__(self, engine: Engine, base: Path | None = None) -> None:
        self._engine = engine
        self._base = base or host_dirs.default_base()

    async def list(self) -> list[api.SandboxInfo]:
        found: list[api.SandboxInfo] = []
        for folder, data in host_dirs.descriptions(self._base):
            try:
                info = api.decode(data, api.SandboxInfo)
            except BadRequest:
                continue  # of another version of rock
            age = wall_seconds() - (folder / "sandbox.json").stat().st_mtime
            found.append(msgspec.structs.replace(info, age_seconds=age))
        return found

    def attach(self, info: api.SandboxInfo) -> ChannelSandbox:
        folder = self._base / info.id
        helper_pid = host_dirs.helper_of(folder)
        channel = Channel(PathConnector(folder / "run" / SOCKET_NAME, helper_pid))

        async def remove() -> None:
            try:
                await self._engine.remove(f"rock-{info.id}")
            finally:
                host_dirs.remove(self._base / info.id)

        state = BoxState(
            channel, "attached", None, why_not=f"{_NO_DOOR} its files' layers", pausable=False
        )
        box = Box(id=info.id, channel=channel, state=state, remove=remove)
        profile = info.profile
        sandbox = AttachedSandbox(
            box,
            info.spec,
            rlimits=profile.rlimits,
            variables=profile.variables,
            log=host_dirs.find_log(self._base, info.id),
        )
        sandbox.recorder.by = "attached"
        sandbox.identity = Identity(profile.user, profile.home)
        return sandbox

    async def close(self) -> None:
        await self._engine.close()


def only(infos: list[api.SandboxInfo], wanted: str) -> api.SandboxInfo:
    """The sandbox whose id begins with `wanted`. Raises `NotFound`, `SandboxError` if several do."""
    found = [info for info in infos if wanted and info.id.startswith(wanted)]
    if not found:
        raise NotFound(
            f"there is no sandbox {wanted or '(empty id)'}; `rock sandbox ps` lists them"
        )
    if len(found) > 1:
        raise SandboxError(f"{wanted} is the beginning of {len(found)} ids; write more of it")
    return found[0]


def ages(seconds: float) -> str:
    """A short age for people."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def cpu_shares(before: dict[int, float], after: dict[int, float], began: float) -> dict[int, float]:
    """CPU of each process since `began` (monotonic), as a share of one core."""
    elapsed = max(time.monotonic() - began, 1e-6)
    return {pid: (used - before.get(pid, used)) / elapsed for pid, used in after.items()}
