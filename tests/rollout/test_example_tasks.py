"""Every task in examples/tasks: its oracle scores 1, its wrong solution does not, doing nothing neither."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rock.rollout.building import make_ready
from rock.rollout.episode.agent import run_solution
from rock.rollout.grading import Exam, Grade, Setting, lay_out
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.tasks import load_tasks
from rock.sandbox.base import Provider, SandboxSpec
from tests.rollout.live import new_provider

pytestmark = pytest.mark.userns

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = load_tasks("tasks", base=EXAMPLES)


async def grade_of(
    provider: Provider, loaded: LoadedTask, solution: str | None, folder: Path
) -> Grade:
    loaded = (await make_ready(loaded, provider, "auto")).loaded
    task = loaded.task
    spec = SandboxSpec(workdir=task.workdir, user=task.user)
    assert task.grader is not None
    setting = Setting(provider=provider, spec=spec, bench=None, folder=folder)
    async with await provider.create(spec) as sandbox, Exam(loaded, task.grader, setting) as exam:
        await lay_out(sandbox, loaded)
        await exam.prepare(sandbox)
        if solution is not None:
            result = await run_solution(sandbox, loaded, solution, timeout_seconds=60)
            assert result.ok or solution == "wrong", result.stderr.decode(errors="replace")
        return await exam.grade(sandbox)


def test_there_are_a_dozen_each_with_an_oracle_and_a_wrong_solution() -> None:
    assert len(TASKS) >= 12
    for item in TASKS:
        assert {"oracle", "wrong"} <= item.task.solutions.keys(), item.task_id


@pytest.mark.parametrize("loaded", TASKS, ids=lambda item: item.task_id)
async def test_only_the_oracle_scores(loaded: LoadedTask, tmp_path: Path) -> None:
    async with new_provider() as provider:
        oracle, wrong, nothing = await asyncio.gather(
            grade_of(provider, loaded, "oracle", tmp_path),
            grade_of(provider, loaded, "wrong", tmp_path),
            grade_of(provider, loaded, None, tmp_path),
        )
    assert oracle.reward == 1.0, (oracle.detail, oracle.result)
    assert wrong.reward is not None, wrong.detail
    assert wrong.reward < 1.0
    assert nothing.reward is not None, nothing.detail
    assert nothing.reward < 1.0
