"""A machine without an engine skips what needs one and says so; where it is required, it fails."""

import asyncio
import sys
from pathlib import Path

from rock import process
from rock.config import inherited_environment

ROOT = Path(__file__).parent.parent
ONE_DOCKER_TEST = (
    "tests/sandbox/test_engine.py::test_the_real_engine_says_who_it_is_and_what_it_lacks"
)


async def run_without_an_engine(folder: Path, *, required: str) -> tuple[int, str]:
    """Exit code and output of pytest on one test that needs an engine, where none is."""
    env = {
        **inherited_environment(),
        "DOCKER_HOST": f"unix://{folder}/absent.sock",
        "ROCK_REQUIRE_DOCKER": required,
    }
    child = await process.start(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", ONE_DOCKER_TEST],
        env=env,
        cwd=ROOT,
        stdout=process.PIPE,
    )
    try:
        out, _ = await asyncio.wait_for(child.communicate(), 50)
    finally:
        await process.stop(child)
    assert child.returncode is not None
    return child.returncode, out.decode()


async def test_without_an_engine_the_summary_names_what_did_not_run_and_why(
    tmp_path: Path,
) -> None:
    code, out = await run_without_an_engine(tmp_path, required="0")
    assert code == 0
    assert "1 skipped" in out
    summary = " ".join(out.partition("short test summary info")[2].split())
    assert "no Docker engine answers" in summary


async def test_where_docker_is_required_a_missing_engine_is_a_failure(tmp_path: Path) -> None:
    code, out = await run_without_an_engine(tmp_path, required="1")
    assert code == 1
    assert "ROCK_REQUIRE_DOCKER is set, but no Docker engine answers" in out
