"""Known agents, named by their presets alone, do the shipped tasks: what a user's first run is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rock.errors import CallFailed, ProviderUnavailable
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import Line, tool_call, turn_of
from rock.modelservice.wire import Lease
from rock.rollout.inputs.presets import PRESETS
from rock.rollout.inputs.runfile import load_run_file
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.installing import build_with
from rock.rollout.records.outcome import Cause, OutcomeClass
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_records
from rock.rollout.run import run
from rock.rollout.tasks import load_tasks
from rock.sandbox.base import Provider
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.local.local import LocalProvider
from tests.clients.catalog import CLIENTS, clients_dir, installed
from tests.clients.stage import shell
from tests.rollout.live import address, answering

pytestmark = [pytest.mark.clients, pytest.mark.userns, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
TASK = "fix-slugify"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def script_of(item: LoadedTask, name: str) -> str:
    """What that solution does, as one script."""
    solution = item.task.solutions[name]
    variables = "".join(f"export {key}={value}\n" for key, value in solution.env.items())
    file = solution.files.get("solve.sh" if name == "oracle" else f"{name}.sh")
    source = file.source if file else None
    script = (item.folder / source).read_text() if source else solution.command[2]
    return variables + script


def scripts(name: str) -> dict[str, str]:
    """Task → what that solution of it does."""
    return {item.task_id: script_of(item, name) for item in load_tasks("tasks", base=EXAMPLES)}


def require(client: str) -> None:
    if not installed(CLIENTS[client]):
        pytest.fail(f"not installed: {client}; run `make test-clients`", pytrace=False)


async def records_of(
    folder: Path,
    provider: Provider,
    answer: Callable[[Lease], Line],
    *,
    agent: dict[str, Any],
    tasks: str = f"tasks/{TASK}.yaml",
    **fields: Any,
) -> list[Record]:
    """Every episode of a run of that agent, whose model answers so."""
    (folder / "run.yaml").write_text(
        json.dumps(
            {
                "tasks": str(EXAMPLES / tasks),
                "agent": {"timeout_seconds": 120, **agent},
                "concurrency": 2,
                "build": "never",
                "infra": {"max_attempts": 1, "max_failed_fraction": 1},
                "consume_timeout_seconds": 0,
                **fields,
            }
        )
    )
    async with (
        ServiceProcess(folder / "service", exit_with_parent=True) as service,
        answering(service, answer),
    ):
        result = await run(
            load_run_file(folder / "run.yaml"),
            directory=folder / "run",
            service=address(service),
            provider=provider,
        )
    return read_records(result.directory)


async def test_mini_swe_agent_solves_all_shipped_tasks_when_its_model_knows_how_and_only_then(
    tmp_path: Path,
) -> None:
    """Of each task there are two episodes; in the second one the model knows a wrong solution."""
    require("mini-swe-agent")
    known = [scripts("oracle"), scripts("wrong")]

    def answer(lease: Lease) -> Line:
        script = known[int(lease.labels["index"])][lease.labels["task_id"]]
        return tool_call("bash", command=SUBMIT if turn_of(lease) else script)

    async with LocalProvider() as provider:
        records = await records_of(
            tmp_path,
            provider,
            answer,
            agent={"preset": "mini-swe-agent"},
            tasks="tasks",
            episodes_per_task=2,
            concurrency=3,
        )
    assert len(records) == 2 * len(known[0])
    solved = {(record.task_id, record.index) for record in records if record.outcome.solved}
    assert solved == {(task_id, 0) for task_id in known[0]}
    assert {r.outcome.cls for r in records if r.index == 1} == {OutcomeClass.FAILED}
    assert {record.usage.turns for record in records} == {2}
    assert {record.usage.rows for record in records} == {1}


def whole_files(script: str) -> str:
    """The files that a script writes, as aider takes them."""
    found = re.findall(r"cat > (\S+) <<'END'\n(.*?)^END$", script, re.MULTILINE | re.DOTALL)
    assert found
    return "\n\n".join(f"{name}\n```\n{text}```" for name, text in found)


async def test_aider_solves_a_task_when_its_model_knows_how_and_only_then(tmp_path: Path) -> None:
    require("aider")
    answers = [whole_files(scripts("oracle")[TASK]), "I would rather not."]
    async with LocalProvider() as provider:
        records = await records_of(
            tmp_path,
            provider,
            lambda lease: answers[int(lease.labels["index"])],
            agent={"preset": "aider"},
            episodes_per_task=2,
        )
    classes = [record.outcome.cls for record in records]
    assert classes == [OutcomeClass.SOLVED, OutcomeClass.FAILED]
    # When an answer names files that it has not seen, it shows them and asks again.
    assert [record.usage.rows for record in records] == [record.usage.turns for record in records]


async def test_aider_whose_model_fails_is_no_failure_of_the_policy(tmp_path: Path) -> None:
    """It exits with code 0 all the same."""
    require("aider")

    def fail(lease: Lease) -> Line:
        return CallFailed("the engine is gone")

    async with LocalProvider() as provider:
        (record,) = await records_of(
            tmp_path, provider, fail, agent={"preset": "aider", "timeout_seconds": 100}
        )
    assert record.outcome.cls is OutcomeClass.MODEL_FAILED
    assert (record.outcome.cause, record.outcome.reward) == (Cause.INFRA, None)


async def image_with(preset: str, base: str, provider: DockerProvider) -> str:
    """An image that has the preset; what was built before is there."""
    try:
        built = await build_with(
            PRESETS[preset],
            clients_dir(),
            image=base,
            images=provider.images,
            network="host",  # to PyPI, as this machine reaches it
        )
    except ProviderUnavailable as exc:
        pytest.fail(f"{exc.message}; run `make test-clients`", pytrace=False)
    return built.reference


@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("preset", "base"), [("openhands", "rock-trixie:latest"), ("qwen-code", "rock-test:latest")]
)
async def test_preset_in_an_image_solves_a_task(tmp_path: Path, preset: str, base: str) -> None:
    known = scripts("oracle")[TASK]
    last: Line = "It is done."
    if preset == "openhands":
        last = tool_call("finish", message="It is done.")

    def answer(lease: Lease) -> Line:
        return last if turn_of(lease) else shell(preset, known)

    async with DockerProvider() as provider:
        (record,) = await records_of(
            tmp_path,
            provider,
            answer,
            agent={"preset": preset, "install": "image"},
            image=await image_with(preset, base, provider),
        )
    assert record.outcome.cls is OutcomeClass.SOLVED, record.outcome.detail
    assert (record.usage.turns, record.usage.rows) == (2, 1)


@pytest.mark.docker
@pytest.mark.timeout(900)
async def test_openhands_ends_with_an_answer_that_calls_no_tool(tmp_path: Path) -> None:
    async with DockerProvider() as provider:
        (record,) = await records_of(
            tmp_path,
            provider,
            lambda lease: "I cannot do that.",
            agent={"preset": "openhands", "install": "image"},
            image=await image_with("openhands", "rock-trixie:latest", provider),
        )
    assert (record.outcome.cls, record.usage.turns) == (OutcomeClass.FAILED, 1)
