"""The way out of a sandbox, where there is one: a proxy of the host, on a port inside.

A sandbox has no network but its own loopback. What a policy allows goes through this proxy, which the
harness serves on a listening socket inside (127.0.0.1:3128; `http_proxy` and `https_proxy` name it): an
HTTP request, or a tunnel by CONNECT. There is no other way, so nothing depends on a program's good will,
and the policy can be changed at any moment: connections that it no longer allows are cut.

Names are resolved on the host. Addresses of this machine, of private networks and of the cloud's
metadata are never connected to, whatever name leads to them, unless the policy lists that very address.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from rock.sandbox.ending import to_the_end
from rock.sandbox.network import Network, NetworkMode

log = logging.getLogger(__name__)

PORT = 3128
CONNECT_SECONDS = 15.0
IDLE_SECONDS = 300.0
HEAD_SECONDS = 30.0
MAX_HEAD_BYTES = 64 * 1024
MAX_CONNECTIONS = 256
_CHUNK_BYTES = 64 * 1024


class _Refused(Exception):
    """A request that is answered with a status and a reason instead."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Request:
    """Where a client wants to go, and what is to be sent there first."""

    host: str
    port: int
    first: bytes | None
    """None for a tunnel."""


class Egress:
    """One sandbox's proxy. `close` is safe to call twice; the policy may change at any time."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.allowed = 0
        self.refused = 0
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], tuple[str, int] | None] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Take over `listener`; one served before is given up (it was another network's)."""
        await self._give_up()
        self._server = await asyncio.start_server(self._client, sock=listener, limit=MAX_HEAD_BYTES)

    def change(self, network: Network) -> None:
        """From now on `network` is what is allowed; what it no longer allows is cut."""
        self.network = network
        for task, where in self._open.items():
            if where is None or not network.allows(*where):
                task.cancel()

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment by which programs find the proxy; none while nothing is allowed."""
        if self.network.mode not in (NetworkMode.ALLOWLIST, NetworkMode.FULL):
            return {}
        url = f"http://127.0.0.1:{PORT}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        local = "localhost,127.0.0.1,::1"
        return {**dict.fromkeys(names, url), "no_proxy": local, "NO_PROXY": local}

    async def close(self) -> None:
        await to_the_end(self._give_up())

    async def _give_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        try:
            if len(self._open) > MAX_CONNECTIONS:
                raise _Refused("503 Too many connections", "too many connections of this sandbox")
            async with asyncio.timeout(HEAD_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            request = _parse(head)
            self._check(request)
            self._open[task] = (request.host, request.port)
            await self._pass(request, reader, writer)
        except _Refused as exc:
            self.refused += 1
            log.info("refused: %s", exc)
            body = f"{exc}\n".encode()
            writer.write(
                f"HTTP/1.1 {exc.status}\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(HEAD_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client's own affair
        finally:
            del self._open[task]
            writer.close()

    def _check(self, request: _Request) -> None:
        if not self.network.allows(request.host, request.port):
            where = f"{request.host}:{request.port}"
            raise _Refused("403 Not allowed", f"{where} is not allowed by this sandbox's network")

    async def _pass(
        self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await self._connect(request)
        self.allowed += 1
        try:
            if request.first is None:
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                far_writer.write(request.first)
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, far_writer))
                both.create_task(_copy(far_reader, writer))
        except* (OSError, TimeoutError):
            pass  # one side has gone; so does the other
        finally:
            far_writer.close()

    async def _connect(
        self, request: _Request
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                found = await loop.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
                for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                    if not self._may_connect(address, request):
                        continue
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection(address, request.port)
        except (OSError, TimeoutError, UnicodeError) as exc:
            raise _Refused("502 No connection", f"{request.host}: {exc}") from exc
        raise _Refused("502 No connection", f"{request.host} has no address that may be reached")

    def _may_connect(self, address: str, request: _Request) -> bool:
        """Only public addresses; others if the policy lists the address itself."""
        if ipaddress.ip_address(address.partition("%")[0]).is_global:
            return True
        return address == request.host and self.network.lists(address, request.port)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while True:
        async with asyncio.timeout(IDLE_SECONDS):
            data = await source.read(_CHUNK_BYTES)
            if not data:
                break
            target.write(data)
            await target.drain()
    if target.can_write_eof():
        target.write_eof()


def _parse(head: bytes) -> _Request:
    """The first request of a connection; the answer ends it, so there is no second one."""
    lines = head[:-4].split(b"\r\n")
    try:
        method, target, version = lines[0].decode("ascii").split(" ")
    except (UnicodeDecodeError, ValueError) as exc:
        raise _Refused("400 Bad request", "not a request to a proxy") from exc
    if method == "CONNECT":
        host, _, port = target.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise _Refused("400 Bad request", "CONNECT: expected host:port")
        return _Request(_plain(host), int(port), None)
    try:
        url = urlsplit(target)
        port_number = url.port or 80
    except ValueError as exc:
        raise _Refused("400 Bad request", "not a URL") from exc
    if url.scheme != "http" or not url.hostname:
        raise _Refused("400 Bad request", "expected http://host/path, or CONNECT")
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    dropped = (b"proxy-connection:", b"proxy-authorization:", b"connection:", b"host:")
    kept = [line for line in lines[1:] if not line.lower().startswith(dropped)]
    authority = url.netloc.rpartition("@")[2].encode()
    start = f"{method} {path} {version}".encode()
    first = b"\r\n".join((start, b"Host: " + authority, b"Connection: close", *kept, b"", b""))
    return _Request(_plain(url.hostname), port_number, first)


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()
