"""A Docker engine, off the event loop: the few calls that sandboxes need, typed and bounded.

docker-py is synchronous, so every call runs in a pool of threads and is bounded by the client's
time-out. This is the one place that knows docker-py and its errors (and `builds`, for what goes on for
minutes): an engine that cannot be reached is `ProviderAway`, a request that it refuses is
`SandboxError` with its own words.

A thread cannot be interrupted, so a cancelled call first ends (bounded by the same time-out) and then
raises `CancelledError`: what it made is there by then, and can be removed.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

import docker
import docker.errors
import requests.exceptions

from rock.errors import ProviderAway, ProviderUnavailable, SandboxDied, SandboxError
from rock.sandbox.docker.engine_socket import use_socket
from rock.sandbox.ending import to_the_end

Result = TypeVar("Result")

REMEDY = (
    "start an engine (scripts/start-docker.sh on Debian, else your system's docker service), "
    "join its group (docker) if permission is denied, or set DOCKER_HOST to one that this user may reach"
)


DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
OLDEST_API = "1.41"


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


class _Api(Protocol):
    """The part of docker-py's client that is used here; its own types leave answers unknown."""

    api_version: str

    def version(self, api_version: bool = True) -> dict[str, Any]: ...
    def tag(self, image: str, repository: str, *, tag: str) -> bool: ...
    def inspect_image(self, image: str) -> dict[str, Any]: ...
    def pull(self, repository: str, *, stream: bool, decode: bool) -> Iterator[dict[str, Any]]: ...
    def import_image_from_data(self, data: bytes, repository: str, tag: str) -> str: ...
    def create_host_config(self, **fields: Any) -> dict[str, Any]: ...
    def create_container(self, image: str, **fields: Any) -> dict[str, Any]: ...
    def start(self, container: str) -> None: ...
    def remove_container(self, container: str, *, v: bool, force: bool) -> None: ...
    def inspect_container(self, container: str) -> dict[str, Any]: ...
    def put_archive(self, container: str, path: str, data: bytes) -> bool: ...
    def exec_create(
        self, container: str, cmd: Sequence[str], *, stdin: bool, stderr: bool, user: str
    ) -> dict[str, Any]: ...
    def exec_start(self, exec_id: str, *, socket: bool) -> Any: ...
    def events(
        self, *, since: int, until: int, filters: dict[str, str], decode: bool
    ) -> Iterator[dict[str, Any]]: ...
    def containers(self, *, all: bool, filters: dict[str, list[str]]) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


