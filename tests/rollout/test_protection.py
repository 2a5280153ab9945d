"""What protects a grader: files put back as they were and told of, fresh boxes, hidden files and histories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rock.errors import TaskError
from rock.rollout.inputs.graders import is_guarded
from rock.sandbox.local import LocalProvider
from tests.rollout.exams import Graded, exam, pytest_mount
from tests.rollout.hostile import FILES, FIX, GRADER, PREPARED
from tests.rollout.live import new_provider

pytestmark = pytest.mark.userns


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with new_provider() as made:
        yield made


async def attack(provider: LocalProvider, folder: Path, script: str, **grader: Any) -> Graded:
    return await exam(
        provider,
        folder,
        script,
        grader={**GRADER, **grader},
        mounts=[pytest_mount()],
        files=FILES,
    )


@pytest.mark.parametrize("fresh", [False, True], ids=["same-box", "fresh-box"])
async def test_honest_work_scores_and_leaves_nothing_to_report(
    provider: LocalProvider, tmp_path: Path, fresh: bool
) -> None:
    seen = await attack(provider, tmp_path, FIX, fresh=fresh)
    assert seen.grade.reward == 1.0, seen.grade
    assert (seen.integrity.tampered, seen.integrity.restored) == (0, True)
    assert seen.integrity.protected == 2
    assert seen.integrity.fresh is fresh


SUBTLE = (
    "puts_a_link_where_the_tests_were",
    "adds_a_conftest",
    "shadows_programs_in_its_home",
    "puts_code_where_python_starts",
    "forges_a_compiled_test",
    "keeps_a_patched_test_from_being_removed",
    "gives_files_names_that_are_no_text",
)


@pytest.mark.parametrize("name", SUBTLE)
async def test_an_attack_on_the_grader_scores_nothing_in_a_fresh_box(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    seen = await attack(provider, tmp_path, PREPARED[name], fresh=True)
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade
    assert seen.integrity.restored


@pytest.mark.parametrize("name", SUBTLE)
async def test_honest_work_scores_in_spite_of_an_attack(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    """What was undone is really undone: the real tests ran."""
    seen = await attack(provider, tmp_path, f"{PREPARED[name]}\n{FIX}")
    assert seen.grade.reward == 1.0, (seen.grade, seen.agent.stderr)


@pytest.mark.parametrize(
    ("name", "changed", "added", "deleted", "fresh"),
    [
        ("patches_the_test", ["tests/test_calc.py"], [], [], False),
        ("deletes_the_test", [], [], ["tests/test_calc.py"], False),
        ("deletes_the_test", [], [], ["tests/test_calc.py"], True),
        ("adds_a_conftest", [], ["conftest.py"], [], False),
        ("adds_a_conftest", [], ["conftest.py"], [], True),
        ("gives_pytest_options", ["pyproject.toml"], [], [], True),
    ],
)
async def test_the_report_names_what_the_agent_touched(
    provider: LocalProvider,
    tmp_path: Path,
    name: str,
    changed: list[str],
    added: list[str],
    deleted: list[str],
    fresh: bool,
) -> None:
    found = (await attack(provider, tmp_path, PREPARED[name], fresh=fresh)).integrity
    assert (found.changed, found.added, found.deleted) == (changed, added, deleted)
    assert found.tampered == 1


async def test_a_reward_that_the_agent_wrote_is_removed_before_the_grader_runs(
    provider: LocalProvider, tmp_path: Path
) -> None:
    """A grader that insists on fixed places, as Harbor's do, and forgets to write its reward."""
    grader = {
        "command": ["sh", "/tmp/tests/test.sh"],
        "files": {"test.sh": "cat /tmp/tests/old /tmp/logs/reward.txt; true"},
        "tests_at": "/tmp/tests",
        "stale": ["/tmp/logs"],
        "reward": "file",
        "reward_files": ["/tmp/logs/reward.txt"],
    }
    write = "mkdir -p /tmp/logs /tmp/tests; echo 1.0 | tee /tmp/logs/reward.txt /tmp/tests/old"
    seen = await exam(provider, tmp_path, write, grader=grader)
    assert seen.grade.reward is None
    assert seen.grade.result is not None
    assert seen.grade.result.stdout == b""

    link = "mkdir -p /tmp/mine; echo 1.0 > /tmp/mine/reward.txt; ln -s /tmp/mine /tmp/logs"
    assert (await exam(provider, tmp_path, link, grader=grader)).grade.reward is None


