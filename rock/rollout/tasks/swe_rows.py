"""Rows of SWE data sets, as their JSONL files have them, read as tasks.

    SWE-bench, SWE-Gym   instance_id repo base_commit problem_statement patch test_patch FAIL_TO_PASS
                         PASS_TO_PASS; lists may be JSON in a string
    SWE-smith            instance_id image_name patch (the bug, which is applied) FAIL_TO_PASS …

The repository is at `/testbed` of the image. Its history is squashed, since it may hold the fix. The
tests of `test_patch` come in when the agent has ended; the named tests must pass, as `pytest -rA`
prints them. `patch` is the oracle's solution. Rows whose tests are run otherwise say so in `test_cmd`.
A field `rock` of a row has fields of a task, which win over what is made here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from rock.config import kind_of
from rock.errors import ConfigError
from rock.rollout.inputs.graders import GUARDED, is_guarded
from rock.sandbox.base import IMAGE_USER

WORKDIR = "/testbed"
TEST_COMMAND = "python -m pytest -rA -p no:cacheprovider"
_MARKS = ("problem_statement", "FAIL_TO_PASS", "instance_id")
_IMAGE = "swebench/sweb.eval.x86_64.{}:latest"
_SWE_GYM_IMAGE = "xingyaoww/sweb.eval.x86_64.{}:latest"
_SWE_GYM = frozenset(
    {
        "getmoto/moto",
        "Project-MONAI/MONAI",
        "pandas-dev/pandas",
        "python/mypy",
        "pydantic/pydantic",
        "conan-io/conan",
        "iterative/dvc",
        "dask/dask",
        "modin-project/modin",
        "bokeh/bokeh",
        "facebookresearch/hydra",
    }
)
"""Its repositories, none of which is one of SWE-bench's: that is how its rows are told apart."""
_ACTIVATE = (
    "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi"
)
_APPLY = (
    "GIT_DIR=/dev/null git apply --whitespace=nowarn {patch} || "
    "patch --batch --fuzz=5 -p1 -i {patch}"
)
"""Without the repository, whose configuration may name programs of the agent's to run over files."""
INSTRUCTION = """\
The repository in {workdir} has this issue:

{problem}

Change the code so that the issue is solved. Do not change its tests: others will be used.
"""


def is_row(data: Mapping[str, Any]) -> bool:
    """Whether an object is such a row, and no task of our own."""
    return "task_id" not in data and all(mark in data for mark in _MARKS)


def task_of(row: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """The fields of a `Task`. Raises `ConfigError` naming the field."""
    wanted = [*_names(row, "FAIL_TO_PASS", source), *_names(row, "PASS_TO_PASS", source)]
    given = own_fields(row, source)
    workdir = given.get("workdir", WORKDIR)
    test_patch = text_of(row, "test_patch", source)
    bug = text_of(row, "patch", source) if row.get("image_name") and not test_patch else ""
    task: dict[str, Any] = {
        "task_id": text_of(row, "instance_id", source),
        "instruction": INSTRUCTION.format(
            workdir=workdir, problem=text_of(row, "problem_statement", source).strip()
        ),
        "workdir": workdir,
        "image": _image(row),
        "user": IMAGE_USER,
        "git": "squash",
        "grader": _grader(row, wanted, test_patch, source),
        "metadata": {
            "format": "swe",
            **{key: row[key] for key in ("repo", "base_commit", "version") if key in row},
        },
    }
    if bug:
        task["files"] = {".rock-bug.patch": bug}
        task["setup"] = ["sh", "-ec", f"{_applied('.rock-bug.patch')}; rm .rock-bug.patch"]
    task["solutions"] = {"oracle": _oracle(row, reverse=bool(bug), source=source)}
    return {**task, **given}


def own_fields(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    """What the row says of the task itself."""
    own: object = row.get("rock") or {}
    if not isinstance(own, dict):
        raise ConfigError(f"{source}: rock: expected fields of a task (given: {kind_of(own)})")
    return cast("dict[str, Any]", own)


def _applied(patch: str) -> str:
    return "{ " + _APPLY.format(patch=patch) + "; }"


def _image(row: Mapping[str, Any]) -> str:
    for field in ("docker_image", "image_name", "image"):
        if row.get(field):
            return str(row[field])
    # The published images: `__` of the id cannot be in the name of one.
    name = str(row["instance_id"]).lower()
    if row.get("repo") in _SWE_GYM:
        return _SWE_GYM_IMAGE.format(name.replace("__", "_s_"))
    return _IMAGE.format(name.replace("__", "_1776_"))


def _grader(
    row: Mapping[str, Any], wanted: list[str], test_patch: str, source: str
) -> dict[str, Any]:
    files = {"test.patch": test_patch} if test_patch else {}
    touched = _touched(test_patch)
    named = {test.split("::")[0] for test in wanted if "::" in test}
    command = text_of(row, "test_cmd", source) or TEST_COMMAND
    paths = " ".join(sorted({*touched, *named})) if row.get("test_cmd") is None else ""
    lines = [_ACTIVATE, _applied("{tests}/test.patch") + " || exit 126" if test_patch else ":"]
    return {
        "command": ["bash", "-c", "\n".join([*lines, f"{command} {paths}".strip()])],
        "files": files,
        "cwd": "{workdir}",
        "reward": "pytest",
        "tests": wanted,
        # Only what is there before is put back; what the patch adds comes with it.
        "protect": [*_steering(text_of(row, "patch", source)), *sorted({*touched, *named})],
        "timeout_seconds": 1800,
    }


def _steering(solution: str) -> list[str]:
    """Files by which pytest is steered, less those that the row's own solution changes: where pytest is
    what is worked on, they are the work."""
    changed = _touched(solution)
    return [glob for glob in GUARDED if not any(is_guarded(path, [glob]) for path in changed)]


def _oracle(row: Mapping[str, Any], *, reverse: bool, source: str) -> dict[str, Any]:
    patch = text_of(row, "patch", source)
    how = "git apply -R" if reverse else "git apply"
    return {
        "command": ["sh", "-ec", how + ' --whitespace=nowarn "$0/gold.patch"', "{solution}"],
        "files": {"gold.patch": patch},
    }


def _touched(patch: str) -> list[str]:
    """Paths that a patch changes or adds."""
    lines = (line for line in patch.splitlines() if line.startswith("+++ b/"))
    return [line.removeprefix("+++ b/").split("\t")[0].strip() for line in lines]


def text_of(row: Mapping[str, Any], field: str, source: str) -> str:
    value = row.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{source}: {field}: expected text (given: {kind_of(value)})")
    return value


def _names(row: Mapping[str, Any], field: str, source: str) -> list[str]:
    value: object = row.get(field)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as exc:
            raise ConfigError(f"{source}: {field}: not JSON: {exc}") from exc
    names = cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [None]
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{source}: {field}: expected a list of tests (given: {kind_of(value)})")
    return [str(name) for name in names]
