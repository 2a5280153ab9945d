"""Requests sent ahead of replies, and replies that are unusual: what keeps a connection going."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from rock.errors import RockError
from rock.modelservice.planes.incoming import MAX_AHEAD, MAX_AHEAD_BYTES
from rock.modelservice.planes.listening import Adapter, Bounds, Handle, bind, listening, url_of
from rock.modelservice.planes.plane import Reply, Request
from tests.modelservice.faults.connection import Connection, post

BOUNDS = Bounds(max_body_bytes=1 << 26)


def refuse(exc: RockError) -> Reply:
    return Reply(exc.status, exc.message.encode())


@asynccontextmanager
async def plane(handle: Handle, bounds: Bounds = BOUNDS) -> AsyncGenerator[str, None]:
    listener = bind("127.0.0.1", 0)
    async with listening(listener, Adapter(handle, refuse, bounds)):
        yield url_of(listener)


async def echo_length(request: Request) -> Reply:
    return Reply(200, b"%d" % len(await request.read()))


async def test_a_head_may_begin_in_the_same_read_as_a_large_body_ends() -> None:
    first, second = post("/", b"x" * 200_000), post("/", b"y" * 10)
    async with plane(echo_length) as url, asyncio.timeout(10):
        connection = await Connection.open(url)
        for cut in (1, 15, 40):
            connection.send(first + second[:cut])
            assert (await connection.hear()).body == b"200000"
            connection.send(second[cut:])
            assert (await connection.hear()).body == b"10"
        await connection.close()


async def test_a_status_that_nobody_registered_is_sent_all_the_same() -> None:
    async def overloaded(request: Request) -> Reply:
        return Reply(529, b"later")

    async with plane(overloaded) as url, asyncio.timeout(10):
        connection = await Connection.open(url)
        heard = await connection.ask(post("/", b""))
        assert (heard.status, heard.body) == (529, b"later")
        await connection.close()


async def test_a_reply_that_cannot_be_written_ends_the_connection() -> None:
    told: list[str] = []

    async def broken(request: Request) -> Reply:
        return Reply(200, b"x", {"X": "\udcff"}, lost=lambda: told.append("lost"))

    async with plane(broken) as url, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*address_of(url))
        writer.write(post("/", b""))
        assert await reader.read() == b""
        writer.close()
    assert told == ["lost"]


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.mark.parametrize("way", ["close", "abort"])
@pytest.mark.parametrize("ahead", [[b"x"] * 3 * MAX_AHEAD, [b"x" * (MAX_AHEAD_BYTES + 50_000)]])
async def test_who_sent_far_ahead_and_left_is_noticed(ahead: list[bytes], way: str) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def patient(request: Request) -> Reply:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()
        raise AssertionError("unreachable")

    bounds = Bounds(max_body_bytes=1 << 26, body_seconds=0.1)
    async with plane(patient, bounds) as url, asyncio.timeout(10):
        with socket.create_connection(address_of(url)) as connection:
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # the other side takes no more
                connection.sendall(b"".join(post("/", body) for body in (b"", *ahead)))
            await asked.wait()
            if way == "abort":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await left.wait()


async def test_bodies_sent_ahead_are_not_hoarded() -> None:
    go = asyncio.Event()

    async def patient(request: Request) -> Reply:
        await go.wait()
        return await echo_length(request)

    large = post("/", b"x" * 60_000_000)
    async with plane(patient) as url, asyncio.timeout(30):
        connection = await Connection.open(url)
        connection.send(post("/", b"1") + large)
        transport = connection.writer.transport
        left = -1
        while transport.get_write_buffer_size() != left:  # until the other side takes no more
            left = transport.get_write_buffer_size()
            await asyncio.sleep(0.2)
        assert left > 40_000_000
        go.set()
        assert (await connection.hear()).body == b"1"
        assert (await connection.hear()).body == b"60000000"
        await connection.close()
