"""What an environment is made from: a source, and where and how it runs.

    gym:NAME             a name in Gymnasium's registry
    gem:NAME             a name in GEM's registry
    call:MODULE:FUNCTION a function that returns an object with `reset` and `step`
    task:TASKS[#TASK_ID] a task with a grader, as run files name them; actions are shell scripts
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rock.config import Strict
from rock.sandbox.base import Limits, Mount, SandboxSpec

KINDS = ("gym", "gem", "call", "task")
BASE_MODULE_PATHS = ("/usr", "/lib")
"""Where a host's own Python may be; those directories are in every sandbox without an image."""


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

    def interpreter(self) -> str:
        """What starts Python in the sandbox."""
        if self.python is not None:
            return self.python
        return "python3" if self.image is not None else sys.executable

    def spec(self) -> SandboxSpec:
        """The sandbox of an environment that is a Python program."""
        mounts = {**self.mounts, **{str(path.absolute()): path.absolute() for path in self.path}}
        if self.image is None:
            mounts = {**python_mounts(Path(self.interpreter())), **mounts}
        return SandboxSpec(
            image=self.image,
            mounts=tuple(Mount(source=host, target=inside) for inside, host in mounts.items()),
            env={"PYTHONPATH": ":".join(str(path.absolute()) for path in self.path)},
            limits=Limits(memory_bytes=self.memory_bytes),
            labels={"environment": self.source[:60]},
        )


def python_mounts(interpreter: Path) -> dict[str, Path]:
    """What a Python of this host needs in a sandbox of host directories, at the same paths."""
    prefixes = [interpreter.absolute().parent.parent]
    config = prefixes[0] / "pyvenv.cfg"
    if config.is_file():
        for line in config.read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":  # PEP 405
                prefixes += [Path(value.strip()).parent, Path(value.strip()).resolve().parent]
    prefixes.append(interpreter.resolve().parent.parent)
    return {str(path): path for path in prefixes if not _is_shown(path)}


def _is_shown(path: Path) -> bool:
    return path == Path("/") or any(path.is_relative_to(base) for base in BASE_MODULE_PATHS)
