"""Rules for every test: what happens when something the test needs is not on this machine."""

import asyncio
import functools

import pytest

from rock.config import read_environment
from rock.errors import SandboxError
from rock.sandbox.base import Availability
from rock.sandbox.docker.engine import Engine
from rock.sandbox.local import LocalProvider

TEST_IMAGE = "rock-test:latest"
BUSYBOX_IMAGE = "rock-busybox:latest"


@functools.cache
def why_no_docker() -> str | None:
    """What the tests marked `docker` lack here, or None if they can run."""
    return asyncio.run(_look_for_docker())


async def _look_for_docker() -> str | None:
    engine = Engine(read_environment().docker_host, timeout_seconds=20)
    try:
        for name in (TEST_IMAGE, BUSYBOX_IMAGE):
            if await engine.image(name) is None:
                return f"the image {name} is missing (tests/images/build.sh makes it)"
    except SandboxError as exc:
        return exc.message
    finally:
        await engine.close()
    return None


@functools.cache
def why_no_user_namespaces() -> str | None:
    """What the tests marked `userns` lack here, or None if they can run."""
    found = asyncio.run(_look_for_user_namespaces())
    return None if found.available else f"{found.detail} ({found.remedy})"


async def _look_for_user_namespaces() -> Availability:
    async with LocalProvider() as provider:
        return await provider.probe()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is missing skips a test with the reason; Docker fails it where it is required."""
    if item.get_closest_marker("userns") and (reason := why_no_user_namespaces()):
        pytest.skip(reason)
    if item.get_closest_marker("docker") and (reason := why_no_docker()):
        if read_environment().require_docker:
            pytest.fail(f"ROCK_REQUIRE_DOCKER is set, but {reason}", pytrace=False)
        pytest.skip(reason)
