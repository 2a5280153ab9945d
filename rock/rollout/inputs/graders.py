"""Graders as task and run files write them: a command, a Python function, a judge, or several.

What kind one is follows from the field it has: `command`, `python`, `judge` or `weighted`. How each
is carried out is in `rock.rollout.grading`.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import Discriminator, Field, Tag, model_validator

from rock.config import TAG, Strict
from rock.errors import ConfigError
from rock.rollout.inputs.fields import (
    AbsolutePath,
    Argument,
    Argv,
    BackendName,
    BoxPath,
    FunctionName,
    SafePath,
    Seconds,
    Variables,
)
from rock.rollout.inputs.taskfiles import Files, TaskFile, inlined

GUARDED = (
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "pytest.py",
    "pytest/*",
    "_pytest/*",
    "pluggy/*",
    "unittest.py",
    "unittest/*",
)
"""Files by which a working directory changes how pytest runs, wherever they lie in it."""


def is_guarded(path: str, globs: Iterable[str]) -> bool:
    """Whether a relative path fits a glob; without a slash the glob is of the last part alone.

    `*` also stands for slashes, and a glob of a directory's contents fits at any depth.
    """
    name = PurePosixPath(path).name
    return any(
        fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(path, f"*/{glob}")
        if "/" in glob
        else fnmatch.fnmatchcase(name, glob)
        for glob in globs
    )


class GraderBase(Strict):
    """What all graders have: bounds, and what is done against an agent that prepared for them."""

    timeout_seconds: Seconds = 300.0
    timeout_reward: float | None = None
    protect: list[str] | None = None
    """Globs over the working directory. What fits is put back as it was before the agent: changed
    and deleted files are restored, new ones removed. Without a slash a glob is of names."""
    fresh: bool = False
    """Grade in a sandbox that the agent was never in; only `collect` is carried over."""
    collect: list[SafePath] = Field(default=[])
    """What is carried over from the working directory; empty: all of it."""

    def named_files(self) -> Mapping[str, TaskFile]:
        """Every file it brings in, by the field that names it."""
        return {}

    def functions(self) -> Mapping[str, str]:
        """Every Python function it names, by field."""
        return {}

    def whole_seconds(self) -> float:
        """The longest that grading with it may take."""
        return self.timeout_seconds

    def models(self) -> frozenset[str]:
        """The models that it asks, beside the one that answers the agent."""
        return frozenset()

    def shows_diff(self) -> bool:
        """Whether somebody is shown what was changed in the repository."""
        return False

    def guarded(self) -> tuple[str, ...]:
        """The globs in force."""
        return tuple(self.protect or ())

    def located(self, base: Path, *, where: str) -> Self:
        """The same, without host paths relative to `base`. Raises `ConfigError`."""
        return self


class Grader(GraderBase):
    """A command that scores what the agent left. It runs after the agent and all it started ended.

    The command runs in a directory made for it at that moment, under a name the agent could not
    know, holding `files`. `reward` says where the score is read:

    - `exit_code`: 0 is 1.0, anything else 0.0.
    - `file`: the number, or the JSON object's `reward`, in the file `{reward_file}`.
    - `verdict`: a line `NONCE NUMBER` (or `NONCE error REASON`) on stdout, where NONCE is the first
      line of the command's stdin, new each time. Code under test that ends the grader early cannot
      print it, so such a run scores 0.0.
    - `junit`: the test cases in the JUnit XML file `{reward_file}`.
    - `pytest`: the outcomes in what `pytest -rA` printed.
    """

    command: Argv
    files: Files = Field(default_factory=dict)
    reward: Literal["exit_code", "file", "verdict", "junit", "pytest"] = "exit_code"
    tests: list[str] = Field(default=[])
    """For `junit` and `pytest`: tests that count, as `path/test_x.py::test_y`; empty: all that ran."""
    score: Literal["all", "fraction"] = "all"
    """For `junit` and `pytest`: 1.0 when all that count passed, or the share that did."""
    cwd: Argument = "{tests}"
    env: Variables = Field(default_factory=dict)
    stdin: str = ""
    user: Argument | None = None
    tests_at: AbsolutePath | None = None
    """A fixed place for `files`, for graders that insist on one; it is emptied first."""
    stale: list[BoxPath] = Field(default=[])
    """Paths removed before the grader runs, each made again as an empty directory."""
    reward_files: list[AbsolutePath] = Field(default=[])
    """For `file`: other places of the reward, tried in order; they must lie below a `stale` path."""

    @model_validator(mode="after")
    def _fixed_places_are_emptied(self) -> Self:
        for path in self.reward_files:
            if not any(Path(path).is_relative_to(stale) for stale in self.stale):
                raise ValueError(
                    f"reward_files: expected paths below one of `stale`, since the agent could have "
                    f"written them before: {path!r}"
                )
        return self

    def named_files(self) -> Mapping[str, TaskFile]:
        return {f"files.{name}": file for name, file in self.files.items()}

    def guarded(self) -> tuple[str, ...]:
        if self.protect is None and self.reward in ("junit", "pytest"):
            return GUARDED
        return super().guarded()

    def located(self, base: Path, *, where: str) -> Self:
        files = inlined(self.files, base, where=f"{where}.files")
        return self.model_copy(update={"files": files})


class PythonGrader(GraderBase):
    """A Python function on the harness's side: `def grade(work) -> float`, see `grading.python`."""

    python: FunctionName
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    def functions(self) -> Mapping[str, str]:
        return {"python": self.python}

    def located(self, base: Path, *, where: str) -> Self:
        path, _, function = self.python.rpartition(":")
        if not path.endswith(".py"):
            return self
        if not (base / path).is_file():
            raise ConfigError(f"{where}.python: no such file: {base / path}")
        return self.model_copy(update={"python": f"{(base / path).resolve()}:{function}"})


