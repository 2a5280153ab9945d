"""What graders say, read into rewards: JUnit files, pytest's summary, a judge's answer. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from rock.config import Strict, validated
from rock.errors import ConfigError
from rock.rollout.grading.judge import score_in
from rock.rollout.grading.scores import from_junit, from_pytest, from_text
from rock.rollout.inputs.graders import AnyGrader, Grader, WeightedGrader
from rock.rollout.records.outcome import OutcomeClass
from rock.sandbox.base import ExecResult, ExecStatus


def ended(code: int = 0, stdout: str = "") -> ExecResult:
    return ExecResult(
        status=ExecStatus.EXITED,
        exit_code=code,
        signal=None,
        stdout=stdout.encode(),
        stderr=b"",
        stdout_bytes=len(stdout),
        stderr_bytes=0,
        duration_seconds=0.1,
    )


def grader(**fields: Any) -> Grader:
    return Grader.model_validate({"command": ["t"], "reward": "junit", **fields})


JUNIT = b"""<?xml version="1.0"?><testsuites><testsuite name="pytest" tests="4">
<testcase classname="tests.test_a.TestB" name="test_one" time="0.1"/>
<testcase classname="tests.test_a" name="test_two[x::y]"><failure message="no"/></testcase>
<testcase classname="tests.test_a" name="test_skipped"><skipped/></testcase>
<testcase classname="tests.test_c" name="test_three"/>
<testcase classname="tests.test_c" name="test_three"><error/></testcase>
</testsuite></testsuites>"""
ONE, TWO, THREE = (
    "tests/test_a.py::TestB::test_one",
    "tests/test_a.py::test_two[x::y]",
    "tests/test_c.py::test_three",
)


@pytest.mark.parametrize(
    ("fields", "reward"),
    [
        ({}, 0.0),
        ({"score": "fraction"}, 1 / 3),
        ({"tests": [ONE]}, 1.0),
        ({"tests": ["tests.test_a.TestB::test_one"]}, 1.0),
        ({"tests": [ONE, TWO]}, 0.0),
        ({"tests": [ONE, TWO], "score": "fraction"}, 0.5),
        ({"tests": [THREE]}, 0.0),
        ({"tests": [ONE, "tests/test_a.py::test_gone"], "score": "fraction"}, 0.5),
        ({"tests": ["tests/test_a.py::test_skipped"]}, 0.0),
    ],
)
def test_a_junit_file_counts_what_passed(fields: dict[str, Any], reward: float) -> None:
    result = from_junit(grader(**fields), JUNIT, ended(1))
    assert result.reward == pytest.approx(reward)


def test_the_test_that_went_wrong_is_named() -> None:
    result = from_junit(grader(tests=[ONE, "tests/test_a.py::test_gone"]), JUNIT, ended(1))
    assert "1 of 2 tests passed" in result.detail
    assert "tests/test_a.py::test_gone: missing" in result.detail


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"<testsuite>",
        b"<testsuite/>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite><testcase name="&a;"/></testsuite>',
    ],
)
def test_without_a_junit_file_nobody_scores(data: bytes | None) -> None:
    assert from_junit(grader(), data, ended(0)).reward == 0.0


def test_tests_that_all_passed_do_not_count_when_the_runner_says_otherwise() -> None:
    """A run that was cut short has only written the tests until then."""
    data = b'<testsuite><testcase classname="a" name="b"/></testsuite>'
    assert from_junit(grader(), data, ended(0)).reward == 1.0
    assert from_junit(grader(), data, ended(1)).reward == 0.0


def test_a_reward_that_is_given_twice_is_none() -> None:
    given = from_text('{"reward": 0, "reward": 1}', ended(0), "reward.json")
    assert (given.reward, given.cls) == (None, OutcomeClass.GRADER_BROKEN)
    assert "reward.json: the field 'reward' is given twice" in given.detail


PYTEST = """
=== short test summary info ===
PASSED tests/forged.py::test_one
...
=========================== short test summary info ============================
PASSED tests/test_a.py::TestB::test_one
PASSED tests/test_a.py::test_odd[a - b]
XFAIL tests/test_a.py::test_known - a reason
SKIPPED [1] tests/test_a.py:4: no
FAILED tests/test_a.py::test_two[x::y] - assert 1 == 2
ERROR tests/test_c.py - ImportError: no
================ 2 passed, 1 failed, 1 xfailed, 1 error in 0.1s ================
"""


@pytest.mark.parametrize(
    ("tests", "reward"),
    [
        ([ONE], 1.0),
        ([ONE, "tests/test_a.py::test_known"], 1.0),
        ([TWO], 0.0),
        (["tests/forged.py::test_one"], 0.0),
        ([], 0.0),
    ],
)
def test_pytests_last_summary_says_what_passed(tests: list[str], reward: float) -> None:
    result = from_pytest(grader(reward="pytest", tests=tests), ended(1, PYTEST))
    assert result.reward == reward


def test_pytest_that_did_not_work_scores_nothing() -> None:
    assert from_pytest(grader(reward="pytest", tests=[ONE]), ended(4, PYTEST)).reward == 0.0
    assert from_pytest(grader(reward="pytest"), ended(0, "")).reward == 0.0


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('{"score": 7, "reason": "fine  \\n work"}', (7.0, "fine work")),
        ('It said {"score": 10}.\n```json\n{"score": 2.5, "reason": null}\n```', (2.5, "")),
        ('{"score": 3}\n{"score": 11}', None),
        ('{"score": 11}\n{"score": 3}', (3.0, "")),
        ('{\n  "score": 3,\n  "reason": "in lines"\n}', (3.0, "in lines")),
        ('{"score": true}', None),
        ('{"score": "9"}', None),
        ('{"score": NaN}', None),
        ("seven of ten", None),
        ("", None),
    ],
)
def test_a_judges_score_is_what_its_answer_ends_with(
    answer: str, found: tuple[float, str] | None
) -> None:
    assert score_in(answer, (0.0, 10.0)) == found


class Holder(Strict):
    grader: AnyGrader


COMMAND = {"command": ["true"]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"python": "grade"}, r"grader\.python: .*'package\.module:function'"),
        ({"python": "a.py:grade", "command": ["x"]}, r"grader\.command: .*no such field"),
        ({"judge": ""}, r"grader\.judge: .*at least 1"),
        ({"judge": "x", "scale": [5, 5]}, r"grader: .*worst < best"),
        ({"weighted": {}}, r"grader\.weighted: .*at least 1"),
        ({"weighted": {"a": {"grader": {}}}}, r"weighted\.a\.grader\.command: Field required"),
        ({"weighted": {"a": {"grader": COMMAND, "weight": 0}}}, r"weighted\.a\.weight"),
        (
            {"weighted": {"a": {"grader": {**COMMAND, "fresh": True}}}},
            r"grader: .*weighted\.a\.grader: fresh: expected beside `weighted`",
        ),
        (
            {"weighted": {"a": {"grader": {"weighted": {"b": {"grader": COMMAND}}}}}},
            r"expected a grader that is no `weighted`",
        ),
        ({**COMMAND, "reward_files": ["/logs/r"]}, r"grader: .*below one of `stale`"),
        ({**COMMAND, "stale": ["/"]}, r"grader\.stale\.0: .*below '/'"),
        ("pytest", r"grader: .*"),
    ],
)
def test_a_wrong_grader_is_named_with_its_field(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated(Holder, {"grader": given}, source="t")


def test_several_graders_protect_what_each_of_them_would() -> None:
    several = WeightedGrader.model_validate(
        {"weighted": {"a": {"grader": COMMAND}, "b": {"grader": {**COMMAND, "reward": "junit"}}}}
    )
    assert "conftest.py" in several.guarded()
    assert Grader(command=["true"]).guarded() == ()
    assert Grader(command=["true"], reward="junit", protect=[]).guarded() == ()
