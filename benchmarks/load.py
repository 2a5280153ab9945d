"""HTTP load: N connections, in a closed loop or round by round.

Cheap on purpose (one asyncio protocol per connection, no HTTP library), so that the generator is
not what a benchmark measures. Requests are made by the caller, one function per connection, so that
each agent can have its own session and its own growing conversation. Bounded in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

MakeRequest = Callable[[int], bytes]
"""The whole next HTTP request (head and body) of a connection, given its turn number."""


@dataclass
class LoadResult:
    """Latencies in seconds, one per answered request; `errors` counts replies other than 200."""

    latencies_seconds: list[float] = field(default_factory=list[float])
    errors: int = 0
    wall_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.latencies_seconds) / self.wall_seconds if self.wall_seconds else 0.0

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.latencies_seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0


OnReply = Callable[["Connection", int], None]
"""Called with the connection and the status of each reply."""


class Connection(asyncio.Protocol):
    """One connection, one request at a time. Replies must have a Content-Length."""

    def __init__(self, on_reply: OnReply) -> None:
        self._on_reply = on_reply
        self._buffer = bytearray()
        self._need = -1
        self._status = 0
        self.sent_at = 0.0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, request: bytes) -> None:
        self.sent_at = time.perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need < 0:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = bytes(self._buffer[:head_end]).lower()
            self._status = int(head[9:12])
            mark = head.find(b"content-length:")
            length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
            self._need = head_end + 4 + length
        if len(self._buffer) < self._need:
            return
        del self._buffer[: self._need]
        self._need = -1
        self._on_reply(self, self._status)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def run_load(
    host: str, port: int, makers: list[MakeRequest], *, seconds: float, drain_seconds: float = 30.0
) -> LoadResult:
    """Drive one connection per maker for `seconds`, then let those in flight finish (bounded)."""
    result = LoadResult()
    makes: dict[Connection, MakeRequest] = {}
    turns: dict[Connection, int] = {}
    until = 0.0

    def next_turn(connection: Connection) -> None:
        if time.perf_counter() >= until:
            connection.close()
            return
        turn = turns[connection] = turns.get(connection, -1) + 1
        connection.send(makes[connection](turn))

    def on_reply(connection: Connection, status: int) -> None:
        if status == 200:
            result.latencies_seconds.append(time.perf_counter() - connection.sent_at)
        else:
            result.errors += 1
        next_turn(connection)

    async with connected(host, port, len(makers), on_reply) as connections:
        started = time.perf_counter()
        until = started + seconds
        for connection, make in zip(connections, makers, strict=True):
            makes[connection] = make
            next_turn(connection)
        closed = [connection.closed for connection in connections]
        await asyncio.wait(closed, timeout=seconds + drain_seconds)
        result.wall_seconds = time.perf_counter() - started
    return result


class Rounds:
    """Connections that each send one request, and wait until all are answered."""

    def __init__(self) -> None:
        self._result = LoadResult()
        self._left = 0
        self._done = asyncio.Event()
        self.connections: list[Connection] = []

    def on_reply(self, connection: Connection, status: int) -> None:
        if status == 200:
            self._result.latencies_seconds.append(time.perf_counter() - connection.sent_at)
        else:
            self._result.errors += 1
        self._left -= 1
        if self._left == 0:
            self._done.set()

    def send(self, requests: Sequence[bytes]) -> None:
        self._result, self._left = LoadResult(), len(requests)
        self._done.clear()
        for connection, request in zip(self.connections, requests, strict=True):
            connection.send(request)

    async def answered(self, *, seconds: float) -> LoadResult:
        """The replies to what was sent last, of those that came within `seconds`."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(seconds):
                await self._done.wait()
        except TimeoutError:
            pass
        self._result.wall_seconds = time.perf_counter() - started
        return self._result


@asynccontextmanager
async def rounds(host: str, port: int, count: int) -> AsyncGenerator[Rounds, None]:
    made = Rounds()
    async with connected(host, port, count, made.on_reply) as made.connections:
        yield made


@asynccontextmanager
async def connected(
    host: str, port: int, count: int, on_reply: OnReply
) -> AsyncGenerator[list[Connection], None]:
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    try:
        for _ in range(count):
            _, connection = await loop.create_connection(lambda: Connection(on_reply), host, port)
            connections.append(connection)
        yield connections
    finally:
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=10)


def post(path: str, body: bytes, *, key: str, headers: str = "") -> bytes:
    """One HTTP/1.1 POST with a JSON body and a bearer key; `headers` are more lines with their ends."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
