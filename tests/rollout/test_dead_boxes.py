"""A sandbox that dies under a setup or a grader is nobody's failed command: it is `sandbox_died`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rock.errors import SandboxDied, SandboxFileError
from rock.rollout.grading import Exam, Setting, lay_out
from rock.rollout.inputs.task import LoadedTask, Task
from rock.sandbox.base import Sandbox, SandboxSpec
from tests.rollout.live import new_provider, wait_until

pytestmark = pytest.mark.userns

WAIT = ["sh", "-c", "touch /workspace/begun; sleep 600"]
SWALLOWS = f"""
def grade(work):
    try:
        return 1.0 if work.run({WAIT!r}).ok else 0.0
    except Exception:
        return 0.0
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with new_provider() as provider, await provider.create(SandboxSpec()) as made:
        yield made


def task(**fields: Any) -> Task:
    return Task.model_validate({"task_id": "t", "instruction": "x", **fields})


async def dies_during(sandbox: Sandbox, work: asyncio.Future[Any]) -> None:
    """`work` has begun to run its command when the sandbox goes."""

    async def begun() -> bool:
        with contextlib.suppress(SandboxFileError):
            return await sandbox.read_file("/workspace/begun") == b""
        return work.done()

    await wait_until(begun)
    await sandbox.stop()
    with pytest.raises(SandboxDied):
        await work


async def test_a_sandbox_that_dies_in_its_setup_makes_no_task_invalid(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    loaded = LoadedTask(task(setup=WAIT), tmp_path)
    await dies_during(sandbox, asyncio.ensure_future(lay_out(sandbox, loaded)))


async def test_a_function_that_takes_a_dead_sandbox_for_bad_work_gives_no_reward(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "score.py").write_text(SWALLOWS)
    loaded = LoadedTask(task(grader={"python": "score.py:grade"}), tmp_path)
    assert loaded.task.grader is not None
    async with new_provider() as provider:
        setting = Setting(provider=provider, spec=SandboxSpec(), bench=None, folder=tmp_path)
        async with Exam(loaded, loaded.task.grader, setting) as exam:
            await dies_during(sandbox, asyncio.ensure_future(exam.grade(sandbox)))
