"""The sandbox server: keys, errors, leases, the document, and what a client may not ask for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rock.errors import (
    ConfigError,
    NotFound,
    ProviderUnavailable,
    SandboxDied,
    SandboxError,
    Unauthorized,
)
from rock.sandbox import api
from rock.sandbox.base import Mount, Sandbox, SandboxSpec
from rock.sandbox.command import DeathCause, ExecStatus
from rock.sandbox.local import LocalProvider
from rock.sandbox.remote import RemoteProvider
from rock.sandbox.remote.server import SandboxServer, serving
from rock.testing.sandbox_conformance.subject import until, written
from tests.sandbox.cable import cable_to

KEY = "the key of the test"
pytestmark = pytest.mark.userns


@asynccontextmanager
async def _served() -> AsyncGenerator[tuple[str, RemoteProvider]]:
    async with (
        serving(SandboxServer(LocalProvider(), key=KEY)) as url,
        RemoteProvider(url, KEY) as provider,
    ):
        yield url, provider


async def test_nothing_is_answered_without_the_key() -> None:
    async with _served() as (url, _), aiohttp.ClientSession() as session:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY + "x"}):
            for path in ("/openapi.json", "/v1/sandboxes", "/v1/sandboxes/x/channel", "/nowhere"):
                async with session.get(url + path, headers=headers) as answer:
                    assert answer.status == 401, path
                    assert (await answer.json())["code"] == "invalid_api_key"
        async with RemoteProvider(url, "wrong") as stranger:
            with pytest.raises(Unauthorized):
                await stranger.create(SandboxSpec())


async def test_a_command_and_a_file_can_be_had_by_plain_http() -> None:
    async with _served() as (url, provider):
        box = await provider.create(SandboxSpec())
        here = f"{url}/v1/sandboxes/{box.id}"
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            body = {
                "argv": ["sh", "-c", "cat; echo $A; exit 3"],
                "timeout_seconds": 20,
                "stdin": "aGkK",
                "env": {"A": "b"},
            }
            async with session.post(f"{here}/exec", json=body) as answer:
                result = api.decode(await answer.read(), api.ExecResult)
            assert (result.status, result.exit_code) == (ExecStatus.EXITED, 3)
            assert result.stdout == b"hi\nb\n"
            data = bytes(range(256))
            async with session.put(f"{here}/file?path=f&mode=600", data=data) as answer:
                assert answer.status == 200
            async with session.get(f"{here}/file?path=f") as answer:
                assert await answer.read() == data
            for method, path, sent, status in (
                ("GET", "/file?path=missing", None, 400),
                ("GET", "/file", None, 400),
                ("PUT", "/file?path=f&mode=9", b"", 400),
                ("POST", "/exec", b"no json", 400),
                ("POST", "/exec", b'{"argv": ["true"], "timeout_seconds": "1"}', 400),
                ("POST", "/exec", b'{"argv": ["no-such"], "timeout_seconds": 1}', 404),
            ):
                async with session.request(method, here + path, data=sent) as answer:
                    assert answer.status == status, path
                    assert len((await answer.json())["message"]) > 10


async def test_every_route_is_in_the_document() -> None:
    server = SandboxServer(LocalProvider(), key=KEY)
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in server.app().router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    document = json.loads(api.encode(api.document("0")))
    described = {(method, path) for path, entry in document["paths"].items() for method in entry}
    assert described == routes - {("get", "/openapi.json")}
    text = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in text


async def test_host_directories_are_not_a_clients_to_mount(tmp_path: Path) -> None:
    async with _served() as (_, provider):
        mounts = (Mount(source=tmp_path, target="/x"),)
        with pytest.raises(ConfigError, match="mounts"):
            await provider.create(SandboxSpec(mounts=mounts))
        assert await provider.list() == []


async def test_a_sandbox_whose_client_has_gone_is_stopped() -> None:
    async with (
        _served() as (url, provider),
        cable_to(url) as cable,
        RemoteProvider(cable.url, KEY, lease_seconds=2.0) as lost,
    ):
        box = await lost.create(SandboxSpec())
        kept = await lost.create(SandboxSpec())
        process = await kept.spawn(["sleep", "300"])

        async def outlived() -> bool:
            return all(info.age_seconds > 2.5 for info in await provider.list())

        await until("both are older than their lease", outlived)
        assert {info.id for info in await provider.list()} == {box.id, kept.id}
        await cable.cut()

        async def stopped() -> bool:
            return not await provider.list()

        await until("the server has stopped both", stopped)
        assert (await process.wait()).status is ExecStatus.SANDBOX_DIED


async def test_a_server_that_is_gone_is_a_typed_end() -> None:
    async with serving(SandboxServer(LocalProvider(), key=KEY)) as url:
        provider = RemoteProvider(url, KEY)
        box = await provider.create(SandboxSpec())
        run = asyncio.ensure_future(
            box.exec(["sh", "-c", "echo before; echo x >up; exec sleep 300"], timeout_seconds=40)
        )
        await written(box, "up")
    result = await run
    assert result.status is ExecStatus.SANDBOX_DIED
    assert result.death is not None
    assert result.death.cause in (DeathCause.ENGINE_GONE, DeathCause.GONE)
    with pytest.raises(SandboxDied):
        await box.read_file("up")
    with pytest.raises(ProviderUnavailable):
        await provider.create(SandboxSpec())
    assert not (await provider.probe()).available
    await provider.close()


async def test_a_sandbox_that_is_not_there_is_a_typed_error() -> None:
    async with _served() as (_, provider):
        info = (await provider.create(SandboxSpec())).id
        (found,) = await provider.list()
        ghost = provider.attach(found)
        await provider.attach(found).stop()
        with pytest.raises(NotFound):
            await ghost.reset()
        with pytest.raises(SandboxDied):
            await ghost.exec(["true"], timeout_seconds=10)
        await ghost.stop()
        assert info not in {one.id for one in await provider.list()}


async def test_a_snapshot_outlives_its_sandbox_and_is_dropped_with_its_client() -> None:
    async with _served() as (url, provider), RemoteProvider(url, KEY) as watcher:
        box = await provider.create(SandboxSpec())
        await box.write_file("state", b"good")
        snapshot = await box.snapshot()
        await box.write_file("state", b"bad")
        assert (await box.restore(snapshot)).clean
        assert await box.read_file("state") == b"good"
        await box.stop()
        async with await provider.create(box.spec, snapshot=snapshot) as other:
            assert await other.read_file("state") == b"good"
        assert [info.sandbox for info in await watcher.snapshots()] == [box.id]
        with pytest.raises(SandboxError, match="another provider's"):
            await watcher.create(box.spec, snapshot=snapshot)
        snapshot.release()

        async def dropped() -> bool:
            return await watcher.snapshots() == []

        await until("it is dropped", dropped)
        last = await provider.create(SandboxSpec())
        await last.snapshot()
        await provider.close()
        assert await dropped()


async def test_a_snapshot_of_a_client_that_was_killed_is_dropped_when_its_lease_is_over() -> None:
    async with (
        _served() as (url, watcher),
        cable_to(url) as cable,
        RemoteProvider(cable.url, KEY, lease_seconds=0.3) as lost,
    ):
        box = await lost.create(SandboxSpec())
        await box.snapshot()
        assert len(await watcher.snapshots()) == 1
        await cable.cut()

        async def dropped() -> bool:
            return await watcher.snapshots() == []

        await until("its lease is over", dropped)


async def test_every_client_knows_the_way_out_once_one_of_them_has_changed_the_network() -> None:
    async with _served() as (url, provider), RemoteProvider(url, KEY) as other:
        mine = await provider.create(SandboxSpec())
        (info,) = await other.list()
        theirs = other.attach(info)
        assert (await theirs.exec(["sh", "-c", "echo $http_proxy"], timeout_seconds=20)).ok
        await mine.set_network("full")
        for box in (mine, theirs):
            await _until_told(box, b"http://127.0.0.1:3128\n")
        await mine.set_network("none")
        for box in (mine, theirs):
            await _until_told(box, b"\n")
        await mine.set_network("full")
        await mine.reset()
        assert "http_proxy" not in mine.environment()
        await theirs.detach()


async def _until_told(box: Sandbox, expected: bytes) -> None:
    async with asyncio.timeout(20):
        while True:
            said = await box.exec(["sh", "-c", "echo $http_proxy"], timeout_seconds=20)
            if said.stdout == expected:
                return
