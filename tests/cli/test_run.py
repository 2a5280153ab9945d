"""`rock run` as a person types it: its flags, its exit codes, what it says, and broken directories."""

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from rock.rollout.records.ledger import replay
from tests.cli.command import Done, rock, started
from tests.rollout.live import wait_until

pytestmark = [pytest.mark.userns, pytest.mark.timeout(120)]

GRADE = 'test "$(cat "$0/answer.txt")" = '


def write(folder: Path, *tasks: str, right: str = "42", **fields: Any) -> None:
    rows = [{"task_id": name, "instruction": "x"} for name in tasks or ("a",)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run: dict[str, Any] = {
        "tasks": "tasks.jsonl",
        "agent": {"command": ["sh", "-c", "echo 42 > answer.txt"], "requires_model": False},
        "grader": {"command": ["sh", "-c", f"{GRADE}{right}", "{workdir}"]},
        "provider": "local",
        "consume_timeout_seconds": 0,
        **fields,
    }
    (folder / "run.yaml").write_text(json.dumps(run))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        pytest.param(["run.yaml", "--retry", "infra"], "retry: expected the directory", id="retry"),
        pytest.param(
            ["run.yaml", "--out", "out", "--only", "bb"], "did you mean 'b'?", id="no-such-task"
        ),
        pytest.param([], "expected a run file, or --resume", id="nothing", marks=pytest.mark.soak),
        pytest.param(
            ["run.yaml", "--regrade"], "regrade: expected the", id="regrade", marks=pytest.mark.soak
        ),
        pytest.param(
            ["run.yaml", "--retry", "all"], "not one of 'infra'", id="all", marks=pytest.mark.soak
        ),
        pytest.param(
            ["run.yaml", "--resume", "a", "--out", "b"],
            "--out: expected no other directory",
            id="two-directories",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ["run.yaml", "--regrade", "--retry", "infra"],
            "retry, regrade: expected one of them",
            id="two-ways",
            marks=pytest.mark.soak,
        ),
    ],
)
async def test_flags_that_make_no_sense_are_usage_and_leave_nothing(
    tmp_path: Path, argv: list[str], said: str
) -> None:
    write(tmp_path, "a", "b")
    refused = await rock("run", *argv, home=tmp_path)
    assert (refused.code, "Traceback" in refused.err) == (2, False), refused.err
    assert said in refused.err
    assert names_in(tmp_path) == ["run.yaml", "tasks.jsonl"]