async def test_what_is_hidden_is_gone_for_the_agent_and_there_for_the_grader(
    provider: LocalProvider, tmp_path: Path
) -> None:
    look = "cat oracle/answer.txt secret.txt; find / -name answer.txt 2>/dev/null; true"
    seen = await exam(
        provider,
        tmp_path,
        look,
        grader={"command": ["grep", "-q", "42", "oracle/answer.txt"], "cwd": "{workdir}"},
        files={"oracle/answer.txt": "42", "secret.txt": "s"},
        hide=["oracle", "/workspace/secret.txt"],
    )
    assert seen.agent.stdout == b""
    assert seen.grade.reward == 1.0
    assert seen.integrity.hidden == ["/workspace/oracle", "/workspace/secret.txt"]


async def test_hiding_what_is_not_there_is_the_tasks_mistake(
    provider: LocalProvider, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match="hide: oracle"):
        await exam(provider, tmp_path, "true", grader={"command": ["true"]}, hide=["oracle"])


HISTORY = (
    "git init -q . && git config user.email a@b && git config user.name a && "
    "echo 1 > a && git add -A && git commit -qm first && "
    "echo the-fix > a && git commit -qam fix && git reset -q --hard HEAD~1"
)
LOOK = "git log --oneline --all --reflog | wc -l; git fsck --unreachable 2>/dev/null; cat a"


@pytest.mark.parametrize(("how", "commits"), [("keep", b"2"), ("squash", b"1"), ("remove", b"0")])
async def test_git_history_is_hidden_when_asked(
    provider: LocalProvider, tmp_path: Path, how: str, commits: bytes
) -> None:
    seen = await exam(
        provider,
        tmp_path,
        LOOK,
        grader={"command": ["true"]},
        setup=["sh", "-ec", HISTORY],
        git=how,
    )
    lines = seen.agent.stdout.split()
    assert (lines[0], lines[-1]) == (commits, b"1")
    assert seen.integrity.git == how


async def test_a_fresh_box_gets_only_what_is_collected(
    provider: LocalProvider, tmp_path: Path
) -> None:
    seen = await exam(
        provider,
        tmp_path,
        "echo mine > answer.txt; echo mine > base.txt; echo x > /tmp/left; echo y > stray.txt",
        grader={
            "command": ["sh", "-c", "cat answer.txt base.txt; ls; test ! -e /tmp/left"],
            "cwd": "{workdir}",
            "fresh": True,
            "collect": ["answer.txt", "never.txt"],
        },
        files={"base.txt": "base\n"},
    )
    assert seen.grade.reward == 1.0
    assert seen.grade.result is not None
    assert seen.grade.result.stdout.split() == [b"mine", b"base", b"answer.txt", b"base.txt"]
    assert seen.integrity.collected_sha256 is not None


@pytest.mark.parametrize(
    ("path", "glob", "fits"),
    [
        ("conftest.py", "conftest.py", True),
        ("deep/er/conftest.py", "conftest.py", True),
        ("my_conftest.py", "conftest.py", False),
        ("tests/a/b.py", "tests/*", True),
        ("pkg/tests/b.py", "tests/*", True),
        ("contests/b.py", "tests/*", False),
        ("tests.py", "tests/*", False),
    ],
)
def test_a_glob_without_a_slash_is_of_names(path: str, glob: str, fits: bool) -> None:
    assert is_guarded(path, [glob]) is fits


@pytest.mark.parametrize(
    "name",
    [
        "patches_the_test",
        "adds_a_conftest",
        "shadows_pytest",
        "forges_a_compiled_test",
    ],
)
async def test_the_attack_works_where_nothing_is_protected(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    """Else the tests above would show nothing."""
    seen = await attack(provider, tmp_path, PREPARED[name], protect=[])
    assert seen.grade.reward == 1.0, seen.grade
