"""Rules for every test: what happens when something the test needs is not on this machine."""

import functools

import docker
import docker.errors
import pytest

from rock.config import read_environment

TEST_IMAGE = "rock-test:latest"
BUSYBOX_IMAGE = "rock-busybox:latest"


@functools.cache
def why_no_docker() -> str | None:
    """What the tests marked `docker` lack here, or None if they can run."""
    try:
        client = docker.DockerClient(base_url=read_environment().docker_host, timeout=10)
    except docker.errors.DockerException as exc:
        return f"no Docker engine answers (scripts/start-docker.sh starts one): {exc}"
    try:
        there = {tag for image in client.images.list() for tag in image.tags}
        missing = {TEST_IMAGE, BUSYBOX_IMAGE} - there
        if missing:
            return f"images are missing: {', '.join(missing)} (tests/images/build.sh makes them)"
    except docker.errors.DockerException as exc:
        return f"the Docker engine does not work: {exc}"
    finally:
        client.close()
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A missing engine or image skips with the reason, or fails where it is required."""
    if item.get_closest_marker("docker") is None:
        return
    reason = why_no_docker()
    if reason is None:
        return
    if read_environment().require_docker:
        pytest.fail(f"ROCK_REQUIRE_DOCKER is set, but {reason}", pytrace=False)
    pytest.skip(reason)
