"""A known agent, named by its preset alone, does the shipped tasks: what a user's first run is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import Line, tool_call, turn_of
from rock.modelservice.wire import Lease
from rock.rollout.inputs.runfile import load_run_file
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.records.rundir import read_records
from rock.rollout.run import run
from rock.rollout.tasks import load_tasks
from rock.sandbox.local import LocalProvider
from tests.clients.catalog import CLIENTS, installed
from tests.rollout.live import address, answering

pytestmark = [pytest.mark.clients, pytest.mark.userns, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def script_of(item: LoadedTask, name: str) -> str:
    """What that solution does, as one script."""
    solution = item.task.solutions[name]
    variables = "".join(f"export {key}={value}\n" for key, value in solution.env.items())
    source = solution.files["solve.sh"].source if solution.files else None
    script = (item.folder / source).read_text() if source else solution.command[2]
    return variables + script


async def test_mini_swe_agent_solves_the_shipped_tasks_when_its_model_knows_how(
    tmp_path: Path,
) -> None:
    """The scripted model knows the oracle of every task but one, of which it knows the wrong one."""
    if not installed(CLIENTS["mini-swe-agent"]):
        pytest.fail("not installed: mini-swe-agent; run `make test-clients`", pytrace=False)
    known = {
        item.task_id: script_of(item, "wrong" if item.task_id == "dedupe" else "oracle")
        for item in load_tasks("tasks", base=EXAMPLES)
    }

    def answer(lease: Lease) -> Line:
        script = known[lease.labels["task_id"]]
        return tool_call("bash", command=SUBMIT if turn_of(lease) else script)

    run_file = tmp_path / "run.yaml"
    run_file.write_text(
        json.dumps(
            {
                "tasks": str(EXAMPLES / "tasks"),
                "agent": {"preset": "mini-swe-agent", "timeout_seconds": 120},
                "concurrency": 2,
                "consume_timeout_seconds": 0,
            }
        )
    )
    async with (
        LocalProvider() as provider,
        ServiceProcess(tmp_path / "service", exit_with_parent=True) as service,
        answering(service, answer),
    ):
        result = await run(
            load_run_file(run_file),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    ends = {record.task_id: record for record in read_records(result.directory)}
    assert {name for name, record in ends.items() if not record.outcome.solved} == {"dedupe"}
    assert ends["dedupe"].outcome.cls is OutcomeClass.FAILED
    assert {record.usage.turns for record in ends.values()} == {2}
    assert {record.usage.rows for record in ends.values()} == {1}
