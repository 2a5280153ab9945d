"""A tap on the wire between a client and ModelService: it records, and breaks what a test asks it to.

Bytes go through as they are, so what it recorded is what the client sent. Requests are numbered from
0 in the order they came; only those for a completion (POST) count, since clients probe too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

MAX_BODY_BYTES = 64 << 20
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True)
class Sent:
    """One request as it left the client."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at_seconds: float
    """On the event loop's clock."""


@dataclass(frozen=True)
class Refuse:
    """The service never hears of it: this status, with an error body of the OpenAI family."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = (
        b'{"error":{"message":"try later","type":"server_error","param":null,"code":null}}'
    )
    content_type: str = "application/json"


@dataclass(frozen=True)
class Reset:
    """The connection is reset once the service has the request: `after_bytes` of its reply's body
    get through first; with 0 not even its status does."""

    after_bytes: int = 0


@dataclass(frozen=True)
class HangUp:
    """Both sides lose the connection while the client waits, once the test sets `Tap.hang_up`."""


Fault = Refuse | Reset | HangUp | None
Faults = Callable[[int], Fault]


def no_fault(number: int) -> Fault:
    return None


class Tap:
    """Between one listening socket and one upstream."""

    def __init__(self, upstream: str, faults: Faults = no_fault) -> None:
        self.sent: list[Sent] = []
        """Requests for a completion."""
        self.probes: list[Sent] = []
        """All others."""
        self.statuses: list[int] = []
        """What the client saw for each of `sent`; 0 for a reset before the status."""
        self.hang_up = asyncio.Event()
        self._upstream = upstream.rstrip("/")
        self._faults = faults

    @asynccontextmanager
    async def on(self, listener: socket.socket) -> AsyncGenerator[None, None]:
        """Serve the socket, which is closed at the end."""
        unbounded = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(auto_decompress=False, timeout=unbounded) as client:

            async def handle(request: web.BaseRequest) -> web.StreamResponse:
                return await self._pass(client, request)

            server = web.Server(handle, handler_cancellation=True, auto_decompress=False)
            runner = web.ServerRunner(server, shutdown_timeout=1.0)
            try:
                await runner.setup()
                await web.SockSite(runner, listener).start()
                yield
            finally:
                await runner.cleanup()
                listener.close()

    async def _pass(
        self, client: aiohttp.ClientSession, request: web.BaseRequest
    ) -> web.StreamResponse:
        body = await request.content.read()
        now = asyncio.get_running_loop().time()
        sent = Sent(request.method, request.raw_path, dict(request.headers), body, now)
        if request.method != "POST":
            self.probes.append(sent)
            return await self._forward(client, request, sent, None, -1)
        number = len(self.sent)
        self.sent.append(sent)
        self.statuses.append(0)
        fault = self._faults(number)
        if isinstance(fault, Refuse):
            self.statuses[number] = fault.status
            return web.Response(
                status=fault.status,
                body=fault.body,
                headers=dict(fault.headers),
                content_type=fault.content_type,
            )
        if isinstance(fault, HangUp):
            waiting = asyncio.ensure_future(self._forward(client, request, sent, None, number))
            await self.hang_up.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return self._reset(request)
        return await self._forward(client, request, sent, fault, number)

    async def _forward(
        self,
        client: aiohttp.ClientSession,
        request: web.BaseRequest,
        sent: Sent,
        fault: Reset | None,
        number: int,
    ) -> web.StreamResponse:
        headers = {k: v for k, v in sent.headers.items() if k.lower() not in _HOP_BY_HOP}
        try:
            async with client.request(
                sent.method, self._upstream + sent.path, headers=headers, data=sent.body or None
            ) as reply:
                if fault is not None and not fault.after_bytes:
                    await reply.read()
                    return self._reset(request)
                return await self._relay(request, reply, fault, number)
        except aiohttp.ClientError:  # upstream broke off, so the client's connection does too
            return self._reset(request)

    async def _relay(
        self,
        request: web.BaseRequest,
        reply: aiohttp.ClientResponse,
        fault: Reset | None,
        number: int,
    ) -> web.StreamResponse:
        kept = {k: v for k, v in reply.headers.items() if k.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=reply.status, headers=kept)
        if number >= 0:
            self.statuses[number] = reply.status
        await response.prepare(request)
        left = fault.after_bytes if fault else None
        async for chunk in reply.content.iter_any():
            await response.write(chunk if left is None else chunk[:left])
            if left is not None:
                left -= len(chunk)
                if left <= 0:
                    return self._reset(request)
        await response.write_eof()
        return response

    def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
