"""A Docker engine: the few calls that sandboxes need, typed and bounded.

How a call is made, and what its failures are, is in `engine_calls`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import docker.errors

from rock.errors import ProviderUnavailable, SandboxDied, SandboxError
from rock.sandbox.docker.engine_calls import DEFAULT_ADDRESS, Api, EngineCalls

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What answered."""

    version: str
    api_version: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image the engine has: its content id, and what it says about running it."""

    id: str
    user: str
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container the engine has."""

    id: str
    name: str
    running: bool
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where the files of a running container are, if they are directories of the engine's machine."""

    pid: int
    driver: str
    lower: tuple[str, ...]
    """The layers of its image, the topmost first; none with another driver than `overlay2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a container: `die` (`exitCode`), `kill` (`signal`), `oom`, …"""

    action: str
    attributes: Mapping[str, str]


class Engine:
    """Calls to one engine. `close` frees its threads and connections; safe to call twice."""

    def __init__(self, host: str | None = None, *, timeout_seconds: float = 60.0) -> None:
        cores = os.cpu_count() or 1
        # Creation is CPU-bound in the engine: more at once only makes each one slower. The other
        # threads are for short calls, so that a removal does not wait behind a queue of creations.
        self._creations = asyncio.Semaphore(2 * cores)
        self._calls = EngineCalls(
            host or DEFAULT_ADDRESS, timeout_seconds=timeout_seconds, at_once=2 * cores + 4
        )
        self.address = self._calls.address

    async def info(self) -> EngineInfo:
        """Ask the engine who it is. Raises `ProviderUnavailable` with the remedy."""
        version = await self._calls.call("ask for the version", lambda api: api.version())
        client = await self._calls.client()
        return EngineInfo(
            version=str(version.get("Version", "unknown")),
            api_version=client.api_version,
            address=self.address,
        )

    async def image(self, reference: str) -> Image | None:
        """The image of that name or id, or None if the engine does not have it."""

        def inspect(api: Api) -> Image | None:
            try:
                found = api.inspect_image(reference)
            except docker.errors.ImageNotFound:
                return None
            config = cast(dict[str, Any], found.get("Config") or {})
            env = [str(item).partition("=") for item in config.get("Env") or ()]
            return Image(
                id=str(found["Id"]),
                user=str(config.get("User") or ""),
                env={name: value for name, _, value in env},
            )

        return await self._calls.call(f"look up the image {reference}", inspect)

    async def pull(self, reference: str, *, timeout_seconds: float) -> None:
        """Fetch an image; each silence of the registry and the whole pull are bounded."""

        def pull(api: Api) -> None:
            deadline = time.monotonic() + timeout_seconds
            for event in api.pull(reference, stream=True, decode=True):
                if "error" in event:
                    raise SandboxError(f"the engine could not pull {reference}: {event['error']}")
                if time.monotonic() > deadline:
                    raise SandboxError(f"pulling {reference} took over {timeout_seconds:g} s")

        await self._calls.call(f"pull {reference}", pull)

    async def tag(self, reference: str, name: str) -> None:
        """Give an image another name, `repository` or `repository:tag`."""
        repository, _, tag = name.rpartition(":")
        if not repository or "/" in tag:
            repository, tag = name, "latest"
        await self._calls.call(f"name {name}", lambda api: api.tag(reference, repository, tag=tag))

    async def import_image(self, archive: bytes, repository: str, tag: str) -> None:
        """Make an image of an uncompressed tar of its root."""

        def load(api: Api) -> None:
            api.import_image_from_data(archive, repository=repository, tag=tag)

        await self._calls.call(f"import {repository}:{tag}", load)

    async def create(
        self, image_id: str, name: str, config: Mapping[str, Any], *, archive: bytes | None = None
    ) -> None:
        """Create and start a container. If this raises, `name` may exist: remove it.

        `archive` is a tar that is unpacked at its root before it starts.

        Raises `ProviderUnavailable` if the engine has no such image (any more).
        """

        def create(api: Api) -> None:
            fields = dict(config)
            host_config = api.create_host_config(**fields.pop("host_config"))
            try:
                made = api.create_container(image_id, name=name, host_config=host_config, **fields)
            except docker.errors.ImageNotFound as exc:
                raise ProviderUnavailable(f"the engine has no image {image_id} any more") from exc
            if archive is not None:
                api.put_archive(str(made["Id"]), "/", archive)
            api.start(str(made["Id"]))

        async with self._creations:
            await self._calls.call(f"start a container of {image_id}", create)

    async def remove(self, name: str) -> bool:
        """Kill and remove a container and its volumes; False if there is none of that name."""

        def remove(api: Api) -> bool:
            try:
                api.remove_container(name, v=True, force=True)
            except docker.errors.NotFound:
                return False
            except docker.errors.APIError as exc:
                # 409: the engine itself is removing it, since its process has just ended.
                if exc.status_code != 409:
                    raise
                return _gone(api, name, within_seconds=self._calls.timeout_seconds)
            return True

        return await self._calls.call(f"remove the container {name}", remove)

    async def running(self, name: str) -> bool:
        """Whether the container exists and its process lives."""

        def running(api: Api) -> bool:
            try:
                found = api.inspect_container(name)
            except docker.errors.NotFound:
                return False
            return bool(found["State"]["Running"])

        return await self._calls.call(f"look at the container {name}", running)

    async def storage(self, name: str) -> Storage:
        """The process and layers of a running container. Raises `SandboxError` if there is none."""

        def inspect(api: Api) -> Storage:
            found = api.inspect_container(name)
            graph = cast(dict[str, Any], found.get("GraphDriver") or {})
            driver = str(graph.get("Name") or "")
            data = cast(dict[str, Any], graph.get("Data") or {})
            lower = str(data.get("LowerDir") or "")
            return Storage(
                pid=int(found["State"]["Pid"]),
                driver=driver,
                lower=tuple(lower.split(":")) if driver == "overlay2" and lower else (),
            )

        return await self._calls.call(f"look at the container {name}", inspect)

    async def paused(self, name: str) -> bool | None:
        """Whether a container that runs is paused; None if it does not run."""

        def paused(api: Api) -> bool | None:
            try:
                state = api.inspect_container(name)["State"]
            except docker.errors.NotFound:
                return None
            return bool(state["Paused"]) if state["Running"] else None

        return await self._calls.call(f"look at the container {name}", paused)

    async def history(self, name: str, *, since: float, until: float) -> list[Event]:
        """What the engine remembers of a container, also of one that is gone; seconds since 1970."""

        def collect(api: Api) -> list[Event]:
            found = api.events(
                since=int(since), until=int(until) + 1, filters={"container": name}, decode=True
            )
            return [
                Event(
                    action=str(item.get("Action", "")),
                    attributes=cast(
                        dict[str, str], cast(dict[str, Any], item["Actor"]).get("Attributes") or {}
                    ),
                )
                for item in found
            ]

        return await self._calls.call(f"tell the history of the container {name}", collect)

    async def attach(self, name: str, argv: Sequence[str]) -> socket.socket:
        """Run a program in a container as its root; a socket of its stdin and its framed stdout.

        Only for engines that are reached without TLS: what it gives is read on the event loop.
        """

        def attach(api: Api) -> socket.socket:
            try:
                made = api.exec_create(name, argv, stdin=True, stderr=False, user="0:0")
                found = api.exec_start(str(made["Id"]), socket=True)
            except docker.errors.APIError as exc:
                if exc.status_code in (404, 409):  # it is gone, or does not run
                    raise SandboxDied(f"the container {name} is gone") from exc
                raise
            conn = getattr(found, "_sock", found)
            try:
                if isinstance(conn, ssl.SSLSocket):
                    raise ProviderUnavailable("streams to an engine behind TLS are not supported")
                return socket.socket(fileno=os.dup(conn.fileno()))
            finally:
                # The library hands out the connection of a response that it then forgets.
                found._response.close()
                found.close()
                conn.close()

        return await self._calls.call(f"run a program in the container {name}", attach)

    async def containers(self, label: str) -> list[Container]:
        """Every container, running or not, that has a label of that name (or `name=value`)."""

        def collect(api: Api) -> list[Container]:
            return [
                Container(
                    id=str(item["Id"]),
                    name=str((item["Names"] or [""])[0]).lstrip("/"),
                    running=item["State"] == "running",
                    labels=cast(dict[str, str], item["Labels"] or {}),
                )
                for item in api.containers(all=True, filters={"label": [label]})
            ]

        return await self._calls.call("list containers", collect)

    async def apart(self, doing: str, work: Callable[[Any], Result]) -> Result:
        """`work` in a thread of its own with a docker-py client of its own, for what takes long.

        No bound is set here. Raises what the other calls do.
        """
        return await self._calls.apart(doing, work)

    async def close(self) -> None:
        """End the threads, each after the call it is in, and the connections."""
        await self._calls.close()


def _gone(api: Api, name: str, *, within_seconds: float) -> bool:
    """Wait, in a worker thread, for a removal that is under way."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        try:
            api.inspect_container(name)
        except docker.errors.NotFound:
            return True
        time.sleep(0.02)
    raise SandboxError(f"the engine is still removing {name} after {within_seconds:g} s")
