"""The engine client against small servers that misbehave, and once against the real engine."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from rock.config import read_environment
from rock.errors import ProviderUnavailable, SandboxError
from rock.sandbox.docker.engine import Engine

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def engine_that(
    answers: Answer, folder: Path, *, timeout_seconds: float = 0.5
) -> AsyncGenerator[Engine]:
    """A client of a server that speaks just enough HTTP to be taken for an engine."""

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.41", "Version": "fake"})

    app = web.Application()
    app.router.add_get("/version", version)
    app.router.add_route("*", "/{path:.*}", answers)
    runner = web.AppRunner(app)
    await runner.setup()
    path = folder / "engine.sock"
    await web.UnixSite(runner, str(path)).start()
    engine = Engine(f"unix://{path}", timeout_seconds=timeout_seconds)
    try:
        yield engine
    finally:
        await engine.close()
        await runner.cleanup()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_an_engine_that_is_not_there_is_unavailable_with_a_remedy(tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/absent.sock")
    with pytest.raises(ProviderUnavailable, match=r"absent\.sock .*start an engine"):
        await engine.info()
    await engine.close()


async def test_an_engine_that_falls_silent_is_given_up_in_bounded_time(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await given_up.wait()
        return web.Response()

    given_up = asyncio.Event()
    async with engine_that(silent, tmp_path) as engine:
        with pytest.raises(SandboxError, match=r"did not look up the image x within 0\.5 s"):
            await asyncio.wait_for(engine.image("x"), 5)
        given_up.set()


async def test_what_the_engine_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "the disk is full"}, status=500)

    async with engine_that(refusing, tmp_path) as engine:
        with pytest.raises(
            SandboxError, match="could not remove the container x: the disk is full"
        ):
            await engine.remove("x")


async def test_a_removal_that_the_engine_already_does_is_waited_for(tmp_path: Path) -> None:
    looks: list[str] = []

    async def removing(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return web.json_response({"message": "removal is already in progress"}, status=409)
        looks.append(request.path)
        gone = len(looks) >= 3
        return web.json_response({"message": "no such container"}, status=404 if gone else 200)

    async with engine_that(removing, tmp_path) as engine:
        assert await engine.remove("x") is True
    assert len(looks) == 3


async def test_a_cancelled_call_has_ended_when_the_cancellation_arrives(tmp_path: Path) -> None:
    arrived = asyncio.Event()
    answered: list[bool] = []

    async def slow(request: web.Request) -> web.StreamResponse:
        arrived.set()
        await asyncio.sleep(0.2)
        answered.append(True)
        return web.json_response({"message": "no such image"}, status=404)

    async with engine_that(slow, tmp_path) as engine:
        calling = asyncio.ensure_future(engine.image("x"))
        await asyncio.wait_for(arrived.wait(), 5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert answered == [True]


async def test_tries_at_an_engine_that_went_away_leave_no_descriptor(tmp_path: Path) -> None:
    async def once(request: web.Request) -> web.StreamResponse:
        return web.json_response([], headers={"Connection": "close"})

    async with engine_that(once, tmp_path, timeout_seconds=5) as engine:
        assert await engine.containers("rock.run") == []
        (tmp_path / "engine.sock").rename(tmp_path / "gone.sock")
        gc.disable()  # which would close what was left
        try:
            before = open_descriptors()
            for _ in range(5):
                with pytest.raises(ProviderUnavailable, match="no Docker engine answers"):
                    await engine.containers("rock.run")
            assert open_descriptors() <= before
        finally:
            gc.enable()


async def test_a_closed_client_makes_no_calls(tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/absent.sock")
    await engine.close()
    await engine.close()
    with pytest.raises(SandboxError, match="closed"):
        await engine.info()


@pytest.mark.docker
async def test_the_real_engine_says_who_it_is_and_what_it_lacks() -> None:
    engine = Engine(read_environment().docker_host)
    try:
        info = await engine.info()
        assert info.version
        assert info.api_version.count(".") == 1
        assert await engine.image("rock-nowhere/absent:1") is None
        assert await engine.running("rock-absent") is False
        assert await engine.remove("rock-absent") is False
    finally:
        await engine.close()
