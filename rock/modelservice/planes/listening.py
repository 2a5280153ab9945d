"""A plane on a listening socket: who is let in, who is noticed to be gone, and how it ends.

Every wait for the other side has a bound: a first request, a head once it has begun and a body must each
arrive within `body_seconds`; a peer that
acknowledges or takes nothing for `peer_timeout_seconds` is gone (the kernel says so, for a half-open
connection and for a reader that stopped reading alike). How HTTP is spoken is in `connection`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rock.errors import ConfigError
from rock.modelservice.planes.adapter import Adapter, Bounds, Handle
from rock.modelservice.planes.connection import Connection

__all__ = ["Adapter", "Bounds", "Handle", "bind", "listening", "url_of"]

KEEPALIVE_TIMEOUT_SECONDS = 3630.0
"""Above that of any client: the one who closes an idle connection should be the client."""
SHUTDOWN_SECONDS = 1.0
"""For replies being written when the service stops; a waiting agent comes back to its call."""
SWEEP_SECONDS = 10.0
BACKLOG = 4096
_PROBES = 3


@asynccontextmanager
async def listening(listener: socket.socket, adapter: Adapter) -> AsyncGenerator[None, None]:
    """Serve HTTP on a bound socket, which is closed at the end."""
    peers: set[Connection] = set()
    server: asyncio.Server | None = None
    sweeping: asyncio.Task[None] | None = None
    try:
        _notice_silence(listener, adapter.bounds.peer_timeout_seconds)
        server = await _serve(listener, adapter, peers)
        pause = min(SWEEP_SECONDS, adapter.bounds.body_seconds)
        sweeping = asyncio.create_task(_sweep(peers, pause))
        yield
    finally:
        if sweeping is not None:
            sweeping.cancel()
        if server is not None:
            server.close()
        listener.close()
        await _see_off(peers)


async def _serve(
    listener: socket.socket, adapter: Adapter, peers: set[Connection]
) -> asyncio.Server:
    loop = asyncio.get_running_loop()

    def connect() -> Connection:
        return Connection(adapter, peers)

    if listener.family == socket.AF_UNIX:
        return await loop.create_unix_server(connect, sock=listener, backlog=BACKLOG)
    return await loop.create_server(connect, sock=listener, backlog=BACKLOG)


async def _sweep(peers: set[Connection], pause_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause_seconds)
        for peer in list(peers):
            peer.sweep(loop.time(), keep_seconds=KEEPALIVE_TIMEOUT_SECONDS)


async def _see_off(peers: set[Connection]) -> None:
    """Let replies that are being written go out, for a while; end the rest."""
    for peer in list(peers):
        peer.close_if_idle()
    try:
        if peers:
            await asyncio.wait([peer.at_rest() for peer in peers], timeout=SHUTDOWN_SECONDS)
    finally:
        tasks = [peer.task for peer in peers if peer.task is not None]
        for peer in list(peers):
            peer.leave()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in list(peers):
            peer.abort()


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
