"""Harbor directories in real runs on docker: their Dockerfile is built, and what fails there is nobody's reward."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.records.outcome import Cause, OutcomeClass
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_records
from rock.rollout.run import run
from rock.sandbox.base import Provider
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.local.local import LocalProvider
from tests.cli.command import rock
from tests.rollout.live import address
from tests.sandbox.test_builds import forget

DOCKERFILE = """\
FROM rock-test:latest
WORKDIR /app
COPY greeting.txt .
RUN sed -i s/hello/goodbye/ greeting.txt && mkdir made
ENV LEVEL=3
"""
SOLVE = """\
#!/bin/bash
set -eu
! [ -e /tests ]
[ "$LEVEL $SIZE" = "3 7" ]
echo "$(cat greeting.txt) world" > greeting.txt
"""
TEST = """\
#!/bin/bash
grep -qx 'goodbye world' greeting.txt && [ -d made ] && echo 1 > /logs/verifier/reward.txt && exit
echo 0 > /logs/verifier/reward.txt
"""


def harbor_task(folder: Path, dockerfile: str = DOCKERFILE) -> Path:
    """A task whose image was never built before."""
    task = folder / "greet"
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n[environment]\nbuild_timeout_sec = 60\nenv = {SIZE = "7"}\n',
        "instruction.md": "Greet the world.\n",
        "environment/Dockerfile": dockerfile,
        "environment/greeting.txt": f"hello\n{time.time_ns()}\n",
        "tests/test.sh": TEST,
        "solution/solve.sh": SOLVE.replace("cat", "head -n 1"),
        "solution/wrong.sh": "#!/bin/sh\ntrue\n",
    }.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task


def fields(**more: Any) -> dict[str, Any]:
    return {
        "tasks": "greet",
        "agent": {"solution": "oracle", "timeout_seconds": 30},
        "build": "offline",
        "infra": {"max_attempts": 1, "backoff_seconds": 0.01, "max_failed_fraction": 1},
        "consume_timeout_seconds": 0,
        **more,
    }


async def ended(folder: Path, provider: Provider, **more: Any) -> Record:
    """How the only episode of a run ended."""
    config = RunFile.model_validate(fields(**more) | {"tasks": str(folder / "greet")})
    async with ServiceProcess(folder / "service", exit_with_parent=True) as service:
        await run(config, directory=folder / "run", service=address(service), provider=provider)
    (record,) = read_records(folder / "run")
    return record


@pytest.mark.docker
async def test_rock_run_builds_the_image_once_and_its_oracle_scores(tmp_path: Path) -> None:
    harbor_task(tmp_path)
    given = fields(provider="docker", episodes_per_task=2, concurrency=2)
    (tmp_path / "run.yaml").write_text(json.dumps(given))
    done = await rock("run", "run.yaml", "--out", "out", home=tmp_path)
    assert done.code == 0, done.err
    records = read_records(tmp_path / "out")
    assert [record.outcome.reward for record in records] == [1.0, 1.0]
    logs = {path.read_text() for path in (tmp_path / "out").rglob("build.log")}
    assert len(logs) == 1  # there was one build, whoever waited for it
    log = logs.pop()
    assert "RUN sed -i" in log
    await forget(log)


@pytest.mark.docker
async def test_wrong_solution_does_not_score_in_a_built_image(tmp_path: Path) -> None:
    harbor_task(tmp_path)
    async with DockerProvider() as provider:
        record = await ended(tmp_path, provider, agent={"solution": "wrong"})
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.FAILED, 0.0)
    (log,) = (tmp_path / "run").rglob("build.log")
    await forget(log.read_text())


@pytest.mark.docker
async def test_failed_build_is_the_infrastructures_and_its_log_is_kept(tmp_path: Path) -> None:
    harbor_task(tmp_path, "FROM rock-test:latest\nRUN echo nearly there; exit 3\n")
    async with DockerProvider() as provider:
        record = await ended(tmp_path, provider)
    assert record.outcome.cls is OutcomeClass.SANDBOX_CREATE_FAILED
    assert (record.outcome.cause, record.outcome.reward) == (Cause.INFRA, None)
    assert "nearly there" in record.outcome.detail
    assert "non-zero code: 3" in record.outcome.detail
    (log,) = (tmp_path / "run").rglob("build.log")
    assert "nearly there" in log.read_text()


@pytest.mark.docker
async def test_missing_base_image_is_named_with_the_command_to_get_it(tmp_path: Path) -> None:
    harbor_task(tmp_path, "FROM example.invalid/missing:1\nRUN true\n")
    async with DockerProvider() as provider:
        record = await ended(tmp_path, provider)
    assert record.outcome.cause is Cause.INFRA
    assert "FROM example.invalid/missing:1" in record.outcome.detail
    assert "docker pull example.invalid/missing:1" in record.outcome.detail


@pytest.mark.userns
async def test_without_a_builder_a_dockerfile_that_installs_is_refused_unless_one_says_never(
    tmp_path: Path,
) -> None:
    harbor_task(tmp_path, "FROM debian:12\nWORKDIR /app\nCOPY greeting.txt .\nRUN mkdir made\n")
    async with LocalProvider() as provider:
        with pytest.raises(ConfigError, match=r"greet: its Dockerfile does more than copy files"):
            await ended(tmp_path, provider)
        record = await ended(tmp_path, provider, build="never")
    # Its files are there and what RUN made is not, so the oracle's own check of LEVEL ends it.
    assert record.outcome.cls is OutcomeClass.AGENT_NONZERO_EXIT
