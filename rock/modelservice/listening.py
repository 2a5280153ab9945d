"""HTTP on a listening socket: the adapter between aiohttp and a plane, and the edge's own bounds.

What a plane never sees is decided here: a request that is no HTTP, a header that is no text, a body
that does not come, a peer that takes nothing. Each is answered in the plane's own shape where an
answer is possible, and none is logged with what was in it.

Every wait for the other side has a bound: a body must arrive within `body_seconds`; a peer that
acknowledges or takes nothing for `peer_timeout_seconds` is gone (the kernel says so, for a half-open
connection and for a reader that stopped reading alike).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import ClientError, web

from rock.errors import (
    BadRequest,
    BodyTimeout,
    ConfigError,
    PayloadTooLarge,
    RockError,
)
from rock.modelservice.plane import EventStream, Reply, Request
from rock.modelservice.settings import ServiceConfig

log = logging.getLogger(__name__)

KEEPALIVE_TIMEOUT_SECONDS = 3630.0
"""Above that of any client: the one who closes an idle connection should be the client."""
SHUTDOWN_SECONDS = 1.0
"""For replies being written when the service stops; a waiting agent comes back to its call."""
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
NO_ACCESS_LOG: dict[str, Any] = {"access_log": None}
"""What aiohttp documents and does not declare."""
_PROBES = 3

Handle: TypeAlias = Callable[[Request], Coroutine[Any, Any, Reply | EventStream]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a listener takes from a peer; `settings` explains each."""

    max_body_bytes: int
    body_seconds: float = 60.0
    peer_timeout_seconds: float = 60.0

    @classmethod
    def of(cls, config: ServiceConfig) -> Bounds:
        return cls(
            max_body_bytes=config.max_body_bytes,
            body_seconds=config.body_seconds,
            peer_timeout_seconds=config.peer_timeout_seconds,
        )


class Adapter:
    """One plane as an aiohttp handler."""

    def __init__(
        self,
        handle: Handle,
        refusal: Callable[[RockError], Reply],
        bounds: Bounds,
    ) -> None:
        self._handle = handle
        self._refusal = refusal
        self.bounds = bounds

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        reply = await self._answer(request)
        try:
            response = await _write(request, reply)
        except BaseException:  # the other side is gone, or this handler is being cancelled
            reply.lost()
            raise
        reply.sent()
        return response

    def refuse(self, exc: RockError) -> web.Response:
        """The reply to what never became a request. The connection ends with it."""
        response = _response(self._refusal(exc))
        response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> Reply | EventStream:
        asked = Request(
            method=request.method,
            path=request.rel_url.raw_path,
            headers=request.headers,
            read=lambda: self._read(request),
        )
        try:
            _check_headers(request)
            return await self._handle(asked)
        except RockError as exc:
            return self._refusal(exc)
        except Exception:
            log.exception("unexpected error in a handler")
            return self._refusal(RockError("internal error; see the service's log"))

    async def _read(self, request: web.BaseRequest) -> bytes:
        try:
            async with asyncio.timeout(self.bounds.body_seconds):
                return await read_body(request, self.bounds.max_body_bytes)
        except TimeoutError as exc:
            message = f"the body did not arrive within {self.bounds.body_seconds:g} s"
            raise BodyTimeout(message) from exc


def _check_headers(request: web.BaseRequest) -> None:
    """Raises BadRequest for bytes that are no text: they could be neither stored nor shown."""
    for name, value in request.raw_headers:
        if not value.isascii():
            try:
                value.decode()
            except UnicodeDecodeError as exc:
                shown = name.decode("ascii", "replace")[:100]
                raise BadRequest(f"the header {shown} is not valid UTF-8", param=shown) from exc


async def read_body(request: web.BaseRequest, max_bytes: int) -> bytes:
    """The whole body. Raises PayloadTooLarge before reading more than `max_bytes`."""
    too_large = PayloadTooLarge(f"the body is over the limit of {max_bytes} bytes")
    if (request.content_length or 0) > max_bytes:
        raise too_large
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await request.content.readany():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            chunks.append(chunk)
    except (ClientError, web.RequestPayloadError) as exc:
        raise BadRequest(f"the body broke off or is badly encoded: {exc}") from exc
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _response(reply: Reply) -> web.Response:
    return web.Response(
        status=reply.status,
        body=reply.body,
        headers=reply.headers or None,
        content_type=reply.content_type,
    )


async def _write(request: web.BaseRequest, reply: Reply | EventStream) -> web.StreamResponse:
    """Write all of it here, so that the end of this call means that it was written."""
    if isinstance(reply, Reply):
        response = _response(reply)
        await response.prepare(request)
        await response.write_eof()
        return response
    stream = web.StreamResponse(headers=STREAM_HEADERS)
    stream.content_type = "text/event-stream"
    async with contextlib.aclosing(reply.frames) as frames:
        await stream.prepare(request)
        async for frame in frames:
            await stream.write(frame)
        await stream.write_eof()
    return stream


class _Door(web.RequestHandler):
    """One connection. What goes wrong below the plane is answered in its shape and logged short:
    a parser's message quotes the request, which may hold a key or a prompt."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: Adapter, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEPALIVE_TIMEOUT_SECONDS,
            **NO_ACCESS_LOG,
        )
        self._adapter = adapter

    def log_exception(self, *args: Any, **options: Any) -> None:
        # The rest of a bad body, which the plane has refused already.
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError):
            raise exc  # the other side is gone; nobody reads a reply
        if status < 500:
            log.info("refused what is no HTTP request: %s", type(exc).__name__)
            return self._adapter.refuse(BadRequest(f"this is no HTTP request: {_kind(exc)}"))
        log.error("a connection failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a reply was begun; there is no room for another")
        return self._adapter.refuse(RockError("internal error; see the service's log"))


def _kind(exc: BaseException | None) -> str:
    """A parser's complaint without the bytes it complains about."""
    text = str(getattr(exc, "message", None) or type(exc).__name__)
    return text.partition("\n")[0].partition(": b'")[0].strip(" :")[:200]


class _Server(web.Server):
    """Makes a `_Door` for each connection."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter, handler_cancellation=True)
        self._adapter = adapter

    def __call__(self) -> web.RequestHandler:
        return _Door(self._adapter, self)


@asynccontextmanager
async def listening(listener: socket.socket, adapter: Adapter) -> AsyncGenerator[None, None]:
    """Serve HTTP on a bound socket, which is closed at the end."""
    runner = web.ServerRunner(_Server(adapter), shutdown_timeout=SHUTDOWN_SECONDS)
    try:
        _notice_silence(listener, adapter.bounds.peer_timeout_seconds)
        await runner.setup()
        await web.SockSite(runner, listener, backlog=4096).start()
        yield
    finally:
        await runner.cleanup()
        listener.close()


def _notice_silence(listener: socket.socket, seconds: float) -> None:
    """Accepted connections inherit this: keep-alive probes find a peer that is gone, and data that
    the peer does not take (gone, or no longer reading) is waited for no longer than `seconds`."""
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return
    pause = max(1, round(seconds / (_PROBES + 1)))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, pause),
        (socket.TCP_KEEPINTVL, pause),
        (socket.TCP_KEEPCNT, _PROBES),
        (socket.TCP_USER_TIMEOUT, round(1000 * seconds)),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to an address. Raises ConfigError saying what is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    return listener


def url_of(listener: socket.socket) -> str:
    name: tuple[str, int] = listener.getsockname()[:2]
    host, port = name
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host) or host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
