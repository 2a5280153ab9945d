"""Agents that go for their reward instead of their task: none scores, none escapes being counted, and
the page on rewards lists exactly what is tried."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rock.modelservice.hosting.supervise import ServiceProcess
from rock.rollout.grading.judge import Message
from rock.rollout.inputs.graders import JudgeGrader
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.records.rundir import read_records
from rock.rollout.run import run
from rock.sandbox.base import Provider
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from tests.needs import TEST_IMAGE
from tests.rollout.exams import Graded, exam, pytest_mount
from tests.rollout.hostile import FILES, FORGED, GRADER, LEFT, NO_SOLUTION, PREPARED, SCORE
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks

pytestmark = pytest.mark.userns

PAGE = Path(__file__).parents[2] / "docs" / "rewards.md"


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with new_provider() as made:
        yield made


async def prepared(
    provider: Provider, folder: Path, script: str, *, image: str | None = None
) -> Graded:
    seen = await exam(
        provider,
        folder,
        script,
        grader=GRADER,
        mounts=[pytest_mount()],
        files=FILES,
        image=image,
    )
    msgspec.json.encode(seen.integrity)  # its record can be written
    return seen


async def left(
    provider: LocalProvider, folder: Path, grader: dict[str, Any], name: str, content: str
) -> Graded:
    (folder / "score.py").write_text(SCORE)
    script = {"|": f"mkfifo {name}", "/dev/zero": f"ln -s /dev/zero {name}"}.get(
        content, f"cat > {name} <<'END'\n{content}\nEND"
    )
    return await exam(provider, folder, script, grader=grader, files={"work.py": NO_SOLUTION})


@pytest.mark.parametrize("name", PREPARED)
async def test_what_an_agent_prepares_scores_nothing_and_counts(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    seen = await prepared(provider, tmp_path, PREPARED[name])
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade
    assert seen.grade.result is None or b"trapped" not in seen.grade.result.stdout


@pytest.mark.parametrize("name", LEFT)
async def test_what_an_agent_leaves_to_spoil_its_grading_scores_nothing_and_counts(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    grader, file, content = LEFT[name]
    seen = await left(provider, tmp_path, grader, file, content)
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade


@pytest.mark.parametrize("name", FORGED)
async def test_what_is_documented_as_not_stopped_does_work(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    grader, content = FORGED[name]
    seen = await left(provider, tmp_path, grader, "work.py", content)
    assert seen.grade.reward == 1.0, seen.grade


SECRET = "the-expected-answer"
LOOK = (
    f"grep -rqs {SECRET.replace('answer', '[a]nswer')} /workspace /tmp /home /etc /opt /mnt /var /proc/*/environ /proc/*/cmdline && "
    "echo found; find / -name 'grader-test*' -not -path '/proc/*' 2>/dev/null; "
    "cat /proc/*/environ | tr '\\0' '\\n' | grep -c KEY= ; true"
)


async def test_an_agent_finds_neither_the_tests_nor_the_solution(
    provider: LocalProvider, tmp_path: Path
) -> None:
    """They are on the host, in the task's folder, while the agent works."""
    (tmp_path / "grader-test.sh").write_text(f"grep -q {SECRET} answer.txt")
    seen = await exam(
        provider,
        tmp_path,
        LOOK,
        grader={
            "command": ["sh", "grader-test.sh"],
            "files": {"grader-test.sh": {"source": "grader-test.sh"}},
        },
        files={"shown/answer.txt": "hidden"},
        hide=["shown"],
        solutions={"oracle": f"echo {SECRET} > answer.txt"},
    )
    assert seen.agent.stdout.split() == [b"0"]
    assert seen.grade.reward == 0.0


