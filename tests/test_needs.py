"""What a machine lacks skips the tests that need it and is named; where it is required, they fail."""

import asyncio
import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment

ROOT = Path(__file__).parent.parent
ONE_DOCKER_TEST = (
    "tests/sandbox/test_engine.py::test_the_real_engine_says_who_it_is_and_what_it_lacks"
)
SMALL_DISK_TESTS = "tests/modelservice/faults/test_small_disk.py"


async def run_bare(folder: Path, test: str, *, required: str) -> tuple[int, str]:
    """Exit code and output of pytest on one test, where no engine answers and no program is found."""
    env = {
        **inherited_environment(),
        "DOCKER_HOST": f"unix://{folder}/absent.sock",
        "PATH": str(folder),
        "ROCK_REQUIRE": required,
    }
    child = await process.start(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test],
        env=env,
        cwd=ROOT,
        stdout=process.PIPE,
        stderr=process.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(child.communicate(), 50)
    finally:
        await process.stop(child)
    assert child.returncode is not None
    return child.returncode, " ".join((out + err).decode().split())


async def test_without_an_engine_the_summary_names_what_did_not_run_and_why(
    tmp_path: Path,
) -> None:
    code, out = await run_bare(tmp_path, ONE_DOCKER_TEST, required="userns")
    assert code == 0
    assert "1 skipped" in out
    assert "no Docker engine answers" in out.partition("short test summary info")[2]


@pytest.mark.parametrize(
    ("test", "name", "reason"),
    [
        (ONE_DOCKER_TEST, "docker", "no Docker engine answers"),
        (SMALL_DISK_TESTS, "mounts", "nothing can be mounted here"),
    ],
)
async def test_where_something_is_required_its_absence_is_a_failure(
    tmp_path: Path, test: str, name: str, reason: str
) -> None:
    code, out = await run_bare(tmp_path, test, required=f"busybox,{name}")
    assert code == 1
    assert f"ROCK_REQUIRE has {name}, but {reason}" in out


async def test_what_no_test_needs_cannot_be_required(tmp_path: Path) -> None:
    code, out = await run_bare(tmp_path, ONE_DOCKER_TEST, required="dokcer")
    assert code == 4
    assert "ROCK_REQUIRE: expected some of docker, userns" in out
    assert "got dokcer" in out
