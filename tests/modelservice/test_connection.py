"""HTTP on a connection: order, bodies however they come, peers that go, refusals that arrive."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from rock.errors import RockError, Unauthorized
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening
from rock.modelservice.planes.plane import EventStream, Outcome, Parked, Reply, Request
from rock.modelservice.planes.reader import MAX_HEAD_BYTES

BOUNDS = Bounds(max_body_bytes=100_000, body_seconds=0.5)


class Echo:
    """A plane that answers with what it got, and keeps count of what became of its replies."""

    def __init__(self) -> None:
        self.sent = 0
        self.lost = 0
        self.cancelled = asyncio.Event()

    async def handle(self, request: Request) -> Reply | EventStream:
        if request.path == "/secret":
            raise Unauthorized("no")
        if request.path == "/wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        body = await request.read()
        if request.path == "/stream":
            return EventStream(self._frames(body), sent=self._sent, lost=self._lost)
        told = {"path": request.path, "bytes": len(body), "x": request.headers.get("x-some")}
        return Reply(200, json.dumps(told).encode(), sent=self._sent, lost=self._lost)

    async def _frames(self, body: bytes) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 4):
            yield body[start : start + 4]

    def _sent(self) -> None:
        self.sent += 1

    def _lost(self) -> None:
        self.lost += 1


def refusal(exc: RockError) -> Reply:
    return Reply(exc.status, json.dumps({"error": exc.message}).encode())


class Waiting(Parked):
    """A reply that the test lets go."""

    def __init__(self, made: Callable[[], Reply]) -> None:
        self.gone = asyncio.Event()
        self._made = made

    def start(self, ready: Callable[[], None]) -> None:
        self.ready = ready

    def reply(self) -> Reply:
        return self._made()

    def left(self) -> None:
        self.gone.set()


class Lot:
    """A plane where requests are parked, and where what waits for nothing is answered at once."""

    def __init__(self) -> None:
        self.sent = 0
        self.lost = 0
        self.parked: asyncio.Queue[Waiting] = asyncio.Queue()

    def handle(self, request: Request) -> Outcome:
        if request.path == "/now":
            return self.told(request.body)
        if request.path == "/broken":
            raise ValueError("a bug")
        if request.body is None:
            return self._later(request)
        return self._park(request.body)

    async def _later(self, request: Request) -> Parked:
        return self._park(await request.read())

    def _park(self, body: bytes) -> Parked:
        waiting = Waiting(lambda: self.told(body))
        self.parked.put_nowait(waiting)
        return waiting

    def told(self, body: bytes | None) -> Reply:
        if body == b"bug":
            raise ValueError("a bug")
        return Reply(200, body or b"", sent=self._sent, lost=self._lost)

    def _sent(self) -> None:
        self.sent += 1

    def _lost(self) -> None:
        self.lost += 1


@asynccontextmanager
async def served(
    plane: Echo | Lot | None = None,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
    plane = plane or Echo()
    listener = bind("127.0.0.1", 0)
    host, port = listener.getsockname()
    async with listening(listener, Adapter(plane.handle, refusal, BOUNDS)):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.timeout(20):
                yield reader, writer
        finally:
            writer.close()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split(" ")[1]), headers, body


async def test_requests_sent_ahead_are_answered_in_order() -> None:
    plane = Echo()
    async with served(plane) as (reader, writer):
        writer.write(b"".join(post(f"/{n}?q#f", b"x" * n, f"x-SOME: v{n}") for n in range(40)))
        for number in range(40):
            status, _, body = await reply(reader)
            assert status == 200
            told = json.loads(body)
            assert told == {"path": f"/{number}", "bytes": number, "x": f"v{number}"}
    assert (plane.sent, plane.lost) == (40, 0)


async def test_a_body_may_come_byte_by_byte_or_in_chunks() -> None:
    async with served() as (reader, writer):
        for byte in post("/slow", b"abc"):
            writer.write(bytes([byte]))
            await writer.drain()
        assert json.loads((await reply(reader))[2])["bytes"] == 3
        writer.write(b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n")
        assert json.loads((await reply(reader))[2])["bytes"] == 5


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress(b"y" * 5000)), ("deflate", zlib.compress(b"y" * 5000))],
    ids=["gzip", "deflate"],
)
async def test_compressed_bodies_are_unpacked(encoding: str, packed: bytes) -> None:
    async with served() as (reader, writer):
        writer.write(post("/z", packed, f"Content-Encoding: {encoding}"))
        assert json.loads((await reply(reader))[2])["bytes"] == 5000


@pytest.mark.parametrize(
    ("packed", "encoding", "status"),
    [
        (gzip.compress(b"y" * 200_000, mtime=0), "gzip", 413),
        (gzip.compress(b"y" * 5000, mtime=0)[:-9], "gzip", 400),
        (b"no gzip", "gzip", 400),
        (b"x", "br", 400),
    ],
    ids=["too large", "cut", "not packed", "unknown"],
)
async def test_bad_compression_is_refused_and_the_connection_goes_on(
    packed: bytes, encoding: str, status: int
) -> None:
    async with served() as (reader, writer):
        writer.write(post("/z", packed, f"Content-Encoding: {encoding}"))
        assert (await reply(reader))[0] == status
        writer.write(post("/next", b""))
        assert (await reply(reader))[0] == 200


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with served() as (reader, writer):
        head, body = post("/e", b"abc", "Expect: 100-continue").split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert json.loads((await reply(reader))[2])["bytes"] == 3


async def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    async with served() as (reader, writer):
        big = post("/secret", b"x" * 90_000)
        writer.write(big[:50_000])
        assert (await reply(reader))[0] == 401
        writer.write(big[50_000:] + post("/next", b"ab"))
        assert json.loads((await reply(reader))[2])["bytes"] == 2


async def test_a_body_over_the_limit_is_refused_and_ends_the_connection() -> None:
    for head in (b"Content-Length: 5000000", b"Transfer-Encoding: chunked"):
        async with served() as (reader, writer):
            writer.write(b"POST /big HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % head)
            if b"chunked" in head:
                writer.write(b"30d40\r\n" + b"x" * 200_000 + b"\r\n")
            status, headers, _ = await reply(reader)
            assert (status, headers["connection"]) == (413, "close")
            assert await reader.read() == b""


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with served() as (reader, writer):
        writer.write(post("/half", b"x" * 100)[:-50])
        assert (await reply(reader))[0] == 408


@pytest.mark.parametrize(
    ("first", "dripping"), [(b"", b""), (b"", b"\r\n"), (b"GET / HTTP/1.1\r\nX: ", b"a")]
)
async def test_a_connection_that_never_asks_is_closed(first: bytes, dripping: bytes) -> None:
    async with served() as (reader, writer):
        writer.write(first)
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():  # bounded by `served`
            writer.write(dripping)
            await asyncio.wait({ended}, timeout=0.1)
        with contextlib.suppress(ConnectionError):
            assert await ended == b""


async def test_a_connection_that_asked_once_may_be_idle_for_longer() -> None:
    async with served() as (reader, writer):
        for _ in range(2):
            writer.write(post("/one", b""))
            assert (await reply(reader))[0] == 200
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(3 * BOUNDS.body_seconds):
                    await reader.read(1)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /x HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 8 * MAX_HEAD_BYTES,
        b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX-Bad: \xff\xfe\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_refused_in_the_planes_shape(data: bytes) -> None:
    async with served() as (reader, writer):
        writer.write(data)
        status, _, body = await reply(reader)
        assert status == 400
        assert "error" in json.loads(body)


async def test_good_requests_before_a_bad_one_are_answered() -> None:
    async with served() as (reader, writer):
        writer.write(post("/good", b"") + b"nonsense\r\n\r\n")
        assert (await reply(reader))[0] == 200
        assert (await reply(reader))[0] == 400
        assert await reader.read() == b""


async def test_a_peer_that_goes_away_cancels_the_handler_it_waited_for() -> None:
    plane = Echo()
    async with served(plane) as (_, writer):
        writer.write(post("/wait", b""))
        await writer.drain()
        writer.close()
        await plane.cancelled.wait()
    assert (plane.sent, plane.lost) == (0, 0)


async def test_a_reply_that_its_reader_does_not_take_counts_as_lost() -> None:
    plane = Echo()
    async with served(plane) as (_, writer):
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        cast("asyncio.Transport", writer.transport).pause_reading()
        for _ in range(400):
            writer.write(post("/stream", b"x" * 90_000))
        await asyncio.sleep(0)
        while plane.sent == 0:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while plane.lost == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert plane.lost == 1


async def test_a_stream_comes_in_chunks_and_the_connection_goes_on() -> None:
    async with served() as (reader, writer):
        writer.write(post("/stream", b"abcdef") + post("/next", b""))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Type: text/event-stream" in head
        assert await reader.readuntil(b"0\r\n\r\n") == b"4\r\nabcd\r\n2\r\nef\r\n0\r\n\r\n"
        assert (await reply(reader))[0] == 200


async def test_http_1_0_gets_its_stream_until_the_connection_ends() -> None:
    async with served() as (reader, writer):
        writer.write(post("/stream", b"abcdef").replace(b"HTTP/1.1", b"HTTP/1.0"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"chunked" not in head
        assert await reader.read() == b"abcdef"


async def test_head_gets_no_body() -> None:
    async with served() as (reader, writer):
        writer.write(b"HEAD /h HTTP/1.1\r\nHost: h\r\n\r\n" + post("/next", b""))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Content-Length: 3" in head
        assert (await reply(reader))[0] == 200


@pytest.mark.parametrize("apart", [False, True])
async def test_an_upgrade_that_is_not_granted_is_an_ordinary_request(apart: bool) -> None:
    async with served() as (reader, writer):
        upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMA")
        for size in (3, 0, 70_000):
            data = post("/u", b"x" * size, *upgrade)
            writer.write(data[:-1] if apart else data)
            await writer.drain()
            if apart:
                await asyncio.sleep(0)
                writer.write(data[-1:])
            status, _, body = await reply(reader)
            assert (status, json.loads(body)["bytes"]) == (200, size)
        writer.write(post("/u", b"ab", *upgrade) + post("/next", b"c"))
        assert json.loads((await reply(reader))[2])["bytes"] == 2
        assert json.loads((await reply(reader))[2])["bytes"] == 1


async def test_a_parked_request_has_no_task_and_its_reply_goes_out_when_it_is_ready() -> None:
    lot = Lot()
    async with served(lot) as (reader, writer):
        idle = len(asyncio.all_tasks())
        writer.write(post("/p", b"whole") + post("/now", b"ahead"))
        waiting = await lot.parked.get()
        assert len(asyncio.all_tasks()) == idle
        waiting.ready()
        waiting.ready()  # said twice is heard once
        assert (await reply(reader))[2] == b"whole"
        assert (await reply(reader))[2] == b"ahead"
        late = post("/p", b"in pieces")
        writer.write(late[:-3])
        await writer.drain()
        writer.write(late[-3:])
        (await lot.parked.get()).ready()
        assert (await reply(reader))[2] == b"in pieces"
    assert (lot.sent, lot.lost) == (3, 0)


async def test_a_peer_that_goes_away_ends_what_it_was_parked_for() -> None:
    lot = Lot()
    async with served(lot) as (_, writer):
        writer.write(post("/p", b""))
        waiting = await lot.parked.get()
        writer.close()
        await waiting.gone.wait()
        waiting.ready()  # too late: nobody is asked for a reply
    assert (lot.sent, lot.lost) == (0, 0)


async def test_what_is_parked_when_the_listener_ends_is_told() -> None:
    lot = Lot()
    async with served(lot) as (_, writer):
        writer.write(post("/p", b""))
        waiting = await lot.parked.get()
    assert waiting.gone.is_set()


async def test_thousands_of_requests_in_one_read_are_answered_in_order() -> None:
    lot = Lot()
    async with served(lot) as (reader, writer):
        writer.write(b"".join(post("/now", b"%d" % number) for number in range(5000)))
        for number in range(5000):
            assert (await reply(reader))[2] == b"%d" % number
    assert (lot.sent, lot.lost) == (5000, 0)


async def test_a_bug_is_answered_and_the_connection_goes_on() -> None:
    lot = Lot()
    async with served(lot) as (reader, writer):
        writer.write(post("/broken", b"") + post("/p", b"bug") + post("/now", b"x"))
        assert (await reply(reader))[0] == 500
        (await lot.parked.get()).ready()
        assert (await reply(reader))[0] == 500
        assert (await reply(reader))[2] == b"x"


async def test_a_parked_reply_counts_as_sent_only_once_its_reader_took_it() -> None:
    lot, large = Lot(), b"x" * 90_000
    async with served(lot) as (_, writer):
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        transport = cast("asyncio.Transport", writer.transport)
        transport.pause_reading()
        answered = 0
        while lot.sent == answered:  # until a reply stays in the service
            writer.write(post("/p", large))
            (await lot.parked.get()).ready()
            answered += 1
            for _ in range(20):  # some fit into the kernel, at their own pace
                if lot.sent == answered:
                    break
                await asyncio.sleep(0.01)
            else:
                break
        assert lot.sent == answered - 1
        transport.abort()
        while lot.lost == 0:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
    assert (lot.sent, lot.lost) == (answered - 1, 1)
