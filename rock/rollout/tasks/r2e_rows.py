"""Rows of R2E-Gym as tasks.

    repo_name docker_image commit_hash problem_statement ([ISSUE] … [/ISSUE]) expected_output_json
    parsed_commit_content (JSON: the files of the fix, before and after)

The repository is at `/testbed` of the image, with `run_tests.sh` in it and the tests at `/r2e_tests`; both
are out of sight until the agent has ended. Scored as the data set is: every test must end as
`expected_output_json` says, and there must be no others. A test is named there by what follows its
file, joined by dots; some names carry colours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from rock.config import kind_of
from rock.errors import ConfigError
from rock.rollout.inputs.graders import GUARDED
from rock.rollout.tasks.swe_rows import INSTRUCTION, WORKDIR, own_fields, text_of
from rock.sandbox.base import IMAGE_USER, ExecResult

TESTS_AT = "/r2e_tests"
TEST_SECONDS = 300.0
_MARKS = ("problem_statement", "docker_image", "expected_output_json")
_ISSUE = re.compile(r"\[ISSUE\](.*)\[/ISSUE\]", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[\d+m")
_ENDED = re.compile(r"^(PASSED|FAILED|ERROR)\s+(\S.*)$")
_RUN = f"rm -rf r2e_tests && ln -s {TESTS_AT} r2e_tests && exec bash run_tests.sh"


def is_row(data: Mapping[str, Any]) -> bool:
    return "task_id" not in data and all(mark in data for mark in _MARKS)


def task_of(row: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """The fields of a `Task`. Raises `ConfigError` naming the field."""
    given = own_fields(row, source)
    workdir = given.get("workdir", WORKDIR)
    statement = text_of(row, "problem_statement", source)
    issue = _ISSUE.search(statement)
    name = text_of(row, "instance_id", source)
    task: dict[str, Any] = {
        "task_id": name
        or f"{text_of(row, 'repo_name', source)}__{text_of(row, 'commit_hash', source)}",
        "instruction": INSTRUCTION.format(
            workdir=workdir, problem=(issue[1] if issue else statement).strip()
        ),
        "workdir": workdir,
        "image": text_of(row, "docker_image", source),
        "user": IMAGE_USER,
        "git": "squash",
        "hide": [TESTS_AT, "run_tests.sh"],
        "grader": {
            "python": f"{__name__}:grade",
            "args": {"expected": _expected(row, source)},
            "protect": list(GUARDED),
            "timeout_seconds": TEST_SECONDS + 60,
        },
        "metadata": {
            "format": "r2e",
            **{key: row[key] for key in ("repo_name", "commit_hash") if key in row},
        },
    }
    if solution := _fixed_files(row, source):
        task["solutions"] = {"oracle": _oracle(solution)}
    return {**task, **given}


class Work(Protocol):
    """The part of `rock.rollout.grading.python.Work` that is used here."""

    def run(self, argv: Sequence[str], *, timeout_seconds: float) -> ExecResult: ...


def grade(work: Work, *, expected: Mapping[str, str]) -> dict[str, Any]:
    """1.0 if every test ended as expected and none besides. Raises `TimeoutError`."""
    result = work.run(["bash", "-c", _RUN], timeout_seconds=TEST_SECONDS)
    if result.status == "timed_out":
        raise TimeoutError(f"the tests took over {TEST_SECONDS:g} s")
    ended = ends_of(result.stdout.decode("utf-8", "replace"))
    wanted = {_plain(name): word for name, word in expected.items()}
    wrong = sorted(
        name
        for name in ended.keys() | wanted.keys()
        if name and ended.get(name, "missing") != wanted.get(name, "unknown")
    )
    detail = f"{len(wanted) - len(wrong)} of {len(wanted)} tests ended as expected"
    if wrong:
        detail = f"{detail}; {wrong[0]}: {ended.get(wrong[0], 'missing')}"
    return {"reward": 0.0 if wrong or not ended else 1.0, "detail": detail}


def ends_of(output: str) -> dict[str, str]:
    """Test → how it ended, from the summary of `pytest -rA`; nothing without one."""
    _, found, summary = _COLOUR.sub("", output).rpartition("short test summary info")
    ended: dict[str, str] = {}
    for line in summary.splitlines() if found else ():
        if (match := _ENDED.match(line.strip())) is not None:
            ended[_plain(".".join(match[2].split("::")[1:]))] = match[1]
    return ended


def _plain(name: str) -> str:
    return _COLOUR.sub("", name).split(" - ")[0].strip()


def _expected(row: Mapping[str, Any], source: str) -> dict[str, str]:
    value = _json(row, "expected_output_json", source)
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            f"{source}: expected_output_json: expected test → how it ends (given: {kind_of(value)})"
        )
    return {str(name): str(word) for name, word in cast("dict[str, Any]", value).items()}


def _fixed_files(row: Mapping[str, Any], source: str) -> dict[str, str | None]:
    """Path → content after the fix, without the tests; None for a file that it removes."""
    value: Any = _json(row, "parsed_commit_content", source)
    diffs: Any = () if value is None else value
    found: dict[str, str | None] = {}
    try:
        for diff in diffs["file_diffs"] if diffs else ():
            plus: Any = diff.get("plus_file") or {}
            removed = plus.get("path") == "/dev/null"
            path = str(diff["header"]["file"]["path"])
            found[path] = None if removed else str(diff["new_file_content"])
    except (AttributeError, KeyError, TypeError) as exc:
        raise ConfigError(
            f"{source}: parsed_commit_content: expected file_diffs with header.file.path and "
            f"new_file_content ({type(exc).__name__}: {exc})"
        ) from exc
    return {path: text for path, text in found.items() if not _is_test(path)}


def _is_test(path: str) -> bool:
    *folders, name = path.split("/")
    return "tests" in folders or name.startswith("test_") or name.endswith("_test.py")


def _oracle(files: Mapping[str, str | None]) -> dict[str, Any]:
    removed = [path for path, text in files.items() if text is None]
    return {
        "command": ["sh", "-euc", 'cp -R "$0/." .; rm -f -- "$@"', "{solution}", *removed],
        "files": {path: text for path, text in files.items() if text is not None},
    }


def _json(row: Mapping[str, Any], field: str, source: str) -> Any:
    """A field that holds JSON in a string, or the value itself; None where it is missing."""
    value = row.get(field)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as exc:
        raise ConfigError(f"{source}: {field}: not JSON: {exc}") from exc