class Engine:
    """Calls to one engine. `close` frees its threads and connections; safe to call twice."""

    def __init__(self, host: str | None = None, *, timeout_seconds: float = 60.0) -> None:
        cores = os.cpu_count() or 1
        # Creation is CPU-bound in the engine: more at once only makes each one slower. The other
        # threads are for short calls, so that a removal does not wait behind a queue of creations.
        self._creations = asyncio.Semaphore(2 * cores)
        self._pool_size = 2 * cores + 4
        self._pool = ThreadPoolExecutor(self._pool_size, thread_name_prefix="rock-engine")
        self.address = host or DEFAULT_ADDRESS
        self._timeout_seconds = timeout_seconds
        self._client: _Api | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def info(self) -> EngineInfo:
        """Ask the engine who it is. Raises `ProviderUnavailable` with the remedy."""
        version = await self._call("ask for the version", lambda api: api.version())
        client = await self._connected()
        return EngineInfo(
            version=str(version.get("Version", "unknown")),
            api_version=client.api_version,
            address=self.address,
        )

    async def image(self, reference: str) -> Image | None:
        """The image of that name or id, or None if the engine does not have it."""

        def inspect(api: _Api) -> Image | None:
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

        return await self._call(f"look up the image {reference}", inspect)

    async def pull(self, reference: str, *, timeout_seconds: float) -> None:
        """Fetch an image; each silence of the registry and the whole pull are bounded."""

        def pull(api: _Api) -> None:
            deadline = time.monotonic() + timeout_seconds
            for event in api.pull(reference, stream=True, decode=True):
                if "error" in event:
                    raise SandboxError(f"the engine could not pull {reference}: {event['error']}")
                if time.monotonic() > deadline:
                    raise SandboxError(f"pulling {reference} took over {timeout_seconds:g} s")

        await self._call(f"pull {reference}", pull)

    async def tag(self, reference: str, name: str) -> None:
        """Give an image another name, `repository` or `repository:tag`."""
        repository, _, tag = name.rpartition(":")
        if not repository or "/" in tag:
            repository, tag = name, "latest"
        await self._call(f"name {name}", lambda api: api.tag(reference, repository, tag=tag))

    async def import_image(self, archive: bytes, repository: str, tag: str) -> None:
        """Make an image of an uncompressed tar of its root."""

        def load(api: _Api) -> None:
            api.import_image_from_data(archive, repository=repository, tag=tag)

        await self._call(f"import {repository}:{tag}", load)

    async def create(
        self, image_id: str, name: str, config: Mapping[str, Any], *, archive: bytes | None = None
    ) -> None:
        """Create and start a container. If this raises, `name` may exist: remove it.

        `archive` is a tar that is unpacked at its root before it starts.

        Raises `ProviderUnavailable` if the engine has no such image (any more).
        """

        def create(api: _Api) -> None:
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
            await self._call(f"start a container of {image_id}", create)

    async def remove(self, name: str) -> bool:
        """Kill and remove a container and its volumes; False if there is none of that name."""

        def remove(api: _Api) -> bool:
            try:
                api.remove_container(name, v=True, force=True)
            except docker.errors.NotFound:
                return False
            except docker.errors.APIError as exc:
                # 409: the engine itself is removing it, since its process has just ended.
                if exc.status_code != 409:
                    raise
                return _gone(api, name, within_seconds=self._timeout_seconds)
            return True

        return await self._call(f"remove the container {name}", remove)

    async def running(self, name: str) -> bool:
        """Whether the container exists and its process lives."""

        def running(api: _Api) -> bool:
            try:
                found = api.inspect_container(name)
            except docker.errors.NotFound:
                return False
            return bool(found["State"]["Running"])

        return await self._call(f"look at the container {name}", running)

    async def storage(self, name: str) -> Storage:
        """The process and layers of a running container. Raises `SandboxError` if there is none."""

        def inspect(api: _Api) -> Storage:
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

        return await self._call(f"look at the container {name}", inspect)

    async def paused(self, name: str) -> bool | None:
        """Whether a container that runs is paused; None if it does not run."""

        def paused(api: _Api) -> bool | None:
            try:
                state = api.inspect_container(name)["State"]
            except docker.errors.NotFound:
                return None
            return bool(state["Paused"]) if state["Running"] else None

        return await self._call(f"look at the container {name}", paused)

    async def history(self, name: str, *, since: float, until: float) -> list[Event]:
        """What the engine remembers of a container, also of one that is gone; seconds since 1970."""

        def collect(api: _Api) -> list[Event]:
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

        return await self._call(f"tell the history of the container {name}", collect)

    async def attach(self, name: str, argv: Sequence[str]) -> socket.socket:
        """Run a program in a container as its root; a socket of its stdin and its framed stdout.

        Only for engines that are reached without TLS: what it gives is read on the event loop.
        """

        def attach(api: _Api) -> socket.socket:
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

        return await self._call(f"run a program in the container {name}", attach)

    async def containers(self, label: str) -> list[Container]:
        """Every container, running or not, that has a label of that name (or `name=value`)."""

        def collect(api: _Api) -> list[Container]:
            return [
                Container(
                    id=str(item["Id"]),
                    name=str((item["Names"] or [""])[0]).lstrip("/"),
                    running=item["State"] == "running",
                    labels=cast(dict[str, str], item["Labels"] or {}),
                )
                for item in api.containers(all=True, filters={"label": [label]})
            ]

        return await self._call("list containers", collect)

    async def apart(self, doing: str, work: Callable[[Any], Result]) -> Result:
        """`work` in a thread of its own with a docker-py client of its own, for what takes long.

        No bound is set here. Raises what the other calls do.
        """

        def run(api: _Api) -> Result:
            client = self._open(api.api_version)
            try:
                return work(client)
            finally:
                client.close()

        with ThreadPoolExecutor(1, thread_name_prefix="rock-engine-apart") as pool:
            return await self._call(doing, run, pool)

    async def close(self) -> None:
        """End the threads, each after the call it is in, and the connections."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _connected(self) -> _Api:
        async with self._connecting:
            if self._client is None:
                self._client = await self._run(self._connect)
            return self._client

    def _connect(self) -> _Api:
        # docker-py can find the version by itself, but a client that fails at it is never closed.
        first = self._open(OLDEST_API)
        try:
            version = str(first.version(api_version=False)["ApiVersion"])
        except docker.errors.APIError as exc:
            raise ProviderUnavailable(
                f"what answers at {self.address} is no Docker engine"
            ) from exc
        finally:
            first.close()
        if _numbers(version) < _numbers(OLDEST_API):
            raise ProviderUnavailable(
                f"the engine speaks API {version}; {OLDEST_API} (Docker 20.10) or newer is needed"
            )
        return self._open(version)

    def _unreachable(self, cause: BaseException) -> ProviderAway:
        return ProviderAway(
            f"no Docker engine answers at {self.address} ({root_cause(cause)}); {REMEDY}"
        )

    def _open(self, version: str) -> _Api:
        made = docker.APIClient(
            base_url=self.address,
            version=version,
            timeout=cast(int, self._timeout_seconds),
            max_pool_size=self._pool_size,
        )
        if self.address.startswith("unix://"):
            use_socket(made, self.address.removeprefix("unix://"), self._pool_size)
        return cast(_Api, made)

    async def _run(
        self, work: Callable[[], Result], pool: ThreadPoolExecutor | None = None
    ) -> Result:
        if self._closed:
            raise SandboxError("this engine client is closed")
        job = (pool or self._pool).submit(work)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancelled():
                await to_the_end(_ended(job))
            raise

    async def _call(
        self,
        doing: str,
        work: Callable[[_Api], Result],
        pool: ThreadPoolExecutor | None = None,
    ) -> Result:
        try:
            client = await self._connected()
            return await self._run(lambda: work(client), pool)
        except docker.errors.APIError as exc:
            words = exc.explanation or str(exc)
            raise SandboxError(f"the engine could not {doing}: {words}") from exc
        except requests.exceptions.Timeout as exc:
            seconds = f"{self._timeout_seconds:g} s"
            raise SandboxError(f"the engine did not {doing} within {seconds}") from exc
        except (docker.errors.DockerException, requests.exceptions.RequestException) as exc:
            raise self._unreachable(exc) from exc


async def _ended(job: Future[Any]) -> None:
    """Wait for a job of the pool, whatever becomes of it."""
    await asyncio.wait([asyncio.wrap_future(job)])


def _gone(api: _Api, name: str, *, within_seconds: float) -> bool:
    """Wait, in a worker thread, for a removal that is under way."""
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        try:
            api.inspect_container(name)
        except docker.errors.NotFound:
            return True
        time.sleep(0.02)
    raise SandboxError(f"the engine is still removing {name} after {within_seconds:g} s")


def root_cause(exc: BaseException) -> str:
    """The innermost reason: the outer ones only repeat that a connection failed."""
    found: BaseException = exc
    while (inner := found.__cause__ or found.__context__) is not None:
        found = inner
    return str(found) or type(found).__name__


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
