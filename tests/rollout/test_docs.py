"""The docs name every field of run files, tasks and graders, and every outcome class with its flags."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from rock.rollout.inputs.graders import Grader, JudgeGrader, PythonGrader, WeightedGrader
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import Task
from rock.rollout.records.outcome import TABLE, OutcomeClass

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "rollout.md").read_text()
TASKS_PAGE = (DOCS / "tasks.md").read_text()
KINDS = (Grader, PythonGrader, JudgeGrader, WeightedGrader)


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize("name", list(fields(RunFile)))
def test_every_field_of_the_run_file_is_explained(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(
    "name", sorted({*Task.model_fields, *(name for kind in KINDS for name in kind.model_fields)})
)
def test_every_field_of_tasks_and_graders_is_explained(name: str) -> None:
    assert f"| `{name}` |" in TASKS_PAGE


@pytest.mark.parametrize("cls", list(OutcomeClass))
def test_every_outcome_class_is_explained_with_its_flags(cls: OutcomeClass) -> None:
    flags = TABLE[cls]
    yes_no = {True: "yes", False: "no"}
    row = f"| `{cls}` | {flags.cause} | {yes_no[flags.retryable]} | {yes_no[flags.counted]} | "
    assert row + flags.meaning in PAGE
