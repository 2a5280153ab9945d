"""Requests to one sandbox server, and the byte stream to a sandbox's helper that goes through it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp

from rock.errors import ProviderAway, ProviderUnavailable, SandboxDied
from rock.sandbox import api
from rock.sandbox.box.variables import EnvChanges

log = logging.getLogger(__name__)
T = TypeVar("T")

_CALL_SECONDS = 120.0
REMEDY = "start one with `rock sandbox serve`, and give its address and its key"


@dataclass(slots=True)
class Known:
    """What this side knows of the variables that commands get over there, kept as its server says."""

    env_changes: EnvChanges
    proxy: dict[str, str]

    def take(self, changes: EnvChanges, proxy: dict[str, str]) -> None:
        self.env_changes.clear()
        self.env_changes.update(changes)
        self.proxy = proxy


class ServerRequests:
    """Requests to one server, and the streams to the sandboxes there."""

    def __init__(self, url: str, key: str, socket: Path | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ProviderUnavailable("this client of a sandbox server is closed")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
            connector = (
                aiohttp.TCPConnector(limit=0)
                if self._socket is None
                else aiohttp.UnixConnector(str(self._socket), limit=0)
            )
            self._session = aiohttp.ClientSession(
                headers=self._headers, timeout=timeout, connector=connector
            )
        return self._session

    async def ask(self, method: str, path: str, kind: type[T], body: object = None) -> T:
        """Raises the error that the server answers with, or `ProviderUnavailable`."""
        data = None if body is None else api.encode(body)
        try:
            async with self.session.request(method, self.url + path, data=data) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ProviderAway(
                f"no sandbox server answers at {self.url} ({exc}); {REMEDY}"
            ) from exc
        if answer.status >= 400:
            raise api.error_of(answer.status, content)
        return api.decode(content, kind)

    async def channel(self, sandbox_id: str, known: Known) -> SocketStream:
        try:
            socket = await self.session.ws_connect(
                f"{self.url}/v1/sandboxes/{sandbox_id}/channel",
                max_msg_size=0,
                heartbeat=30.0,
            )
        except aiohttp.WSServerHandshakeError as exc:
            raise SandboxDied(f"the sandbox is gone (status {exc.status})") from exc
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise SandboxDied(f"its server does not answer: {exc}") from exc
        return SocketStream(socket, known)

    async def close(self) -> None:
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None


class SocketStream:
    """A `mux.ByteStream` on a WebSocket. What is written is sent in order by a task.

    The server's texts are what the sandbox's variables were changed to.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, known: Known) -> None:
        self._socket = socket
        self._known = known
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._sending = asyncio.ensure_future(self._send())

    async def read(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                return message.data
            if message.type is aiohttp.WSMsgType.TEXT:
                told = api.decode(message.data.encode(), api.Told)
                self._known.take(told.changes, told.proxy)
            if message.type in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.ERROR,
            ):
                return b""

    def write(self, data: bytes) -> None:
        self._queue.put_nowait(data)

    async def _send(self) -> None:
        try:
            while True:
                data = bytearray(await self._queue.get())
                while not self._queue.empty():
                    data += self._queue.get_nowait()
                await self._socket.send_bytes(bytes(data))
        except (aiohttp.ClientError, ConnectionError) as exc:
            log.debug("a sandbox's stream has broken: %s", exc)

    async def close(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._socket.close()
