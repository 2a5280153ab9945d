"""`retry_from: setup` on docker, in a real `rock run`: a sandbox that fails is followed by its own setup."""

import asyncio
import json
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from tests.cli.command import started
from tests.cli.test_run import write
from tests.needs import TEST_IMAGE
from tests.rollout.live import wait_until

pytestmark = [pytest.mark.docker, pytest.mark.soak, pytest.mark.timeout(180)]

SETUP = "mktemp /host/ran.XXXXXX; mkdir -p made/deep; echo made > made/deep/file; ln -s file made/deep/link"
AGENT = """
if mkdir /host/first 2>/dev/null; then echo lost > lost.txt; sleep 600; fi
cp made/deep/link answer.txt
"""


async def docker(*argv: str) -> str:
    asked = await process.start(["docker", *argv], env=inherited_environment(), stdout=process.PIPE)
    out, _ = await asyncio.wait_for(asked.communicate(), 60)
    return out.decode()


@pytest.mark.parametrize(
    ("fault", "retry_from", "setups"),
    [("kill", "setup", 1), ("kill", "start", 2), ("pause", "setup", 1)],
)
async def test_an_attempt_after_a_container_that_failed_begins_where_the_run_file_says(
    tmp_path: Path, fault: str, retry_from: str, setups: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    write(
        tmp_path,
        agent={
            "command": ["sh", "-c", AGENT],
            "requires_model": False,
            # A container that is frozen is noticed when somebody looks for signs of life in it.
            "no_progress_seconds": 4 if fault == "pause" else None,
            "mounts": [{"source": "shared", "target": "/host", "read_only": False}],
        },
        grader={"command": ["sh", "-c", 'grep -qx made "$0/answer.txt"', "{workdir}"]},
        provider="docker",
        image=TEST_IMAGE,
        infra={"retry_from": retry_from, "backoff_seconds": 0.1},
    )
    tasks = json.loads((tmp_path / "tasks.jsonl").read_text())
    tasks["setup"] = ["sh", "-ec", SETUP]
    (tmp_path / "tasks.jsonl").write_text(json.dumps(tasks) + "\n")
    async with started("run", "run.yaml", "--out", "out", home=tmp_path) as running:
        await wait_until((shared / "first").exists, seconds=60)
        run_id = json.loads((tmp_path / "out/run.json").read_bytes())["run_id"]
        label = f"label=run_id={run_id}"
        (container,) = (await docker("ps", "--quiet", "--filter", label)).split()
        await docker(fault, container)
        out, err = await asyncio.wait_for(running.communicate(), 120)
    assert (running.returncode, err) == (0, b""), out.decode() + err.decode()
    attempts = tmp_path / "out/episodes/a/0"
    first, second = (
        json.loads((attempts / name / "record.json").read_bytes())
        for name in ("attempt-1", "attempt-2")
    )
    assert (first["outcome"]["class"], first["sandbox_origin"]) == ("sandbox_died", "new")
    assert second["outcome"]["class"] == "solved"
    assert second["sandbox_origin"] == ("snapshot" if retry_from == "setup" else "new")
    assert len(list(shared.glob("ran.*"))) == setups
    # Nothing of the first agent's is in what the second one left.
    assert not (attempts / "attempt-2/workspace/lost.txt").exists()
    assert (attempts / "attempt-2/workspace/made/deep/link").is_symlink()
    assert await docker("ps", "--all", "--quiet", "--filter", label) == ""
