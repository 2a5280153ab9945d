"""Rows of R2E-Gym, SWE-Gym and NeMo Gym as tasks: what they become, what is refused, and that they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.rollout.building import make_ready
from rock.rollout.episode.agent import run_solution
from rock.rollout.grading import Exam, Grade, Setting, lay_out
from rock.rollout.inputs.graders import PythonGrader
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.tasks import load_tasks
from rock.rollout.tasks.r2e_rows import ends_of
from rock.sandbox.base import Mount, SandboxSpec
from tests.rollout.exams import PYTEST_ENV, pytest_mount
from tests.rollout.live import new_provider

BUGGY = "def double(x):\n    return x + 2\n"
FIXED = "def double(x):\n    return x * 2\n"
TESTS = """\
import lib


class TestDouble:
    def test_three(self):
        assert lib.double(3) == 6


def test_that_never_worked():
    assert lib.double("a") == 2
"""
COMMIT = {
    "file_diffs": [
        {
            "old_file_content": BUGGY,
            "new_file_content": FIXED,
            "header": {"file": {"path": "lib.py"}, "misc_line": None},
            "plus_file": {"path": "lib.py"},
        },
        {
            "old_file_content": "old",
            "new_file_content": "",
            "header": {"file": {"path": "gone.py"}},
            "plus_file": {"path": "/dev/null"},
        },
        {
            "old_file_content": "",
            "new_file_content": TESTS,
            "header": {"file": {"path": "pkg/tests/test_lib.py"}},
            "plus_file": {"path": "pkg/tests/test_lib.py"},
        },
    ],
    "old_commit_hash": "a" * 40,
    "new_commit_hash": "b" * 40,
}
EXPECTED = {"\x1b[1mTestDouble.test_three\x1b[0m": "PASSED", "test_that_never_worked": "FAILED"}
R2E: dict[str, Any] = {
    "repo_name": "lib",
    "docker_image": "namanjain12/lib_final:" + "b" * 40,
    "commit_hash": "b" * 40,
    "parsed_commit_content": json.dumps(COMMIT),
    "execution_result_content": "{}",
    "modified_files": ["lib.py"],
    "prompt": "Write an issue.",
    "problem_statement": "[ISSUE]\n\n**double(3) is 5**\n\n[/ISSUE]",
    "expected_output_json": json.dumps(EXPECTED),
}
SWE: dict[str, Any] = {
    "instance_id": "getmoto__moto-7365",
    "repo": "getmoto/moto",
    "base_commit": "c" * 40,
    "problem_statement": "It is wrong.",
    "hints_text": "",
    "patch": "--- a/moto/x.py\n",
    "test_patch": "--- a/tests/test_x.py\n+++ b/tests/test_x.py\n",
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": ["tests/test_x.py::test_b"],
    "version": "5.0",
}


def nemo(row: dict[str, Any], **outside: Any) -> dict[str, Any]:
    """A row as NeMo Gym packs it."""
    metadata = {
        "instance_id": row.get("instance_id", "lib__1"),
        "dataset_name": "princeton-nlp/SWE-bench_Verified",
        "split": "test",
        "problem_statement": row["problem_statement"],
        "instance_dict": json.dumps(row),
    }
    params: dict[str, Any] = {
        "input": [],
        "metadata": metadata,
        "temperature": 0.7,
        "max_output_tokens": 12288,
    }
    agent = {"type": "responses_api_agents", "name": "anyswe_hermes"}
    return {"responses_create_params": params, "agent_ref": agent, **outside}


def load(folder: Path, row: dict[str, Any]) -> LoadedTask:
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (loaded,) = load_tasks("rows.jsonl", base=folder)
    return loaded


def test_an_r2e_row_becomes_a_task_whose_tests_and_fix_are_out_of_sight(tmp_path: Path) -> None:
    task = load(tmp_path, R2E).task
    assert task.task_id == f"lib__{'b' * 40}"
    assert (task.image, task.workdir) == (R2E["docker_image"], "/testbed")
    assert (task.user, task.git) == ("image", "squash")
    assert task.hide == ["/r2e_tests", "run_tests.sh"]
    assert "**double(3) is 5**" in task.instruction
    assert "ISSUE" not in task.instruction
    assert isinstance(task.grader, PythonGrader)
    assert task.grader.args == {"expected": EXPECTED}
    oracle = task.solutions["oracle"]
    assert {name: file.text for name, file in oracle.files.items()} == {"lib.py": FIXED}
    assert oracle.command[-1] == "gone.py"


def test_a_swe_gym_row_is_known_by_its_repository_and_has_its_own_image(tmp_path: Path) -> None:
    task = load(tmp_path, SWE).task
    assert task.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest"
    other = load(tmp_path, {**SWE, "repo": "astropy/astropy", "instance_id": "astropy__astropy-1"})
    assert other.task.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest"


def test_a_nemo_gym_row_is_the_task_that_is_packed_into_it(tmp_path: Path) -> None:
    packed = load(tmp_path, nemo(SWE, image="registry.example.com/moto:1")).task
    plain = load(tmp_path, {**SWE, "image": "registry.example.com/moto:1"}).task
    assert packed == plain
    packed = load(tmp_path, nemo(R2E)).task
    assert (packed.task_id, packed.image) == ("lib__1", R2E["docker_image"])
    assert packed.metadata["format"] == "r2e"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**R2E, "expected_output_json": "[]"}, r"expected_output_json: expected test → how"),
        ({**R2E, "expected_output_json": "{oops"}, r"expected_output_json: not JSON"),
        ({**R2E, "problem_statement": 5}, r"problem_statement: expected text \(given: 5\)"),
        (
            {**R2E, "parsed_commit_content": '{"file_diffs": [{}]}'},
            r"parsed_commit_content: expected file_diffs with .*KeyError",
        ),
        ({**R2E, "rock": []}, None),
        ({**R2E, "rock": [1]}, r"rock: expected fields of a task"),
        (nemo(SWE) | {"rock": {"colour": 1}}, r"colour: .*no such field"),
        (
            {"responses_create_params": {"metadata": {"instance_dict": "5"}}},
            r"metadata\.instance_dict: expected the fields of a row \(given: 5\)",
        ),
        (
            {"responses_create_params": {"metadata": {"instance_dict": "{"}}},
            r"metadata\.instance_dict: not JSON",
        ),
    ],
)
def test_a_wrong_row_is_named_with_its_field(
    tmp_path: Path, row: dict[str, Any], message: str | None
) -> None:
    if message is None:
        load(tmp_path, row)
        return
    with pytest.raises(ConfigError, match=rf"rows\.jsonl:1: .*{message}"):
        load(tmp_path, row)


def test_ends_are_read_from_the_last_summary_with_or_without_colours() -> None:
    output = (
        "PASSED r2e_tests/test_1.py::test_before_the_summary\n"
        "=== short test summary info ===\n"
        "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::TestA::\x1b[1mtest_b\x1b[0m\n"
        "FAILED r2e_tests/test_1.py::test_c - AssertionError: no - really\n"
        "ERROR r2e_tests/test_2.py::test_d[x - y]\n"
        "=== 1 failed, 1 passed in 0.1s ===\n"
    )
    assert ends_of(output) == {"TestA.test_b": "PASSED", "test_c": "FAILED", "test_d[x": "ERROR"}
    assert ends_of("PASSED a.py::test_b\n") == {}


async def grade_of(folder: Path, script: str | None) -> Grade:
    """The grade of the oracle, or of a script in its place, where the image would be."""
    run_tests = " ".join(f"{name}={value}" for name, value in PYTEST_ENV.items())
    here = {
        "image": None,
        "user": None,
        "workdir": "/workspace",
        "hide": ["run_tests.sh"],
        "files": {
            "lib.py": BUGGY,
            "gone.py": "",
            "tests.py": TESTS,
            "run_tests.sh": f"{run_tests} PYTHONPATH=$PYTHONPATH:/opt/pytest:. python3 -m pytest "
            "-rA -p no:cacheprovider r2e_tests/*\n",
        },
    }
    loaded = load(folder, {**R2E, "rock": here})
    async with new_provider() as provider:
        loaded = (await make_ready(loaded, provider, "auto")).loaded
        spec = SandboxSpec(mounts=(pytest_mount(), mount_of_tests(folder)), workdir="/workspace")
        setting = Setting(provider=provider, spec=spec, bench=None, folder=folder)
        assert loaded.task.grader is not None
        async with (
            await provider.create(spec) as sandbox,
            Exam(loaded, loaded.task.grader, setting) as held,
        ):
            await lay_out(sandbox, loaded)
            await held.prepare(sandbox)
            if script is None:
                done = await run_solution(sandbox, loaded, "oracle", timeout_seconds=30)
            else:
                done = await sandbox.exec(["sh", "-euc", script], timeout_seconds=30)
            assert done.ok, done.stderr
            return await held.grade(sandbox)


def mount_of_tests(folder: Path) -> Mount:
    """Where the tests of an image are."""
    at = folder / "r2e_tests"
    at.mkdir(exist_ok=True)
    (at / "test_1.py").write_text(TESTS)
    return Mount(source=at, target="/r2e_tests")


@pytest.mark.userns
async def test_the_oracle_of_an_r2e_row_scores_and_neither_nothing_nor_a_forged_script_does(
    tmp_path: Path,
) -> None:
    good = await grade_of(tmp_path, None)
    assert good.reward == 1.0, good.detail
    nothing = await grade_of(tmp_path, "! [ -e run_tests.sh ]")
    assert nothing.reward == 0.0
    assert "1 of 2 tests ended as expected; TestDouble.test_three: FAILED" in nothing.detail
    forged = await grade_of(tmp_path, "echo 'exit 0' > run_tests.sh; mkdir r2e_tests")
    assert forged.reward == 0.0
