"""A closed-loop HTTP load generator: N connections, each sends its next request when answered.

Cheap on purpose (one asyncio protocol per connection, no HTTP library), so that the generator is
not what a benchmark measures. Bodies are made by the caller, one function per connection, so that
each agent can have its own session and its own growing conversation. Bounded in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
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


class _Agent(asyncio.Protocol):
    """One connection in a closed loop. Replies must have a Content-Length."""

    def __init__(self, make: MakeRequest, result: LoadResult, until: float) -> None:
        self._make = make
        self._result = result
        self._until = until
        self._turn = 0
        self._buffer = bytearray()
        self._need = -1
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        if time.perf_counter() >= self._until:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(self._make(self._turn))
        self._turn += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need < 0:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = bytes(self._buffer[:head_end]).lower()
            self._ok = head.startswith(b"http/1.1 200")
            mark = head.find(b"content-length:")
            length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
            self._need = head_end + 4 + length
        if len(self._buffer) < self._need:
            return
        del self._buffer[: self._need]
        self._need = -1
        if self._ok:
            self._result.latencies_seconds.append(time.perf_counter() - self._sent_at)
        else:
            self._result.errors += 1
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def run_load(
    host: str, port: int, makers: list[MakeRequest], *, seconds: float, drain_seconds: float = 30.0
) -> LoadResult:
    """Drive one connection per maker for `seconds`, then let those in flight finish (bounded)."""
    loop = asyncio.get_running_loop()
    result = LoadResult()
    started = time.perf_counter()
    agents: list[_Agent] = []
    for make in makers:
        _, agent = await loop.create_connection(
            lambda make=make: _Agent(make, result, started + seconds), host, port
        )
        agents.append(agent)
    await asyncio.wait([agent.done for agent in agents], timeout=seconds + drain_seconds)
    result.wall_seconds = time.perf_counter() - started
    return result


def post(path: str, body: bytes, *, key: str, host: str = "127.0.0.1") -> bytes:
    """One HTTP/1.1 POST with a JSON body and a bearer key."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
