"""Harbor directories and SWE rows as tasks: what they become, what is refused, and that they run."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.rollout.episode.agent import run_solution
from rock.rollout.inputs.graders import Grader
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.tasks import load_tasks
from rock.sandbox.base import ExecResult, Sandbox
from rock.sandbox.local import LocalProvider
from tests.rollout.exams import PYTEST_AT, Graded, exam, pytest_mount
from tests.rollout.live import new_provider


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with new_provider() as made:
        yield made


def harbor_task(folder: Path, toml: str = "", **files: str) -> Path:
    task = folder / "my-task"
    given = {
        "task.toml": toml or 'schema_version = "1.4"\n',
        "instruction.md": "Write 42 to answer.txt.\n",
        "environment/Dockerfile": "FROM debian\nWORKDIR /app\n",
        "tests/test.sh": "grep -qx 42 answer.txt && echo 1 > /logs/verifier/reward.txt\n",
        **files,
    }
    for name, text in given.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task


def load_one(folder: Path, name: str = "my-task") -> LoadedTask:
    (loaded,) = load_tasks(name, base=folder)
    return loaded


def command_grader(loaded: LoadedTask) -> Grader:
    assert isinstance(loaded.task.grader, Grader)
    return loaded.task.grader


TOML = """\
version = "1.0"
[metadata]
difficulty = "hard"
[task]
name = "org/answer"
[agent]
timeout_sec = 33.5
user = "root"
[verifier]
timeout_sec = 44
environment_mode = "separate"
env = {MODE = "strict"}
[environment]
docker_image = "example.org/answer:1"
workdir = "/srv/app"
env = {LEVEL = "${LEVEL:-3}x"}
new_field_of_a_later_version = true
"""


def test_a_harbor_directory_becomes_a_task(tmp_path: Path) -> None:
    harbor_task(tmp_path, TOML.replace("${LEVEL:-3}x", "3"), **{"solution/solve.sh": "true"})
    task = load_one(tmp_path).task
    assert (task.task_id, task.image, task.workdir) == (
        "org/answer",
        "example.org/answer:1",
        "/srv/app",
    )
    assert task.instruction == "Write 42 to answer.txt.\n"
    assert task.timeouts.agent_seconds == 33.5
    assert (task.user, task.env) == ("root", {"LEVEL": "3"})
    assert task.metadata["difficulty"] == "hard"
    assert isinstance(task.grader, Grader)
    assert (task.grader.timeout_seconds, task.grader.fresh) == (44.0, True)
    assert task.grader.env == {"LEVEL": "3", "MODE": "strict"}
    assert task.solutions["oracle"].user == "root"


def test_files_that_a_dockerfile_copies_are_in_the_working_directory(tmp_path: Path) -> None:
    docker = (
        "FROM x AS build\nFROM y\nWORKDIR /app\nWORKDIR sub\nCOPY --chown=1:1 a.txt b.txt ./in/\n"
        'COPY ["a.txt", "renamed.txt"]\nCOPY --from=build /bin/x /app/sub/x\nADD a.txt \\\n  /etc/a\n'
        "COPY missing.txt .\n"
    )
    harbor_task(
        tmp_path,
        **{"environment/Dockerfile": docker, "environment/a.txt": "a", "environment/b.txt": "b"},
    )
    task = load_one(tmp_path).task
    assert task.workdir == "/app/sub"
    assert task.build is not None
    assert task.build.only_files
    assert {name: file.source for name, file in task.build.otherwise.items()} == {
        "in/a.txt": "environment/a.txt",
        "in/b.txt": "environment/b.txt",
        "renamed.txt": "environment/a.txt",
    }


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[[steps]]\nname = 'one'\n", r"task\.toml: steps: .*several steps"),
        ("[environment]\nos = 'windows'\n", r"environment\.os: expected linux"),
        ("[verifier]\ntimeout_sec = 'long'\n", r"verifier\.timeout_sec: .*\(given: 'long'\)"),
        ("[verifier.env]\nKEY = '${OPENAI_API_KEY}'\n", r"verifier\.env\.KEY: .*reach the sandbox"),
        ("[environment\n", r"task\.toml: not TOML"),
        ("[environment]\nbuild_timeout_sec = -1\n", r"build\.timeout_seconds: .*\(given: -1\.0\)"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(tmp_path: Path, toml: str, message: str) -> None:
    harbor_task(tmp_path, toml)
    with pytest.raises(ConfigError, match=message):
        load_one(tmp_path)


def test_a_harbor_directory_of_several_containers_is_refused(tmp_path: Path) -> None:
    harbor_task(tmp_path, **{"environment/docker-compose.yaml": "services: {}\n"})
    with pytest.raises(ConfigError, match=r"docker-compose\.yaml: tasks of several containers"):
        load_one(tmp_path)


def test_a_harbor_directory_without_tests_is_refused(tmp_path: Path) -> None:
    (harbor_task(tmp_path) / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"tests/test\.sh: no such file"):
        load_one(tmp_path)


async def oracle_of(
    provider: LocalProvider, loaded: LoadedTask, folder: Path, *, and_then: str = "true"
) -> Graded:
    async def act(sandbox: Sandbox) -> ExecResult:
        done = await run_solution(sandbox, loaded, "oracle", timeout_seconds=30)
        assert done.ok, done.stderr.decode(errors="replace")
        return await sandbox.exec(["sh", "-ec", and_then], timeout_seconds=30)

    data = loaded.task.model_dump(exclude_unset=True, exclude={"grader"})
    assert loaded.task.grader is not None
    return await exam(
        provider,
        loaded.folder,
        act,
        grader=loaded.task.grader.model_dump(exclude_unset=True),
        mounts=[pytest_mount()],
        attempt=folder,
        **data,
    )


TESTS_SH = """\
#!/bin/bash
cat /logs/verifier/* 2>/dev/null && exit 1
[ "$(pwd)" = /app ] && grep -qx 42 answer.txt && echo 1 > /logs/verifier/reward.txt && exit
echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.userns
@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_the_harbor_oracle_scores_and_a_forged_reward_does_not(
    provider: LocalProvider, tmp_path: Path, mode: str
) -> None:
    harbor_task(
        tmp_path,
        f"[verifier]\nenvironment_mode = '{mode}'\n[solution.env]\nVALUE = '42'\n",
        **{
            "tests/test.sh": TESTS_SH,
            "solution/solve.sh": '#!/bin/sh\necho "$VALUE" > /app/answer.txt\n',
        },
    )
    loaded = load_one(tmp_path)
    good = await oracle_of(provider, loaded, tmp_path)
    assert good.grade.reward == 1.0, good.grade
    forged = await oracle_of(provider, loaded, tmp_path, and_then="echo 41 > answer.txt")
    assert forged.grade.reward == 0.0, forged.grade
    assert good.integrity.fresh is (mode == "separate")


BUGGY = "def double(x):\n    return x + 2\n"
FIXED = "def double(x):\n    return x * 2\n"
OLD_TEST = "from lib import double\n\n\ndef test_two():\n    assert double(2) == 4\n"
NEW_TEST = f"{OLD_TEST}\n\ndef test_three():\n    assert double(3) == 6\n"
FIX = """\
--- a/lib.py
+++ b/lib.py
@@ -1,2 +1,2 @@
 def double(x):
-    return x + 2
+    return x * 2
"""
TEST_PATCH = """\
--- a/tests/test_lib.py
+++ b/tests/test_lib.py
@@ -3,3 +3,7 @@
\x20
 def test_two():
     assert double(2) == 4
+
+
+def test_three():
+    assert double(3) == 6
"""
REPOSITORY = (
    "git init -q . && git add -A && git -c user.name=a -c user.email=a commit -qm start && "
    "sed -i 's/x + 2/x * 2/' lib.py && git -c user.name=a -c user.email=a commit -qam 'the fix' && "
    "git reset -q --hard HEAD~1"
)
ROW: dict[str, Any] = {
    "instance_id": "me__lib-1",
    "repo": "me/lib",
    "base_commit": "abc",
    "version": "1",
    "problem_statement": "double(3) is 5",
    "patch": FIX,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": json.dumps(["tests/test_lib.py::test_three"]),
    "PASS_TO_PASS": ["tests/test_lib.py::test_two"],
    "hints_text": "",
}
RUN_TESTS = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH={PYTEST_AT}:. /usr/bin/python3 -m pytest -rA tests"
HERE: dict[str, Any] = {
    "image": None,
    "workdir": "/workspace",
    "files": {"lib.py": BUGGY, "tests/test_lib.py": OLD_TEST},
    "setup": ["sh", "-ec", REPOSITORY],
}


def load_row(folder: Path, **changes: Any) -> LoadedTask:
    (folder / "rows.jsonl").write_text(json.dumps({**ROW, **changes}) + "\n")
    return load_one(folder, "rows.jsonl")


def test_a_swe_bench_row_becomes_a_task(tmp_path: Path) -> None:
    loaded = load_row(tmp_path)
    task = loaded.task
    assert task.task_id == "me__lib-1"
    assert task.image == "swebench/sweb.eval.x86_64.me_1776_lib-1:latest"
    assert (task.workdir, task.git) == ("/testbed", "squash")
    assert "double(3) is 5" in task.instruction
    assert "return x * 2" not in task.instruction
    grader = command_grader(loaded)
    assert grader.tests == ["tests/test_lib.py::test_three", "tests/test_lib.py::test_two"]
    assert "tests/test_lib.py" in grader.guarded()
    assert task.metadata["repo"] == "me/lib"


def test_a_swe_smith_row_brings_its_bug_as_a_patch(tmp_path: Path) -> None:
    loaded = load_row(tmp_path, image_name="swesmith/x", test_patch="", patch="BUG")
    assert loaded.task.image == "swesmith/x"
    assert loaded.task.files[".rock-bug.patch"].text == "BUG"
    assert "-R" in " ".join(loaded.task.solutions["oracle"].command)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"FAIL_TO_PASS": "[oops"}, r"rows\.jsonl:1: FAIL_TO_PASS: not JSON"),
        ({"PASS_TO_PASS": [1]}, r"PASS_TO_PASS: expected a list of tests"),
        ({"test_patch": 5}, r"test_patch: expected text \(given: 5\)"),
        ({"rock": 5}, r"rock: expected fields of a task \(given: 5\)"),
        ({"rock": {"colour": 1}}, r"colour: .*no such field"),
    ],
)
def test_a_wrong_row_is_named_with_its_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_row(tmp_path, **change)


@pytest.mark.userns
async def test_the_oracle_of_a_row_scores_and_the_fix_is_not_in_the_history(
    provider: LocalProvider, tmp_path: Path
) -> None:
    loaded = load_row(tmp_path, rock=HERE, test_cmd=RUN_TESTS)
    good = await oracle_of(
        provider,
        loaded,
        tmp_path,
        and_then="git log --all --reflog --oneline; git fsck --unreachable",
    )
    assert good.grade.reward == 1.0, good.grade
    assert good.agent.stdout.splitlines()[0].endswith(b"Start")
    assert len(good.agent.stdout.splitlines()) == 1
    spoiled = await oracle_of(
        provider, loaded, tmp_path, and_then="echo 'def double(x): return 4' > lib.py"
    )
    assert spoiled.grade.reward == 0.0
    assert "1 of 2 tests passed" in spoiled.grade.detail


STEER = {
    "shadows_pytest_of_a_row": (
        "printf 'print(\"short test summary info\\\\nPASSED tests/test_lib.py::test_two"
        "\\\\nPASSED tests/test_lib.py::test_three\")\\n' > pytest.py"
    ),
    "gives_git_programs_to_run": (
        "echo '* filter=x' > .gitattributes; git config core.fsmonitor 'touch /workspace/trapped'; "
        "git config filter.x.clean 'touch /workspace/trapped; cat'; "
        "git config filter.x.smudge 'touch /workspace/trapped; cat'"
    ),
}


@pytest.mark.userns
@pytest.mark.parametrize("name", STEER)
async def test_an_agent_cannot_steer_the_tests_of_a_row(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    run = f"{RUN_TESTS.replace(f'{PYTEST_AT}:.', PYTEST_AT)}; ls trapped"
    loaded = load_row(tmp_path, rock=HERE, test_cmd=run)
    grader = loaded.task.grader
    assert grader is not None
    seen = await exam(
        provider,
        tmp_path,
        STEER[name],
        grader=grader.model_dump(exclude_unset=True),
        mounts=[pytest_mount()],
        workdir=HERE["workdir"],
        files=HERE["files"],
        setup=HERE["setup"],
    )
    assert seen.agent.ok, seen.agent
    assert seen.grade.reward == 0.0, seen.grade
    assert seen.grade.result is not None
    assert seen.grade.result.exit_code == 2  # ls: nothing was run over the files
    assert "1 of 2 tests passed" in seen.grade.detail


def test_a_row_whose_solution_changes_pytest_does_not_put_it_back(tmp_path: Path) -> None:
    patch = "--- a/src/_pytest/main.py\n+++ b/src/_pytest/main.py\n"
    guarded = command_grader(load_row(tmp_path, patch=patch)).guarded()
    assert "_pytest/*" not in guarded
    assert {"conftest.py", "pytest.py", "sitecustomize.py"} <= set(guarded)


@pytest.mark.userns
async def test_the_bug_of_a_swe_smith_row_is_in_the_sandbox(
    provider: LocalProvider, tmp_path: Path
) -> None:
    bug = FIX.replace(
        "-    return x + 2\n+    return x * 2", "-    return x * 2\n+    return x + 2"
    )
    files = {"lib.py": FIXED, "tests/test_lib.py": NEW_TEST, ".rock-bug.patch": bug}
    apply_bug = (
        f"{REPOSITORY.split(' && sed')[0]} && git apply .rock-bug.patch && rm .rock-bug.patch"
    )
    own = {**HERE, "files": files, "setup": ["sh", "-ec", apply_bug]}
    loaded = load_row(
        tmp_path, image_name="x", test_patch="", patch=bug, rock=own, test_cmd=RUN_TESTS
    )
    assert (await oracle_of(provider, loaded, tmp_path)).grade.reward == 1.0
    undone = await oracle_of(provider, loaded, tmp_path, and_then="git checkout -q lib.py")
    assert undone.grade.reward == 0.0
