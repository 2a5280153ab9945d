"""Images built of Dockerfiles by a real engine: once, with a log, stopped in time, and refused clearly."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rock.config import read_environment
from rock.errors import BuildFailed, ConfigError, NotSupported, ProviderUnavailable
from rock.sandbox.base import IMAGE_USER, SandboxSpec
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.docker.dockerfile import bases
from rock.sandbox.docker.engine import Engine
from rock.sandbox.local.local import LocalProvider
from rock.sandbox.pool import PooledProvider

BASE = "rock-busybox:latest"


@pytest.fixture
async def provider() -> AsyncIterator[DockerProvider]:
    async with DockerProvider() as made:
        yield made


def context(folder: Path, dockerfile: str, **files: str) -> Path:
    """A directory to build, unlike any that was built before."""
    path = folder / "context"
    path.mkdir()
    (path / "Dockerfile").write_text(f"{dockerfile}\n# {time.time_ns()}\n")
    for name, text in files.items():
        (path / name).write_text(text)
    return path


async def forget(log: str) -> None:
    """Remove the image that the build of this log made."""
    (tag,) = re.findall(r"Successfully tagged (rock-built:\w+)", log)

    def remove(client: Any) -> None:
        client.remove_image(tag, force=True)

    engine = Engine(read_environment().docker_host)
    try:
        await engine.apart("remove an image", remove)
    finally:
        await engine.close()


@pytest.mark.docker
async def test_image_is_built_once_for_all_that_ask_and_runs_as_its_own_user(
    provider: DockerProvider, tmp_path: Path
) -> None:
    built = context(
        tmp_path,
        f"FROM {BASE}\nWORKDIR /app\nCOPY word.txt .\nRUN echo marked > made.txt\nENV LEVEL=3",
        **{"word.txt": "hello"},
    )
    async with PooledProvider(provider, owns_inner=False) as pooled:
        first, second = await asyncio.gather(
            pooled.build_image(built, timeout_seconds=60, network="none"),
            provider.build_image(built, timeout_seconds=60, network="none"),
        )
    assert first == second
    assert first.log is not None
    assert "RUN echo marked" in first.log
    again = await provider.build_image(built, timeout_seconds=60, network="none")
    assert (again.reference, again.log) == (first.reference, None)
    spec = SandboxSpec(image=first.reference, workdir="/app", user=IMAGE_USER)
    async with await provider.create(spec) as sandbox:
        script = 'cat word.txt made.txt; echo more >> word.txt; echo "$LEVEL $(id -u)"'
        result = await sandbox.exec(["sh", "-c", script], timeout_seconds=10)
    assert result.stdout == b"hellomarked\n3 0\n"
    await forget(first.log)


@pytest.mark.userns
async def test_image_user_where_there_is_no_image_is_the_safe_default() -> None:
    async with (
        LocalProvider() as local,
        await local.create(SandboxSpec(user=IMAGE_USER)) as sandbox,
    ):
        result = await sandbox.exec(["id", "-u"], timeout_seconds=10)
        with pytest.raises(NotSupported, match="the local provider builds no images"):
            await local.build_image(Path("/nonexistent"))
    assert result.stdout == b"1000\n"


@pytest.mark.docker
async def test_failed_build_tells_everyone_the_end_of_its_log(
    provider: DockerProvider, tmp_path: Path
) -> None:
    broken = context(tmp_path, f"FROM {BASE}\nRUN echo so far so good && exit 7")
    failures = await asyncio.gather(
        *(provider.build_image(broken, timeout_seconds=60, network="none") for _ in range(3)),
        return_exceptions=True,
    )
    for failure in failures:
        assert isinstance(failure, BuildFailed)
        assert "returned a non-zero code: 7" in failure.message
        assert "so far so good" in failure.message
        assert "RUN echo so far" in failure.log


@pytest.mark.docker
async def test_build_that_takes_too_long_is_stopped(
    provider: DockerProvider, tmp_path: Path
) -> None:
    endless = context(tmp_path, f"FROM {BASE}\nRUN echo begun; sleep 611")
    with pytest.raises(BuildFailed, match=r"it took over 2 s[\s\S]*begun"):
        await provider.build_image(endless, timeout_seconds=2, network="none")
    await until_sleepers(0, "611")


@pytest.mark.docker
async def test_closing_the_provider_stops_what_it_builds(tmp_path: Path) -> None:
    endless = context(tmp_path, f"FROM {BASE}\nRUN sleep 612")
    async with DockerProvider() as provider:
        job = asyncio.ensure_future(
            provider.build_image(endless, timeout_seconds=600, network="none")
        )
        await until_sleepers(1, "612")
    with pytest.raises(asyncio.CancelledError):
        await job
    await until_sleepers(0, "612")


async def until_sleepers(count: int, seconds: str) -> None:
    """Wait until so many processes of this machine, which is the engine's, sleep so long."""
    async with asyncio.timeout(20):
        while len(await asyncio.to_thread(sleepers, seconds)) != count:  # noqa: ASYNC110 - others'
            await asyncio.sleep(0.05)


def sleepers(seconds: str) -> list[Path]:
    found: list[Path] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]:
                found.append(path)
    return found


@pytest.mark.docker
async def test_missing_base_image_is_named_with_the_command_to_get_it(
    provider: DockerProvider, tmp_path: Path
) -> None:
    lost = context(tmp_path, "ARG V=9\nFROM example.invalid/base:$V")
    with pytest.raises(ProviderUnavailable, match=r"docker pull example\.invalid/base:9"):
        await provider.build_image(lost, timeout_seconds=10)
    with pytest.raises(ConfigError, match=r"Other: cannot be read"):
        await provider.build_image(lost, dockerfile="Other", timeout_seconds=10)


def test_bases_of_a_dockerfile_are_what_it_takes_from_elsewhere() -> None:
    text = """\
# syntax=docker/dockerfile:1
ARG TAG=3.12
ARG BASE="debian:12"
FROM --platform=linux/amd64 python:${TAG}-slim AS build
ARG TAG=ignored
RUN echo \\
  # a comment in between
  FROM nothing
from build as next
FROM $BASE
FROM ${OTHER:-alpine}
COPY --from=build /a /a
FROM scratch
FROM ${UNKNOWN}/x
"""
    assert bases(text) == ["python:3.12-slim", "debian:12", "alpine", "${UNKNOWN}/x"]
