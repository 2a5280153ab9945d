"""A connection to a server that can be cut: for the server, the client is then as one that was killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cable:
    """Passes bytes on to a server of this machine, until it is cut."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._passing: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def lay(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, server = (reader, writer), await asyncio.open_connection(self._host, self._port)
        for source, target in ((client, server), (server, client)):
            task = asyncio.ensure_future(self._pass_on(source, target))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass_on(self, source: Ends, target: Ends) -> None:
        try:
            while data := await source[0].read(65536):
                target[1].write(data)
                await target[1].drain()
        except ConnectionError:
            pass
        finally:
            target[1].close()

    async def cut(self) -> None:
        """End every connection, and take no other. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        for task in (tasks := list(self._passing)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def cable_to(url: str) -> AsyncGenerator[Cable]:
    at = urlsplit(url)
    cable = Cable(at.hostname or "", at.port or 0)
    await cable.lay()
    try:
        yield cable
    finally:
        await cable.cut()