async def test_a_run_is_done_in_parts_and_graded_again(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    only = await rock("run", "run.yaml", "--out", "out", "--only", "b", home=tmp_path)
    assert (only.code, only.err) == (0, "")
    assert not (tmp_path / "out/episodes/a").exists()
    rest = await rock("run", "--resume", "out", home=tmp_path)
    assert (rest.code, rest.err) == (0, "")
    assert "2 tasks, 2 episodes, 1 done before" in rest.out
    write(tmp_path, "a", "b", right="43")
    again = await rock("run", "run.yaml", "--out", "out", "--regrade", home=tmp_path)
    assert (again.code, again.err) == (0, "")
    assert "graded again: 2, grades changed: 2" in again.out


async def test_too_many_infrastructure_failures_are_1_and_can_be_tried_again(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "shared"
    flag.mkdir()
    (flag / "fail").touch()
    (tmp_path / "agent.py").write_text(
        "from rock.errors import SandboxDied\nfrom pathlib import Path\n"
        "async def agent(seat):\n"
        "    if Path(__file__).with_name('shared').joinpath('fail').exists():\n"
        "        raise SandboxDied('as told')\n"
        "    await seat.run('echo 42 > answer.txt')\n"
    )
    write(
        tmp_path,
        agent={"python": "agent.py:agent", "requires_model": False},
        infra={"max_attempts": 1},
    )
    failed = await rock("run", "run.yaml", "--out", "out", home=tmp_path)
    assert failed.code == 1
    assert "1 of 1 episodes ended in an infrastructure failure (allowed: 20%)" in failed.err
    assert "go on with: rock run --resume out (--retry infra" in failed.err
    (flag / "fail").unlink()
    mended = await rock("run", "--resume", "out", "--retry", "infra", home=tmp_path)
    assert (mended.code, mended.err) == (0, "")
    assert "pass@1 1.000" in mended.out


async def test_ctrl_c_says_how_to_go_on_and_a_second_harness_is_refused(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60"]
    write(tmp_path, agent={"command": command, "requires_model": False})
    async with started("run", "run.yaml", "--out", "out", home=tmp_path) as first:
        await wait_until((tmp_path / "out/episodes/a/0/attempt-1/session").exists)
        second = await rock("run", "--resume", "out", home=tmp_path)
        assert second.code == 1
        assert "another harness is working in this run directory" in second.err
        os.kill(first.pid, signal.SIGINT)
        _, err = await asyncio.wait_for(first.communicate(), 30)
    assert first.returncode == 130
    assert err.decode().splitlines() == [
        "rock: stopping; what runs is ended and removed",
        "rock: interrupted; go on with: rock run --resume out",
    ]
    state = replay((tmp_path / "out/ledger.jsonl").read_bytes(), source="ledger")[0]
    assert [group.status for group in state.groups.values()] == ["pending"]


@pytest.mark.soak
async def test_what_was_interrupted_is_gone_on_with_as_it_was_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    assert (await rock("run", "run.yaml", "--out", "out", home=tmp_path)).code == 0
    other = {"command": ["sh", "-c", "touch /workspace/x; sleep 60", "{workdir}"]}
    write(tmp_path, "a", "b", grader=other)
    refused = await rock("run", "run.yaml", "--out", "out", home=tmp_path)
    assert "grader.command.2: the run has 'test" in refused.err
    argv = ("run", "run.yaml", "--out", "out", "--regrade", "--only", "b")
    async with started(*argv, home=tmp_path) as again:
        await wait_until((tmp_path / "out/run-1.json").exists)
        assert again.stdout is not None
        await asyncio.wait_for(again.stdout.readline(), 30)
        again.send_signal(signal.SIGINT)
        _, err = await asyncio.wait_for(again.communicate(), 30)
    assert again.returncode == 130
    assert err.decode().endswith("rock run --resume out --only b --regrade\n")
    state = replay((tmp_path / "out/ledger.jsonl").read_bytes(), source="ledger")[0]
    assert [group.episodes[0].grading for group in state.groups.values()] == [1, 1]


class Kept:
    """A finished run, copies of it that get broken, and resuming those."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.lines = (home / "whole/ledger.jsonl").read_bytes().splitlines(keepends=True)
        self.begun = next(n for n, line in enumerate(self.lines) if b'"started"' in line)
        self.first = next(
            line for line in self.lines if b'"started"' in line and b'.00000"' in line
        )
        """The line that says that `a` started; it may have been written after that of `b`."""
        self.record = (home / "whole/episodes/b/0/attempt-1/record.json").read_bytes()

    def copy(self, name: str, *, lines: int | None = None) -> Path:
        shutil.copytree(self.home / "whole", self.home / name)
        if lines is not None:
            (self.home / name / "ledger.jsonl").write_bytes(b"".join(self.lines[:lines]))
        return self.home / name

    async def resumed(self, name: str, *flags: str) -> Done:
        done = await rock("run", "--resume", name, *flags, home=self.home)
        assert "Traceback" not in done.err, done.err
        return done


@pytest.fixture
async def kept(tmp_path: Path) -> Kept:
    write(tmp_path, "a", "b")
    assert (await rock("run", "run.yaml", "--out", "whole", home=tmp_path)).code == 0
    return Kept(tmp_path)


@pytest.mark.soak
async def test_a_torn_ledger_a_missing_report_and_foreign_files_are_no_matter(kept: Kept) -> None:
    torn = kept.copy("torn")
    (torn / "report.json").unlink()
    whole = b"".join(kept.lines)
    (torn / "ledger.jsonl").write_bytes(whole[:-30] + b"\0" * 500)
    (torn / "episodes/zzz/9/attempt-9").mkdir(parents=True)
    (torn / "episodes/a/0/attempt-1/foreign").write_text("x")
    assert (await kept.resumed("torn")).code == 0
    assert json.loads((torn / "report.json").read_bytes())["total"]["solved"] == 2
    assert (torn / "ledger.jsonl").read_bytes().startswith(b"".join(kept.lines[:-1]))
    assert (torn / "episodes/a/0/attempt-1/foreign").exists()


async def test_episodes_that_the_ledger_lost_are_run_again_beside_what_they_left(
    kept: Kept,
) -> None:
    half = kept.copy("half", lines=kept.begun)
    with (half / "ledger.jsonl").open("ab") as ledger:
        ledger.write(kept.first)
    # One attempt had begun and left half a record; the other is unknown to the ledger.
    (half / "episodes/a/0/attempt-1/record.json").write_bytes(kept.record[:40])
    assert (await kept.resumed("half")).code == 0
    assert (half / "episodes/b/0/left-1-attempt-1/record.json").read_bytes() == kept.record
    assert (half / "episodes/b/0/attempt-1/record.json").read_bytes() != kept.record
    first = json.loads((half / "episodes/a/0/attempt-1/record.json").read_bytes())
    assert first["outcome"]["class"] == "interrupted"
    assert (half / "episodes/a/0/attempt-2/record.json").exists()


@pytest.mark.soak
async def test_what_cannot_be_mended_is_named(kept: Kept) -> None:
    for name, data, said in [
        ("gone", None, "the record of a finished episode is gone"),
        ("cut", kept.record[:40], "not a record"),
        ("other", kept.record, "it is the record of another attempt"),
    ]:
        record = kept.copy(name) / "episodes/a/0/attempt-1/record.json"
        record.unlink()
        if data is not None:
            record.write_bytes(data)
        for flags in ((), ("--regrade",)):
            done = await kept.resumed(name, *flags)
            assert (done.code, said in done.err) == (1, True), done.err
    lines = [*kept.lines[:3], kept.lines[3][:20] + b"\n", *kept.lines[4:]]
    (kept.copy("middle") / "ledger.jsonl").write_bytes(b"".join(lines))
    assert "ledger.jsonl:4: not a ledger line" in (await kept.resumed("middle")).err
    (kept.copy("lost") / "ledger.jsonl").unlink()
    assert "its ledger.jsonl is gone" in (await kept.resumed("lost")).err
    settings = kept.copy("settings") / "run.json"
    settings.write_text(settings.read_text().replace('"concurrency": 4', '"concurrency": "many"'))
    wrong = await kept.resumed("settings")
    assert (wrong.code, "run.json: concurrency: " in wrong.err) == (2, True)
