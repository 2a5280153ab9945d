"""One grading in a real local sandbox: lay out a task, let an agent's script run, grade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rock.rollout.building import make_ready
from rock.rollout.grading import Exam, Grade, Integrity, Setting, lay_out
from rock.rollout.grading.judge import Bench
from rock.rollout.inputs.task import LoadedTask, Task
from rock.sandbox.base import ExecResult, Mount, Provider, Sandbox, SandboxSpec

PYTEST_AT = "/opt/pytest"
PYTEST_ENV = {"PYTHONPATH": PYTEST_AT, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def pytest_mount() -> Mount:
    """The pytest that runs this, for the sandbox's own Python."""
    return Mount(source=Path(pytest.__file__).parents[1], target=PYTEST_AT)


@dataclass(frozen=True)
class Graded:
    grade: Grade
    integrity: Integrity
    agent: ExecResult


async def exam(
    provider: Provider,
    folder: Path,
    script: str | Callable[[Sandbox], Any],
    *,
    grader: dict[str, Any],
    mounts: Sequence[Mount] = (),
    bench: Bench | None = None,
    user: str | None = None,
    attempt: Path | None = None,
    **fields: Any,
) -> Graded:
    """Grade what `script`, as the agent, leaves of the task that `fields` describe."""
    task = Task.model_validate({"task_id": "t", "instruction": "do it", **fields, "grader": grader})
    loaded = (await make_ready(LoadedTask(task, folder), provider, "auto")).loaded
    task = loaded.task
    spec = SandboxSpec(image=task.image, mounts=tuple(mounts), workdir=task.workdir)
    setting = Setting(
        provider=provider, spec=spec, bench=bench, folder=attempt or folder / "attempt"
    )
    assert task.grader is not None
    async with (
        await provider.create(spec) as sandbox,
        Exam(loaded, task.grader, setting) as held,
    ):
        await lay_out(sandbox, loaded)
        await held.prepare(sandbox)
        if callable(script):
            agent = await script(sandbox)
        else:
            agent = await sandbox.exec(["sh", "-c", script], timeout_seconds=30, user=user)
        grade = await held.grade(sandbox)
        held.keep_judging()
        return Graded(grade, held.integrity, agent)
