"""What to solve and how it is scored: the values that every task format is read into.

A `Task` is an instruction, the files the agent finds in its working directory, and a grader. It may
bring *solutions*: commands that do the work, or do it wrong, so that a grader can be tried out.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field

from rock.config import Strict
from rock.rollout.inputs.fields import (
    AbsolutePath,
    Argument,
    Argv,
    BoxPath,
    SafePath,
    Seconds,
    Variables,
)
from rock.rollout.inputs.graders import AnyGrader
from rock.rollout.inputs.networks import Reachable
from rock.rollout.inputs.taskfiles import Files, TaskFile, check_source

MAX_ARGUMENT_BYTES = 100_000
"""Linux takes 128 KiB in one argument; the rest is room for what a command puts around it."""


def _fits_an_argument(text: str) -> str:
    size = len(text.encode())
    if size > MAX_ARGUMENT_BYTES or "\0" in text:
        raise ValueError(
            f"expected at most {MAX_ARGUMENT_BYTES} bytes and no NUL, since an agent gets it as one "
            f"argument ({size} bytes); put more into a file of the task"
        )
    return text


def _printable(text: str) -> str:
    """Ids are shown in tables, typed in commands and given as arguments."""
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
        raise ValueError("expected text without control characters, such as line ends")
    return text


def _from_script(value: Any) -> Any:
    return {"command": ["sh", "-euc", value]} if isinstance(value, str) else value


class Solution(Strict):
    """A way to do the task without a model: the oracle, or a wrong one that must not score.

    As an agent it runs like any other, with `{solution}` standing for the directory that holds its
    `files`. A text alone is a script for `sh -eu`, run in the working directory.
    """

    command: Argv
    files: Files = Field(default_factory=dict)
    at: AbsolutePath | None = None
    """A fixed place for `files`; null: a directory under a new name."""
    env: Variables = Field(default_factory=dict)
    user: Argument | None = None


class Timeouts(Strict):
    """Bounds of one task that override the run's."""

    setup_seconds: Seconds | None = None
    agent_seconds: Seconds | None = None
    grade_seconds: Seconds | None = None


class Build(Strict):
    """An image of the task's own, of a Dockerfile beside it, for providers that build images."""

    context: SafePath
    """The folder that is built, relative to the task file."""
    dockerfile: SafePath = "Dockerfile"
    timeout_seconds: Seconds = 600.0
    otherwise: Files = Field(default_factory=dict)
    """What is put into the working directory where no image is built."""
    only_files: bool = False
    """Whether `otherwise` is all that the image is needed for; if not, the run file must say that the
    task is to do without."""


class Task(Strict):
    """One problem."""

    task_id: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
    instruction: Annotated[str, Field(min_length=1), AfterValidator(_fits_an_argument)]
    files: Files = Field(default_factory=dict)
    workdir: AbsolutePath = "/workspace"
    image: Argument | None = None
    build: Build | None = None
    """How the image is built, in place of `image`."""
    env: Variables = Field(default_factory=dict)
    """Variables of setup, agent and grader, over those of the image."""
    user: Argument | None = None
    """Who setup, agent and grader are, unless they say; `image` is the image's own user, null the
    provider's safe default."""
    setup: list[Argument] = Field(default=[])
    """A command that runs in the working directory when `files` are there, before the agent."""
    hide: list[BoxPath] = Field(default=[])
    """Paths of the image that the agent must not see, such as tests and solutions. They are taken
    out of the sandbox before the agent starts and put back for the grader."""
    git: Literal["keep", "squash", "remove"] = "keep"
    """The history in the working directory: left alone, made one commit, or taken away."""
    grader: AnyGrader | None = None
    solutions: dict[str, Annotated[Solution, BeforeValidator(_from_script)]] = Field(
        default_factory=dict
    )
    """By name; `oracle` is the right one. An agent never sees them unless it is one."""
    tags: list[str] = Field(default_factory=list)
    """Kinds that the task is of, for quotas and curricula."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    timeouts: Timeouts = Timeouts()
    network: Reachable | None = None
    """What the agent and the setup may reach; null is the run's, and more than that is refused."""
    grade_network: Reachable | None = None
    """The same while the work is graded."""
    allowed_hosts: list[str] | None = None
    """Hosts of `allowlist`; null is the run's."""
    retry_from: Literal["start", "setup"] | None = None
    """Where a further attempt begins; null is the run's `infra.retry_from`."""


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task and the host folder that its `source` files are beside."""

    task: Task
    folder: Path

    @property
    def task_id(self) -> str:
        return self.task.task_id


def _all_files(task: Task) -> Iterator[tuple[str, TaskFile]]:
    """Every file of the task, by the field that names it."""
    yield from ((f"files.{name}", file) for name, file in task.files.items())
    if task.build is not None:
        yield from ((f"build.otherwise.{n}", file) for n, file in task.build.otherwise.items())
    if task.grader is not None:
        yield from ((f"grader.{name}", file) for name, file in task.grader.named_files().items())
    for solution, how in task.solutions.items():
        yield from ((f"solutions.{solution}.files.{n}", file) for n, file in how.files.items())


def sources_of(task: Task) -> Iterator[tuple[str, str]]:
    """Every path on the host that the task names, by field."""
    for name, file in _all_files(task):
        if file.source is not None:
            yield f"{name}.source", file.source
    if task.build is not None:
        yield "build.context", task.build.context
    functions = task.grader.functions() if task.grader is not None else dict[str, str]()
    for name, function in functions.items():
        path = function.rpartition(":")[0]
        if path.endswith(".py"):
            yield f"grader.{name}", path


def check_sources(loaded: LoadedTask, *, source: str) -> LoadedTask:
    """`loaded` if every host file it names is there and inside its folder, else a `ConfigError`."""
    for field, path in sources_of(loaded.task):
        check_source(loaded.folder, path, where=f"{source}: {field}")
    return loaded


def work_digest_of(loaded: LoadedTask) -> str:
    """A fingerprint of the task without its grader: what an agent's work depends on."""
    return digest_of(LoadedTask(loaded.task.model_copy(update={"grader": None}), loaded.folder))


def digest_of(loaded: LoadedTask) -> str:
    """A fingerprint of all there is to the task, its source files included."""
    task = loaded.task
    data = msgspec.json.encode(task.model_dump(mode="json"), order="deterministic")
    digest = hashlib.sha256(data)
    for source in sorted({path for _, path in sources_of(task)}):
        root = loaded.folder / source
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            digest.update(f"\0{path.relative_to(loaded.folder)}\0".encode())
            if path.is_file():
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
