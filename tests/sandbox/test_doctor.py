"""The doctor says what works here and what would help, and chooses accordingly."""

from pathlib import Path

import pytest

from rock.config import read_environment
from rock.errors import ProviderUnavailable
from rock.sandbox.docker import DockerProvider
from rock.sandbox.doctor import choose_provider, examine, first_working


@pytest.mark.docker
async def test_docker_is_used_where_an_engine_works() -> None:
    async with await choose_provider(read_environment().docker_host) as provider:
        assert provider.name == "docker"


@pytest.mark.userns
async def test_local_is_used_where_no_engine_answers(tmp_path: Path) -> None:
    async with await choose_provider(f"unix://{tmp_path}/absent.sock") as provider:
        assert provider.name == "local"


async def test_with_nothing_that_works_every_reason_and_remedy_is_told(tmp_path: Path) -> None:
    candidates = [DockerProvider(host=f"unix://{tmp_path}/{name}.sock") for name in ("a", "b")]
    with pytest.raises(ProviderUnavailable) as caught:
        await first_working(candidates)
    message = caught.value.message
    assert "a.sock" in message
    assert "b.sock" in message
    assert message.count("start an engine") >= 2


async def test_a_missing_engine_fails_one_check_with_a_remedy_and_stops_no_other(
    tmp_path: Path,
) -> None:
    checks = {check.name: check for check in await examine(f"unix://{tmp_path}/absent.sock")}
    docker = checks["docker sandboxes"]
    assert not docker.ok
    assert docker.remedy is not None
    assert "docker: the model without a network" not in checks
    assert {
        "local sandboxes",
        "space for temporary files",
        "open files per process",
        "inotify instances",
        "process ids",
        "processes in this control group",
    } <= set(checks)
    assert all(check.detail for check in checks.values())
    assert all(check.remedy or check.ok for check in checks.values())


@pytest.mark.docker
async def test_a_working_engine_is_tried_with_a_socket_inside_a_sandbox() -> None:
    checks = {check.name: check for check in await examine(read_environment().docker_host)}
    assert checks["docker sandboxes"].ok
    listening = checks["docker: the model without a network"]
    assert listening.ok, listening
    assert "127.0.0.1" in listening.detail