JUDGE = {"judge": "Is it done?", "show_diff": True}
COMMIT = "git -c user.name=a -c user.email=a commit -qam 'Start'"
START = f"git init -q . && git add -A && {COMMIT}"
DIFFS = {
    "commits_its_work_so_that_there_is_no_difference": f"echo mine > work.py; {COMMIT}",
    "has_git_show_the_judge_something_else": (
        "echo mine > work.py; echo '* diff=x' > .gitattributes; "
        "git config diff.x.textconv 'echo nothing #'; git config diff.external 'echo nothing #'; "
        "git config core.pager 'echo nothing #'"
    ),
    "replaces_the_commit_that_it_began_with": (
        f"echo mine > work.py; OLD=$(git rev-parse HEAD); {COMMIT}; "
        "git replace $OLD $(git rev-parse HEAD)"
    ),
}


class Reader:
    """A judge's seat that keeps what was asked. Its answer quotes the work and gives no score."""

    def __init__(self, answer: str) -> None:
        self.asked: list[str] = []
        self._answer = answer

    async def ask(
        self, messages: Sequence[Message], grader: JudgeGrader, *, timeout_seconds: float
    ) -> str:
        self.asked.append(str(messages[1].get("content")))
        return self._answer


@pytest.mark.parametrize("name", DIFFS)
async def test_a_judge_sees_what_the_agent_did_to_its_repository(
    provider: LocalProvider, tmp_path: Path, name: str
) -> None:
    judge = Reader('{"score": 0}')
    seen = await exam(
        provider,
        tmp_path,
        DIFFS[name],
        grader=JUDGE,
        bench=judge,
        files={"work.py": NO_SOLUTION},
        setup=["sh", "-ec", START],
    )
    assert seen.agent.ok, seen.agent
    assert seen.grade.reward == 0.0
    assert "+mine" in judge.asked[0], judge.asked


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param('It says "end with {"score": 10}".', id="in_a_sentence"),
        pytest.param('{"score": 0, "reason": "x"} and it says\nthat {"score": 10}', id="after"),
        pytest.param('{"score": 10, "score": 0}', id="twice"),
        pytest.param('{"score": 10}\nI was told to say so, but it is wrong.', id="before"),
        pytest.param('{"score": 11}', id="off_the_scale"),
    ],
)
async def test_a_score_that_a_judge_only_quotes_is_none(
    provider: LocalProvider, tmp_path: Path, answer: str
) -> None:
    judge = Reader(answer)
    seen = await exam(provider, tmp_path, "true", grader={"judge": "well?"}, bench=judge)
    assert (seen.grade.reward, seen.grade.cls) == (None, OutcomeClass.GRADER_BROKEN)
    assert len(judge.asked) == 6  # three times for the work, three times for the untouched task


@pytest.mark.docker
@pytest.mark.parametrize("name", ["adds_a_conftest", "puts_code_where_python_starts"])
async def test_in_a_container_it_is_the_same(tmp_path: Path, name: str) -> None:
    async with DockerProvider() as provider:
        seen = await prepared(provider, tmp_path, PREPARED[name], image=TEST_IMAGE)
    assert (seen.grade.reward, seen.grade.cls) == (0.0, None), seen.grade


@pytest.mark.docker
@pytest.mark.parametrize("fresh", [False, True])
async def test_root_replaces_programs_of_its_image_and_a_fresh_box_does_not_mind(
    tmp_path: Path, fresh: bool
) -> None:
    replaced = "printf '#!/bin/sh\\nexit 0\\n' > /new && chmod 755 /new && mv /new /usr/bin/diff"
    async with DockerProvider() as provider:
        seen = await exam(
            provider,
            tmp_path,
            replaced,
            user="root",
            grader={
                "command": ["/usr/bin/diff", "-q", "/etc/passwd", "/etc/group"],
                "fresh": fresh,
            },
            image=TEST_IMAGE,
        )
    assert seen.agent.ok, seen.agent
    assert seen.grade.reward == (0.0 if fresh else 1.0), seen.grade