class JudgeGrader(GraderBase):
    """A model that scores the work in words: it is asked through ModelService, never trained on.

    `{instruction}` and `{task_id}` are filled in. The files of `show` follow the prompt.
    """

    judge: Annotated[str, Field(min_length=1)]
    """What the judge is told to look at and how to score."""
    show: list[SafePath] = Field(default=[])
    """Files of the working directory that it is shown, cut off at `show_bytes` each."""
    show_bytes: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    show_diff: bool = False
    """Whether it is shown what `git diff` says of the working directory."""
    scale: tuple[float, float] = (0.0, 10.0)
    """The worst and the best score; the reward is where in between, from 0 to 1."""
    model: BackendName | None = None
    """`litellm:NAME`, `openai:NAME` or `queue`; null: who answers the agent answers the judge."""
    tries: Annotated[int, Field(ge=1, le=10)] = 3
    """How often it is asked until its answer has a score."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None

    def shows_diff(self) -> bool:
        return self.show_diff

    def whole_seconds(self) -> float:
        return self.timeout_seconds * self.tries

    def models(self) -> frozenset[str]:
        return frozenset() if self.model is None else frozenset({self.model})

    @model_validator(mode="after")
    def _scale_goes_up(self) -> Self:
        if self.scale[0] >= self.scale[1]:
            raise ValueError("scale: expected [worst, best] with worst < best")
        return self


class Part(Strict):
    """One grader of several."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    grader: AnyGrader


class WeightedGrader(GraderBase):
    """Several graders; the reward is the mean by weight. If one gives none, there is none."""

    weighted: Annotated[dict[str, Part], Field(min_length=1)]

    @model_validator(mode="after")
    def _parts_are_plain(self) -> Self:
        for name, part in self.weighted.items():
            given = part.grader.model_fields_set & {"protect", "fresh", "collect"}
            if given:
                raise ValueError(
                    f"weighted.{name}.grader: {', '.join(sorted(given))}: expected beside "
                    "`weighted`, since all its graders see the same work"
                )
            if isinstance(part.grader, WeightedGrader):
                raise ValueError(f"weighted.{name}.grader: expected a grader that is no `weighted`")
        return self

    def named_files(self) -> Mapping[str, TaskFile]:
        return {
            f"weighted.{name}.grader.{field}": file
            for name, part in self.weighted.items()
            for field, file in part.grader.named_files().items()
        }

    def functions(self) -> Mapping[str, str]:
        return {
            f"weighted.{name}.grader.{field}": function
            for name, part in self.weighted.items()
            for field, function in part.grader.functions().items()
        }

    def models(self) -> frozenset[str]:
        return frozenset(name for part in self.weighted.values() for name in part.grader.models())

    def shows_diff(self) -> bool:
        return any(part.grader.shows_diff() for part in self.weighted.values())

    def whole_seconds(self) -> float:
        return sum(part.grader.whole_seconds() for part in self.weighted.values())

    def guarded(self) -> tuple[str, ...]:
        if self.protect is not None:
            return tuple(self.protect)
        parts = self.weighted.values()
        return tuple(dict.fromkeys(glob for part in parts for glob in part.grader.guarded()))

    def located(self, base: Path, *, where: str) -> Self:
        parts = {
            name: part.model_copy(
                update={
                    "grader": part.grader.located(base, where=f"{where}.weighted.{name}.grader")
                }
            )
            for name, part in self.weighted.items()
        }
        return self.model_copy(update={"weighted": parts})


def _kind(value: Any) -> str:
    given: Any = ()
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
    elif isinstance(value, GraderBase):
        given = type(value).model_fields
    return TAG + next(
        (kind for kind in ("python", "judge", "weighted") if kind in given), "command"
    )


AnyGrader: TypeAlias = Annotated[
    Annotated[Grader, Tag(TAG + "command")]
    | Annotated[PythonGrader, Tag(TAG + "python")]
    | Annotated[JudgeGrader, Tag(TAG + "judge")]
    | Annotated[WeightedGrader, Tag(TAG + "weighted")],
    Discriminator(_kind),
]
Part.model_rebuild()
WeightedGrader.model_rebuild()
