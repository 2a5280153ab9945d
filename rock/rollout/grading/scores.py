"""From what a grader said to a reward: numbers, verdicts, JUnit files and what pytest prints. Pure.

Whatever is no clear answer is no reward (`grader_broken`), with one exception: where the code under
test can keep the answer from being given, a missing answer scores 0.0, so that nobody gains by it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rock.plain import RepeatedField, each_once
from rock.rollout.grading.junit import read_cases
from rock.rollout.inputs.graders import Grader
from rock.rollout.records.evidence import describe
from rock.rollout.records.outcome import OutcomeClass
from rock.sandbox.base import ExecResult, ExecStatus

MAX_REWARD = 1e100
"""In size: sums of any number of those stay finite."""
CANNOT_RUN = (126, 127)
"""What shells and `env` exit with when the program they should run is not there."""
PASSED = frozenset({"passed", "xfailed"})
SKIPPED = "skipped"
_PYTEST_ENDS = (0, 1, 2)
"""All passed, some failed, interrupted (by a broken module). Others: pytest itself did not work."""
_PYTEST_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*?)(?: - .*)?$")
_PYTEST_WORDS = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "error",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XPASS": "passed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A reward, or the class that says why there is none."""

    reward: float | None = None
    cls: OutcomeClass | None = None
    detail: str = ""
    result: ExecResult | None = None
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the reward is made of, by name."""


def broken(detail: str, result: ExecResult | None = None) -> Grade:
    return Grade(cls=OutcomeClass.GRADER_BROKEN, detail=detail, result=result)


def scored(reward: float, result: ExecResult, detail: str = "") -> Grade:
    return Grade(reward=reward, detail=detail or f"the grader {describe(result)}", result=result)


def unusable(grader: Grader, result: ExecResult) -> Grade | None:
    """The grade of a run that says nothing about the work, None when it says something."""
    match result.status:
        case ExecStatus.SANDBOX_DIED:
            return Grade(
                cls=OutcomeClass.SANDBOX_DIED,
                detail="the sandbox died under the grader",
                result=result,
            )
        case ExecStatus.TIMED_OUT if grader.timeout_reward is not None:
            return scored(grader.timeout_reward, result)
        case ExecStatus.TIMED_OUT:
            detail = f"the grader {describe(result)}"
            return Grade(cls=OutcomeClass.GRADER_TIMEOUT, detail=detail, result=result)
        case ExecStatus.EXITED if result.exit_code in CANNOT_RUN:
            return broken(f"the grader {describe(result)}: a program it needs is missing", result)
        case _:
            return None


def from_verdict(nonce: str, result: ExecResult) -> Grade:
    """The last line that begins with the nonce; without one the tests did not run to their end."""
    prefix = f"{nonce} ".encode()
    lines = [line for line in result.stdout.splitlines() if line.startswith(prefix)]
    if not lines:
        return scored(0.0, result, f"the grader gave no verdict and {describe(result)}")
    verdict = lines[-1][len(prefix) :].decode("utf-8", "replace").strip()
    if verdict.startswith("error"):
        return broken(f"the grader reported {verdict}", result)
    return from_text(verdict, result, "verdict")


def from_text(text: str, result: ExecResult, where: str) -> Grade:
    """A finite number, alone or as `reward` of a JSON object."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=each_once)
    except RepeatedField as exc:  # which of the two would be the reward?
        return broken(f"{where}: {exc}", result)
    except (ValueError, RecursionError):
        return broken(f"{where}: expected a number or a JSON object with 'reward'", result)
    number = number_of(value)
    if number is None:
        return broken(
            f"{where}: expected a finite number up to {MAX_REWARD:g} as the reward", result
        )
    return scored(number, result)


def number_of(value: Any) -> float | None:
    """The number that `value` is, or that it has as `reward`; None if there is none that is finite and
    of a size that sums of many bear."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("reward")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _usable(value):
        return None
    return float(value)


def _usable(value: float) -> bool:
    try:
        return abs(float(value)) <= MAX_REWARD
    except OverflowError:
        return False


def _no_constant(name: str) -> Callable[[], None]:
    raise ValueError(f"{name} is not a number")


def from_junit(grader: Grader, data: bytes | None, result: ExecResult) -> Grade:
    """The test cases of a JUnit XML file; `data` is None where there is none."""
    if data is None:
        return scored(0.0, result, f"no JUnit file was written, and the grader {describe(result)}")
    seen: dict[str, str] = {}
    try:
        for name, word in read_cases(data):
            # A test that is there twice has passed only if it did both times.
            seen[name] = word if seen.get(name, "passed") == "passed" else seen[name]
    except ValueError as exc:
        return scored(0.0, result, f"the JUnit file: {exc}")
    return _from_tests(grader, seen, result, names=junit_name)


def junit_name(test: str) -> str:
    """`tests/test_a.py::TestB::test_c` as a JUnit file has it: `tests.test_a.TestB::test_c`."""
    path, *rest = test.split("::")
    if not path.endswith(".py") or not rest:
        return test
    module = path.removesuffix(".py").replace("/", ".")
    return ".".join([module, *rest[:-1]]) + f"::{rest[-1]}"


def from_pytest(grader: Grader, result: ExecResult) -> Grade:
    """The short summary that `pytest -rA` ends with."""
    if result.status is not ExecStatus.EXITED or result.exit_code not in _PYTEST_ENDS:
        return scored(0.0, result, f"pytest did not run to its end: it {describe(result)}")
    text = result.stdout.decode("utf-8", "replace")
    _, found, summary = text.rpartition("short test summary info")
    seen: dict[str, str] = {}
    for line in summary.splitlines() if found else ():
        if (match := _PYTEST_LINE.match(line)) is not None:
            word = _PYTEST_WORDS[match[1]]
            seen[match[2]] = word if seen.get(match[2], "passed") == "passed" else seen[match[2]]
    return _from_tests(grader, seen, result, names=str)


def _from_tests(
    grader: Grader, seen: Mapping[str, str], result: ExecResult, *, names: Callable[[str], str]
) -> Grade:
    if grader.tests:
        ends = [seen.get(names(test), "missing") for test in grader.tests]
    else:
        ends = [word for word in seen.values() if word != SKIPPED]
    passed = sum(word in PASSED for word in ends)
    counts = f"{passed} of {len(ends)} tests passed"
    missing = _first_that_did_not(grader.tests, ends)
    detail = f"{counts}; the grader {describe(result)}" + (f"; {missing}" if missing else "")
    if not ends:
        return scored(0.0, result, f"no test ran, and the grader {describe(result)}")
    if grader.score == "fraction":
        return scored(passed / len(ends), result, detail)
    # Without names, tests that went missing are noticed by the exit code alone.
    whole = passed == len(ends) and (bool(grader.tests) or result.ok)
    return scored(1.0 if whole else 0.0, result, detail)


def _first_that_did_not(tests: Sequence[str], ends: Sequence[str]) -> str:
    for test, word in zip(tests, ends, strict=False):
        if word not in PASSED:
            return f"{test}: {word}"
    return ""
