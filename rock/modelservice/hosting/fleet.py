"""A service of several processes: `rock serve --shards N`.

    async with ServiceFleet(state_dir, shards=4) as fleet:
        fleet.control_url, fleet.keys        # any client of `shards` finds all four from one

Every shard is a whole ModelService with its own journal in `state_dir/shard-K` and its own two
ports; all have the same keys. A session is placed when it is opened: its URL has its shard's port and
its id the shard's number, so nothing stands between an agent and its shard. The listening sockets
belong to this object: a shard that crashes is started again and refuses no connection meanwhile, and
the others do not notice.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
from yarl import URL

from rock.config import validated
from rock.errors import ConfigError
from rock.modelservice import keys
from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.hosting.supervise import ServiceProcess, keep_up
from rock.modelservice.journal.journal import FILE_NAME as JOURNAL
from rock.modelservice.keys import Keys
from rock.modelservice.settings import ServiceConfig

_FOLDER = re.compile(r"shard-(\d+)")


class ServiceFleet:
    """The shards of one service. Use as `async with`."""

    def __init__(
        self,
        state_dir: Path,
        *,
        shards: int,
        settings: Mapping[str, Any] | None = None,
        backends: Sequence[str] = (),
        api_base: str | None = None,
    ) -> None:
        """As for `ServiceProcess`; with ports given, shard K gets the K-th after them."""
        if shards < 1:
            raise ConfigError(f"shards: expected at least 1, got {shards}")
        self.state_dir = state_dir
        given = {**(settings or {}), "state_dir": state_dir}
        config = validated(ServiceConfig, given, source="settings")
        self.shards = [
            ServiceProcess(
                state_dir / f"shard-{number}",
                settings={**(settings or {}), **_place(config, number)},
                backends=backends,
                api_base=api_base,
                exit_with_parent=True,
            )
            for number in range(shards)
        ]
        self._stack = AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []

    @property
    def control_url(self) -> str:
        return self.control_urls[0]

    @property
    def control_urls(self) -> list[str]:
        return [shard.listens_at[1] for shard in self.shards]

    @property
    def agent_urls(self) -> list[str]:
        return [shard.listens_at[0] for shard in self.shards]

    @property
    def keys(self) -> Keys:
        return keys.read_keys(self.state_dir)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._prepare)
            for shard in self.shards:
                self._stack.push_async_callback(shard.stop)
                shard.open_sockets()
            ports = ",".join(url.rpartition(":")[2] for url in self.control_urls)
            for number, shard in enumerate(self.shards):
                shard.set(shard=number, shard_control_ports=ports, on_journal_failure="exit")
            starts = [asyncio.ensure_future(shard.__aenter__()) for shard in self.shards]
            try:
                await asyncio.gather(*starts)
            finally:
                for start in starts:
                    start.cancel()
                await asyncio.gather(*starts, return_exceptions=True)
            self._watches = [asyncio.create_task(keep_up(shard)) for shard in self.shards]
            await asyncio.to_thread(self._tell_ready)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Idempotent; the processes are reaped even if the caller is cancelled meanwhile."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        self._watches = []
        (self.state_dir / READY_FILE).unlink(missing_ok=True)
        await self._stack.aclose()

    def _prepare(self) -> None:
        """Directories and keys. Raises ConfigError for a state directory of another layout."""
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (self.state_dir / JOURNAL).exists():
            raise ConfigError(
                f"{self.state_dir} is the state of a service without shards; choose another "
                "directory, or start it without --shards"
            )
        there = [int(m[1]) for p in self.state_dir.iterdir() if (m := _FOLDER.fullmatch(p.name))]
        if there and max(there) >= len(self.shards):
            raise ConfigError(
                f"{self.state_dir} has the state of {max(there) + 1} shards; start as many: "
                f"--shards {max(there) + 1}"
            )
        keys.ensure_keys(self.state_dir)
        for shard in self.shards:
            shard.state_dir.mkdir(mode=0o700, exist_ok=True)
            keys.share_keys(self.state_dir, shard.state_dir)

    def _tell_ready(self) -> None:
        ready = Ready(
            pid=os.getpid(),
            agent_url=self.agent_urls[0],
            control_url=self.control_url,
            attach_path=str(self.shards[0].attach_path),
        )
        draft = self.state_dir / f"{READY_FILE}.new"
        draft.write_bytes(msgspec.json.encode(ready))
        draft.replace(self.state_dir / READY_FILE)


def _place(config: ServiceConfig, number: int) -> dict[str, int | str]:
    """Ports that were chosen are for the first shard; the others follow. Raises ConfigError."""
    ports = {"agent_port": config.agent_port, "control_port": config.control_port}
    found: dict[str, int | str] = {name: port + number for name, port in ports.items() if port}
    if config.public_agent_url is not None and number > 0:
        public = URL(config.public_agent_url)
        if public.explicit_port is None:
            raise ConfigError(
                "public_agent_url: expected a URL with a port, which every shard counts up from"
            )
        found["public_agent_url"] = str(public.with_port(public.explicit_port + number))
    return found
