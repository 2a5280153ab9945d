"""One docker-py client, off the event loop: every call in a thread, bounded, and its errors translated.

This is the one place that knows docker-py's client and its errors (and `builds`, for what goes on for
minutes): an engine that cannot be reached is `ProviderAway`, a request that it refuses is
`SandboxError` with its own words.

A thread cannot be interrupted, so a cancelled call first ends (bounded by the client's time-out) and then
raises `CancelledError`: what it made is there by then, and can be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, cast

import docker
import docker.errors
import requests.exceptions

from rock.errors import ProviderAway, ProviderUnavailable, SandboxError
from rock.sandbox.docker.engine_socket import use_socket
from rock.sandbox.ending import to_the_end

Result = TypeVar("Result")

REMEDY = (
    "start an engine (scripts/start-docker.sh on Debian, else your system's docker service), "
    "join its group (docker) if permission is denied, or set DOCKER_HOST to one that this user may reach"
)


DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
OLDEST_API = "1.41"


class Api(Protocol):
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


class EngineCalls:
    """Calls to the engine at `address`, at most `at_once` of them; each bounded by `timeout_seconds`."""

    def __init__(self, address: str, *, timeout_seconds: float, at_once: int) -> None:
        self.address = address
        self.timeout_seconds = timeout_seconds
        self._pool_size = at_once
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="rock-engine")
        self._client: Api | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def call(
        self,
        doing: str,
        work: Callable[[Api], Result],
        pool: ThreadPoolExecutor | None = None,
    ) -> Result:
        """`work` with the client, in a thread. `doing` completes "the engine could not …".

        Raises `ProviderAway`, `ProviderUnavailable` for an engine that is too old or none,
        `SandboxError`.
        """
        try:
            client = await self.client()
            return await self._run(lambda: work(client), pool)
        except docker.errors.APIError as exc:
            words = exc.explanation or str(exc)
            raise SandboxError(f"the engine could not {doing}: {words}") from exc
        except requests.exceptions.Timeout as exc:
            seconds = f"{self.timeout_seconds:g} s"
            raise SandboxError(f"the engine did not {doing} within {seconds}") from exc
        except (docker.errors.DockerException, requests.exceptions.RequestException) as exc:
            raise self._unreachable(exc) from exc

    async def apart(self, doing: str, work: Callable[[Any], Result]) -> Result:
        """`work` in a thread of its own with a docker-py client of its own, for what takes long.

        No bound is set here. Raises what the other calls do.
        """

        def run(api: Api) -> Result:
            client = self._open(api.api_version)
            try:
                return work(client)
            finally:
                client.close()

        with ThreadPoolExecutor(1, thread_name_prefix="rock-engine-apart") as pool:
            return await self.call(doing, run, pool)

    async def close(self) -> None:
        """End the threads, each after the call it is in, and the connections."""
        self._closed = True
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    async def client(self) -> Api:
        """The client, connected: it speaks the version of the engine."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._run(self._connect)
            return self._client

    def _connect(self) -> Api:
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

    def _open(self, version: str) -> Api:
        made = docker.APIClient(
            base_url=self.address,
            version=version,
            timeout=cast(int, self.timeout_seconds),
            max_pool_size=self._pool_size,
        )
        if self.address.startswith("unix://"):
            use_socket(made, self.address.removeprefix("unix://"), self._pool_size)
        return cast(Api, made)

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


async def _ended(job: Future[Any]) -> None:
    """Wait for a job of the pool, whatever becomes of it."""
    await asyncio.wait([asyncio.wrap_future(job)])


def root_cause(exc: BaseException) -> str:
    """The innermost reason: the outer ones only repeat that a connection failed."""
    found: BaseException = exc
    while (inner := found.__cause__ or found.__context__) is not None:
        found = inner
    return str(found) or type(found).__name__


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
