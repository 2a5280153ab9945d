"""Bytes both ways between a client's WebSocket and the tunnel to a sandbox's helper."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from aiohttp import WSMsgType, web

CHUNK_BYTES = 256 * 1024


async def relayed(client: web.WebSocketResponse, tunnel: socket.socket) -> None:
    """Until one side ends; each is read at the pace at which the other takes. Closes `client` only."""
    loop = asyncio.get_running_loop()

    async def out() -> None:
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(tunnel, CHUNK_BYTES):
                await client.send_bytes(data)
        await client.close()

    sending = asyncio.ensure_future(out())
    try:
        async for message in client:
            if message.type is WSMsgType.BINARY:
                await loop.sock_sendall(tunnel, message.data)
    except OSError:
        pass  # the sandbox has gone: the client sees the end of the stream
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
