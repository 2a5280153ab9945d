"""What to solve and how it is scored: the values that every task format is read into.

A `Task` is an instruction, the files the agent finds in its working directory, and a grader. All
paths inside a sandbox are written relative to a directory that the harness makes, so a task file
cannot write anywhere else; all sources on the host stay inside the task file's own folder.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import stat
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rock.config import Strict
from rock.errors import ConfigError

MAX_ARGUMENT_BYTES = 100_000
"""Linux takes 128 KiB in one argument; the rest is room for what a command puts around it."""


def safe_relative(path: str) -> str:
    """`path` if it stays inside the directory it is relative to, else a ValueError that says why."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.name in ("", ".."):
        raise ValueError("expected a relative file path, like 'src/main.py'")
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError("expected a path inside the directory: not absolute and without '..'")
    return str(pure)


def absolute(path: str) -> str:
    """`path` if it is an absolute, normal sandbox path, else a ValueError that says why."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError("expected an absolute path without '..', like '/workspace'")
    return str(pure)


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


def _from_shorthand(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


SafePath = Annotated[str, AfterValidator(safe_relative)]
AbsolutePath = Annotated[str, AfterValidator(absolute)]
Argv = Annotated[list[str], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]


class TaskFile(Strict):
    """Where one file (or, with `source`, one tree) comes from. Exactly one of the first three."""

    text: str | None = None
    base64: str | None = None
    source: SafePath | None = None
    """A file or folder beside the task file."""
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [value for value in (self.text, self.base64, self.source) if value is not None]
        if len(given) != 1:
            raise ValueError("expected exactly one of text, base64, source")
        if self.base64 is not None:
            try:
                base64.b64decode(self.base64, validate=True)
            except binascii.Error as exc:
                raise ValueError(f"base64: {exc}") from exc
        return self

    def data(self) -> bytes | None:
        """The bytes of an inline file, None for a `source`."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        return None if self.text is None else self.text.encode()


Files = dict[SafePath, Annotated[TaskFile, BeforeValidator(_from_shorthand)]]


class Grader(Strict):
    """A command that scores what the agent left. It runs after the agent and all it started ended.

    The command runs in a directory made for it at that moment, under a name the agent could not
    know, holding `files`. `reward` says where the score is read:

    - `exit_code`: 0 is 1.0, anything else 0.0.
    - `file`: the number, or the JSON object's `reward`, in the file `{reward_file}`.
    - `verdict`: a line `NONCE NUMBER` (or `NONCE error REASON`) on stdout, where NONCE is the first
      line of the command's stdin, new each time. Code under test that ends the grader early cannot
      print it, so such a run scores 0.0.
    """

    command: Argv
    files: Files = Field(default_factory=dict)
    reward: Literal["exit_code", "file", "verdict"] = "exit_code"
    timeout_seconds: Seconds = 300.0
    timeout_reward: float | None = None
    cwd: str = "{tests}"
    env: dict[str, str] = Field(default_factory=dict)
    stdin: str = ""
    user: str | None = None


class Timeouts(Strict):
    """Bounds of one task that override the run's."""

    setup_seconds: Seconds | None = None
    agent_seconds: Seconds | None = None
    grade_seconds: Seconds | None = None


class Task(Strict):
    """One problem."""

    task_id: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)]
    instruction: Annotated[str, Field(min_length=1), AfterValidator(_fits_an_argument)]
    files: Files = Field(default_factory=dict)
    workdir: AbsolutePath = "/workspace"
    image: str | None = None
    grader: Grader | None = None
    tags: list[str] = Field(default_factory=list)
    """Kinds that the task is of, for quotas and curricula."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class LoadedTask:
    """A task and the host folder that its `source` files are beside."""

    task: Task
    folder: Path

    @property
    def task_id(self) -> str:
        return self.task.task_id


def check_sources(loaded: LoadedTask, *, source: str) -> LoadedTask:
    """`loaded` if every host file it names is there and inside its folder, else a `ConfigError`."""
    grader_files: Mapping[str, TaskFile] = loaded.task.grader.files if loaded.task.grader else {}
    for field, files in (("files", loaded.task.files), ("grader.files", grader_files)):
        for name, file in files.items():
            if file.source is not None:
                _check_source(loaded.folder, file.source, where=f"{source}: {field}.{name}.source")
    return loaded


def _check_source(folder: Path, relative: str, *, where: str) -> None:
    path = folder / relative
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"{where}: {exc.strerror}: {path}") from exc
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: expected a path inside {folder}; {relative} leads out of it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(f"{where}: expected a file or a folder: {path}")


def inline(path: Path) -> TaskFile:
    """A host file as a `TaskFile` that holds its bytes. Raises `ConfigError`."""
    try:
        data, mode = path.read_bytes(), path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    return TaskFile(base64=base64.b64encode(data).decode(), mode=mode & 0o777)


def work_digest_of(loaded: LoadedTask) -> str:
    """A fingerprint of the task without its grader: what an agent's work depends on."""
    return digest_of(LoadedTask(loaded.task.model_copy(update={"grader": None}), loaded.folder))


def digest_of(loaded: LoadedTask) -> str:
    """A fingerprint of all there is to the task, its source files included."""
    task = loaded.task
    data = msgspec.json.encode(task.model_dump(mode="json"), order="deterministic")
    digest = hashlib.sha256(data)
    files = [*task.files.values(), *(task.grader.files.values() if task.grader else ())]
    for source in sorted({file.source for file in files if file.source is not None}):
        root = loaded.folder / source
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            digest.update(f"\0{path.relative_to(loaded.folder)}\0".encode())
            if path.is_file():
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