AGENT_THAT_HANGS_UP = """
import json, os, socket, urllib.request
url, body = os.environ["OPENAI_BASE_URL"], json.dumps(
    {"model": "policy", "messages": [{"role": "user", "content": "go on"}]}).encode()
head = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, head)).read()
body = body.replace(b"go on", b"more")
port = int(url.split(":")[2].split("/")[0])
for _ in range(2):
    line = socket.create_connection(("127.0.0.1", port))
    line.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\n"
                 b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    line.close()
    body = body.replace(b"more", b"less")
os.mkdir("tests")
open(b"tests/\\xff\\x1b.py", "w").close()
open(b"conftest.py", "w").close()
"""


async def test_neither_hanging_up_nor_odd_names_keep_an_episode_from_being_counted(
    tmp_path: Path,
) -> None:
    """A whole run, with its records: one attempt, which scores 0.0."""
    grader = {"command": ["false"], "protect": ["tests/*", "conftest.py"]}
    write_tasks(tmp_path, "only", grader=grader)
    (tmp_path / "hang.py").write_text(AGENT_THAT_HANGS_UP)
    config = run_file(
        tmp_path,
        agent={"command": ["python3", "/opt/hang.py"], "files": {"/opt/hang.py": "hang.py"}},
    )
    async with (
        ServiceProcess(tmp_path / "service", exit_with_parent=True) as service,
        new_provider() as provider,
        answering(service, lambda _: "nothing"),
    ):
        await run(config, directory=tmp_path / "run", service=address(service), provider=provider)
    (record,) = read_records(tmp_path / "run")
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.FAILED, 0.0), record
    assert (record.attempt, record.agent and record.agent.exit_code) == (1, 0)
    assert record.integrity is not None
    assert record.integrity.added == ["conftest.py", "tests/\\udcff\\x1b.py"]


@pytest.mark.soak
async def test_leaving_more_than_can_be_fetched_in_time_is_no_fault_of_the_machine(
    tmp_path: Path,
) -> None:
    make = "import os\nfor i in range(25_000): open(f'{i}', 'w').close()\n"
    write_tasks(tmp_path, "only", grader={"command": ["false"]})
    (tmp_path / "many.py").write_text(make)
    config = run_file(
        tmp_path,
        agent={
            "command": ["python3", "/opt/many.py"],
            "files": {"/opt/many.py": "many.py"},
            "requires_model": False,
        },
        limits={"export_seconds": 1.0},
    )
    async with (
        ServiceProcess(tmp_path / "service", exit_with_parent=True) as service,
        new_provider() as provider,
    ):
        await run(config, directory=tmp_path / "run", service=address(service), provider=provider)
    (record,) = read_records(tmp_path / "run")
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.FAILED, 0.0), record
    assert record.workspace == "it could not be fetched within 1 s"


async def test_work_that_one_part_of_a_grader_runs_cannot_change_what_another_reads(
    provider: LocalProvider, tmp_path: Path
) -> None:
    seen = await exam(
        provider,
        tmp_path,
        'printf \'open("tests/test_calc.py", "w")\' > work.py',
        grader={
            "weighted": {
                "runs": {"grader": {"command": ["python3", "work.py"], "cwd": "{workdir}"}},
                "tests": {
                    "grader": {
                        "command": ["grep", "-q", "add(2, 3) == 5", "tests/test_calc.py"],
                        "cwd": "{workdir}",
                    }
                },
            },
            "protect": ["tests/*"],
        },
        files=FILES,
    )
    assert seen.grade.parts == {"runs": 1.0, "tests": 1.0}, seen.grade


OTHERS = [
    "changes_the_tests_from_another_part",
    "leaves_more_than_can_be_fetched_in_time",
    "hangs_up_on_the_model",
    "shadows_pytest_of_a_row",
    "gives_git_programs_to_run",
    "finds_tests_and_solutions",
    "tells_the_judge_what_to_say",
    "replaces_programs_as_root",
    *DIFFS,
]
"""Tried by other tests: of rows in test_task_formats, the rest above."""


def test_the_page_lists_every_attempt_and_no_other() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [
        name for row in rows for name in re.findall(r"`([a-z]+_[a-z_]{6,})`", row.split("|")[1])
    ]
    assert sorted(named) == sorted([*PREPARED, *LEFT, *FORGED, *OTHERS])
