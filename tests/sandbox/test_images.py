"""Images are pulled once, however many want them, against a server that plays the engine."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from rock.errors import ProviderUnavailable, SandboxError
from rock.sandbox.docker.engine import Engine
from rock.sandbox.docker.images import Images
from tests.sandbox.plain_helper import until
from tests.sandbox.test_engine import engine_that


class Registry:
    """An engine that has no image until it was pulled, and counts the pulls of each."""

    def __init__(self, *, broken: bool = False) -> None:
        self.pulls: list[str] = []
        self.here: set[str] = set()
        self.go_on = asyncio.Event()
        self.broken = broken

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"].partition("/")[2]
        if path == "images/create":
            name = f"{request.query['fromImage']}:{request.query['tag']}"
            self.pulls.append(name)
            await self.go_on.wait()
            if self.broken:
                return web.Response(text='{"error": "the registry is down"}\n')
            self.here.add(name)
            return web.Response(text='{"status": "done"}\n')
        name = path.removeprefix("images/").removesuffix("/json")
        if name not in self.here:
            return web.json_response({"message": f"No such image: {name}"}, status=404)
        return web.json_response({"Id": f"sha256:{name}", "Config": {}})


def images_of(engine: Engine, folder: Path, *, pull: bool = True) -> Images:
    return Images(engine, folder, pull=pull, pull_timeout_seconds=30)


async def test_many_sandboxes_of_a_missing_image_wait_for_one_pull(tmp_path: Path) -> None:
    registry = Registry()
    async with engine_that(registry.answer, tmp_path, timeout_seconds=30) as engine:
        images = images_of(engine, tmp_path)
        wanted = ["a:1"] * 5 + ["b:2"] * 5
        finding = [asyncio.ensure_future(images.find(name)) for name in wanted]
        await until("both are pulled", lambda: len(registry.pulls) == 2)
        registry.go_on.set()
        found = await asyncio.gather(*finding)
        assert sorted(registry.pulls) == ["a:1", "b:2"]
        assert [image.id for image in found] == [f"sha256:{name}" for name in wanted]
        await images.prefetch(["a:1", "b:2", "a:1"])
        assert images.pulls == len(registry.pulls) == 2


async def test_a_pull_that_failed_is_told_to_all_and_tried_again_by_the_next(
    tmp_path: Path,
) -> None:
    registry = Registry(broken=True)
    registry.go_on.set()
    async with engine_that(registry.answer, tmp_path, timeout_seconds=30) as engine:
        images = images_of(engine, tmp_path)
        with pytest.raises(SandboxError, match="a:1: the registry is down"):
            await images.find("a:1")
        registry.broken = False
        assert (await images.find("a:1")).id == "sha256:a:1"
        assert registry.pulls == ["a:1"] * 2


async def test_without_leave_to_pull_the_command_is_named(tmp_path: Path) -> None:
    registry = Registry()
    async with engine_that(registry.answer, tmp_path, timeout_seconds=30) as engine:
        with pytest.raises(ProviderUnavailable, match="docker pull a:1"):
            await images_of(engine, tmp_path, pull=False).find("a:1")
        assert registry.pulls == []
