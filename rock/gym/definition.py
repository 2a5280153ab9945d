"""What an environment is made from: a source, and where and how it runs.

gym:NAME             a name in Gymnasium's registry
gem:NAME             a name in GEM's registry
call:MODULE:FUNCTION a function that returns an object with `reset` and `step`
task:TASKS[#TASK_ID] a task with a grader, as run files name them; actions are shell scripts
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rock.config import Strict

KINDS = ("gym", "gem", "call", "task")


def _known_source(text: str) -> str:
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        raise ValueError(f"expected KIND:NAME with a kind of {', '.join(KINDS)}")
    if kind == "call" and ":" not in rest:
        raise ValueError("expected call:MODULE:FUNCTION")
    return text


class Definition(Strict):
    """How to make an environment. Values a person writes; checked as a run file is."""

    source: Annotated[str, AfterValidator(_known_source)]
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What the environment itself is made with."""
    modules: list[str] = Field(default=[])
    """Imported first, in the sandbox: those that register the name."""
    python: str | None = None
    """The interpreter with the environment's dependencies: a path on this host (a virtual environment's),
    or in `image` if there is one. Null: this interpreter, or the image's `python3`."""
    path: list[Path] = Field(default=[])
    """Folders of this host that the interpreter imports from, besides its own."""
    mounts: dict[str, Path] = Field(default_factory=dict)
    """Path in the sandbox → path on this host, read-only."""
    image: str | None = None
    provider: Literal["auto", "docker", "local"] = "auto"
    memory_bytes: Annotated[int, Field(gt=0)] = 2 * 1024**3
    start_seconds: Annotated[float, Field(gt=0)] = 120.0
    step_seconds: Annotated[float, Field(gt=0)] = 60.0
    """How long a reset, a step or a picture may take."""
    restores: Annotated[int, Field(ge=0)] = 2
    """How often in a row an environment that died is brought back before it is given up."""
    max_steps: Annotated[int, Field(gt=0)] = 50
    """Of a task: actions until the episode is truncated, and graded."""

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]

    @property
    def name(self) -> str:
        return self.source.partition(":")[2]
