"""The sandbox server under wrong keys, large bodies, clients that vanish, and its own end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import pytest

from rock.errors import BadRequest, PayloadTooLarge, SandboxDied
from rock.sandbox import api
from rock.sandbox.base import Sandbox, SandboxSpec
from rock.sandbox.command import ExecStatus
from rock.sandbox.local.local import LocalProvider
from rock.sandbox.remote.remote import RemoteProvider
from rock.sandbox.remote.server import SandboxServer, serving
from rock.testing.sandbox_conformance.subject import until, written
from tests.sandbox.cable import cable_to

KEY = "the key of the test"
HEADERS = {"Authorization": f"Bearer {KEY}"}
BODY_BYTES = 64 * 1024
pytestmark = pytest.mark.userns


@asynccontextmanager
async def _served() -> AsyncGenerator[tuple[str, LocalProvider, RemoteProvider]]:
    maker = LocalProvider()
    server = SandboxServer(maker, key=KEY, max_body_bytes=BODY_BYTES)
    async with serving(server) as url, RemoteProvider(url, KEY) as client:
        yield url, maker, client


async def _runs(box: Sandbox, word: str) -> bool:
    return any(word in one.command for one in await box.list_processes())


async def test_no_route_answers_a_wrong_key() -> None:
    server = SandboxServer(LocalProvider(), key=KEY)
    routes = [
        (route.method, route.resource.canonical.replace("{id}", "x"))
        for route in server.app().router.routes()
        if route.resource is not None
    ]
    assert len(routes) > 20
    async with serving(server) as url, aiohttp.ClientSession() as session:
        for method, path in routes:
            for key in ("", "Bearer ", f"Bearer {KEY[:-1]}", f"Bearer {KEY}\u00e9", "Basic eDp5"):
                headers = {"Authorization": key} if key else {}
                async with session.request(method, url + path, headers=headers) as answer:
                    assert answer.status == 401, (method, path, key)


async def test_a_body_over_the_bound_is_refused_and_does_no_harm() -> None:
    async with _served() as (url, _, client):
        box = await client.create(SandboxSpec())
        here = f"{url}/v1/sandboxes/{box.id}"

        async def in_pieces() -> AsyncGenerator[bytes]:
            for _ in range(BODY_BYTES // 1000 + 1):
                yield b"x" * 1000

        async with aiohttp.ClientSession(headers=HEADERS) as session:
            fits = b"x" * BODY_BYTES
            async with session.put(f"{here}/file?path=fits", data=fits) as answer:
                assert answer.status == 200
            for data in (fits + b"x", in_pieces()):
                async with session.put(f"{here}/file?path=f", data=data) as answer:
                    assert answer.status == 413
                    body = await answer.read()
                error = api.error_of(answer.status, body)
                assert isinstance(error, PayloadTooLarge)
                assert str(BODY_BYTES) in error.message
            for method, path, status in (("GET", "/nowhere", 404), ("PUT", "", 405)):
                async with session.request(method, here + path) as answer:
                    assert answer.status == status
                    assert len((await answer.json())["message"]) > 10
            for wrong in (b"[" * 50_000, b"\xff", b"", b"null", b'{"argv": "x"}'):
                async with session.post(f"{here}/exec", data=wrong) as answer:
                    assert (answer.status, (await answer.json())["code"]) == (400, BadRequest.code)
        assert await box.read_file("fits") == fits


async def test_a_client_that_vanishes_takes_its_commands_along_and_nothing_else() -> None:
    async with _served() as (url, maker, client):
        box = await client.create(SandboxSpec())
        (inside,) = maker.sandboxes()
        own = await inside.spawn(["sleep", "300"])
        # One waits for an answer over HTTP, and its connection is cut without a word.
        address = urlsplit(url)
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        body = b'{"argv": ["sleep", "301"], "timeout_seconds": 60}'
        head = (
            f"POST /v1/sandboxes/{box.id}/exec HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        # The other reads a stream over its channel.
        async with cable_to(url) as cable, RemoteProvider(cable.url, KEY) as other:
            stream = await other.attach((await other.list())[0]).spawn(
                ["sh", "-c", "while sleep 0.01; do echo x; done; exec sleep 302"], streamed=True
            )
            assert (await anext(aiter(stream.events()))).data.startswith(b"x")

            await until("the command runs", lambda: _runs(inside, "301"))
            assert stream.running
            writer.transport.abort()
            await cable.cut()

        async def alone() -> bool:
            names = [one.command for one in await inside.list_processes()]
            return not any("301" in words or "sh" in words for words in names)

        await until("what the clients started has ended", alone)
        assert own.running
        entries = (await box.read_log()).entries
        assert [one.status for one in entries if "301" in one.what][-1] == "cancelled"
        assert (await box.exec(["true"], timeout_seconds=10)).ok


async def test_a_client_that_vanishes_while_a_sandbox_is_made_leaves_none() -> None:
    async with _served() as (url, maker, client):
        address = urlsplit(url)
        for pause in (0.0, 0.002, 0.004, 0.006):
            _, writer = await asyncio.open_connection(address.hostname, address.port)
            body = b'{"lease_seconds": 0.5}'
            head = (
                f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\n"
                f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            await asyncio.sleep(pause)
            writer.transport.abort()

        async def none() -> bool:
            return maker.sandboxes() == [] and await client.list() == []

        await until("nothing is left of them", none)


async def test_a_server_that_stops_ends_its_sandboxes_and_tells_who_waits() -> None:
    maker = LocalProvider()
    async with serving(SandboxServer(maker, key=KEY)) as url:
        client = RemoteProvider(url, KEY)
        box = await client.create(SandboxSpec())
        one, other = (
            ["sh", "-c", f"echo before; echo x >{name}; exec sleep 300"] for name in ("up", "up2")
        )
        over_http = asyncio.ensure_future(_exec(url, box.id, one))
        over_channel = asyncio.ensure_future(box.exec(other, timeout_seconds=60))
        watching = asyncio.ensure_future(box.read_log(after="0:100000", wait_seconds=25))
        await written(box, "up")
        await written(box, "up2")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert maker.sandboxes() == []
    assert (await over_http).status is ExecStatus.SANDBOX_DIED
    assert (await over_http).stdout == b"before\n"
    result = await over_channel
    assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
    await asyncio.wait([watching])
    assert watching.exception() is not None
    with pytest.raises(SandboxDied):
        await box.write_file("more", b"")
    await client.close()


async def _exec(url: str, name: str, argv: list[str]) -> api.ExecResult:
    async with aiohttp.ClientSession(headers=HEADERS) as session:
        body = {"argv": argv, "timeout_seconds": 60}
        async with session.post(f"{url}/v1/sandboxes/{name}/exec", json=body) as answer:
            return api.decode(await answer.read(), api.ExecResult)
