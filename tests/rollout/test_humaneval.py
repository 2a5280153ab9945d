"""All of HumanEval through the real grader: the published solutions score 1.0, empty files 0.0."""

import asyncio

import pytest

from rock.rollout.grading import grade
from rock.rollout.inputs.graders import Grader
from rock.rollout.tasks import humaneval
from rock.sandbox.base import Provider, SandboxSpec
from tests.rollout.live import new_provider

SANDBOXES = 4


@pytest.mark.userns
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "every",
    [pytest.param(1, id="all 164", marks=pytest.mark.soak), pytest.param(8, id="one of eight")],
)
async def test_problems_tell_the_published_solution_from_an_empty_file(every: int) -> None:
    tasks = humaneval.load("")[::every]
    solutions = {row["task_id"]: humaneval.oracle(row) for row in humaneval.problems()}
    waiting = [(item, text) for item in tasks for text in (solutions[item.task_id], "")]
    rewards: dict[tuple[str, bool], float | None] = {}

    async def worker(provider: Provider) -> None:
        async with await provider.create(SandboxSpec()) as sandbox:
            while waiting:
                item, text = waiting.pop()
                workdir = f"/workspace/{len(waiting)}"
                await sandbox.write_file(f"{workdir}/solution.py", text.encode())
                assert isinstance(item.task.grader, Grader)
                result = await grade(sandbox, item.task.grader, workdir=workdir, folder=item.folder)
                rewards[item.task_id, bool(text)] = result.reward

    async with new_provider() as provider, asyncio.TaskGroup() as group:
        for _ in range(SANDBOXES):
            group.create_task(worker(provider))
    assert len(rewards) == 2 * len(range(0, humaneval.COUNT, every))
    wrong = {key: reward for key, reward in rewards.items() if reward != float(key[1])}
    assert wrong == {}
