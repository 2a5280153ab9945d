"""One connection pool to one control plane: a request, tried again while that may help, and its reply.

Promises: an error reply is raised as the class of `rock.errors` with its code; a connection that
cannot be made or breaks, and a service that says it must be restarted, is tried again for
`retry_seconds` (so a restart passes unnoticed), then ServiceUnavailable or JournalError.
"""

from __future__ import annotations

import io
import logging
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
import tenacity
from msgspec import Struct
from yarl import URL

from rock.config import kind_of
from rock.errors import (
    BadRequest,
    ConfigError,
    JournalError,
    ModelServiceError,
    NotFound,
    ServiceUnavailable,
    error_for,
)
from rock.modelservice import wire

log = logging.getLogger(__name__)
T = TypeVar("T")
SILENT_SECONDS = 3.0
"""A service that is away for longer is spoken of: else a wrong port looks like an idle trainer."""
MAX_PIECE_BYTES = 1 << 18
_BROKEN = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)
"""What a request over a dead or dying connection raises."""
_AWAY = (ServiceUnavailable, JournalError)
"""What a service answers that must be started again, which somebody is expected to do."""


class ControlClient:
    """One connection pool to one control plane. Use as `async with`."""

    def __init__(self, url: str, key: str, *, retry_seconds: float = 30.0) -> None:
        """Raises `ConfigError` for what is no address, or no key."""
        self._url = _checked_url(url)
        self._headers = {"Authorization": f"Bearer {_checked_key(key)}"}
        self._retry_seconds = retry_seconds
        self._said_away = False
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self._headers, connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def shards(self) -> list[int]:
        """Ports of all shards' control planes, this one's among them; none if it is the only one."""
        try:
            return (await self._call("GET", "/trainer/v1/shards", wire.ShardPorts)).control_ports
        except NotFound:  # a service of before there were shards
            return []

    async def _call(
        self,
        method: str,
        path: str,
        reply: type[T],
        body: Struct | None = None,
        *,
        wait_seconds: float = 0.0,
    ) -> T:
        """One request, its reply decoded as `reply`. The bound is `wait_seconds` and half a minute."""
        data = None if body is None else _encode(body)
        bound = aiohttp.ClientTimeout(total=wait_seconds + 30.0, connect=10.0)
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((*_BROKEN, *_AWAY)),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0)
            + tenacity.wait_random(0, 0.05),
            stop=tenacity.stop_after_delay(self._retry_seconds),
            before_sleep=self._say_away,
            retry_error_callback=self._unreachable,
        ):
            with attempt:
                status, raw = await self._once(method, path, data, bound)
                decoded = _decode(status, raw, reply)
                self._say_back()
                return decoded
        raise ServiceUnavailable(f"{self._url}{path}: no attempt was made")

    def _say_away(self, state: tenacity.RetryCallState) -> None:
        """Once, whatever number of requests wait for it."""
        waited = state.seconds_since_start or 0.0
        if self._said_away or waited < SILENT_SECONDS:
            return
        self._said_away = True
        log.warning(
            "ModelService at %s does not answer (%s); trying for %.0f s",
            self._url,
            _cause_of(state),
            self._retry_seconds,
        )

    def _say_back(self) -> None:
        if self._said_away:
            self._said_away = False
            log.warning("ModelService at %s answers again", self._url)

    def _unreachable(self, state: tenacity.RetryCallState) -> Any:
        cause = state.outcome.exception() if state.outcome else None
        if isinstance(cause, JournalError):
            raise cause
        raise ServiceUnavailable(
            f"ModelService at {self._url} does not answer ({_cause_of(state)})"
        ) from cause

    async def _once(
        self, method: str, path: str, data: bytes | None, bound: aiohttp.ClientTimeout
    ) -> tuple[int, bytes]:
        if self._http is None:
            raise ServiceUnavailable("the client is closed; use it inside `async with`")
        # As a file a large body goes out in pieces; as bytes, aiohttp warns that it holds the loop up.
        body = io.BytesIO(data) if data is not None and len(data) > MAX_PIECE_BYTES else data
        async with self._http.request(
            method, URL(self._url + path, encoded=True), data=body, timeout=bound
        ) as response:
            return response.status, await response.read()


def _cause_of(state: tenacity.RetryCallState) -> str:
    cause = state.outcome.exception() if state.outcome else None
    return f"{type(cause).__name__}: {cause}"


def _checked_url(url: str) -> str:
    try:
        parts = URL(url)
    except ValueError as exc:
        raise ConfigError(f"url: expected http://HOST:PORT, got {kind_of(url)}: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.host:
        raise ConfigError(f"url: expected http://HOST:PORT, got {kind_of(url)}")
    return url.rstrip("/")


def _checked_key(key: str) -> str:
    if not key:
        raise ConfigError("key: expected one of the service's keys.json, got an empty string")
    if not key.isprintable():  # not shown: it may be a good key with a stray newline
        raise ConfigError("key: expected printable text; is there a newline in it?")
    return key


def _encode(body: Struct) -> bytes:
    """Raises `BadRequest` for what no JSON can hold."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as exc:
        raise BadRequest(f"text that is not valid Unicode: {exc.reason}") from exc
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadRequest(f"{type(body).__name__}: cannot be sent as JSON: {exc}") from exc


def _decode(status: int, raw: bytes, reply: type[T]) -> T:
    """The reply, or the error it stands for."""
    if status < 400:
        try:
            return msgspec.json.decode(raw, type=reply)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise ModelServiceError(f"this is no reply of a ModelService: {exc}") from exc
    try:
        error = msgspec.json.decode(raw, type=wire.ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ModelServiceError(f"HTTP {status} without an error body: {raw[:200]!r}") from None
    raise error_for(error.code, error.message, param=error.param)
