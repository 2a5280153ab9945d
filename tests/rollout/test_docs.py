"""docs/rollout.md names every field, every outcome class with its flags, and every placeholder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from rock.rollout.graders import Grader
from rock.rollout.outcome import TABLE, OutcomeClass
from rock.rollout.runfile import RunFile
from rock.rollout.task import Task

PAGE = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text()


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


@pytest.mark.parametrize("name", [*Task.model_fields, *Grader.model_fields])
def test_every_field_of_tasks_and_graders_is_explained(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("cls", list(OutcomeClass))
def test_every_outcome_class_is_explained_with_its_flags(cls: OutcomeClass) -> None:
    flags = TABLE[cls]
    yes_no = {True: "yes", False: "no"}
    row = f"| `{cls}` | {flags.cause} | {yes_no[flags.retryable]} | {yes_no[flags.counted]} | "
    assert row + flags.meaning in PAGE
