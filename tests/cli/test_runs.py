"""`rock run --json` and `rock runs` on one real small run: events, figures, exit codes."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rock.errors import LedgerError
from rock.rollout.records.outcome import OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.rundir import read_records
from rock.rollout.report.overview import compare, find_runs, overview
from rock.testing import fake_openai_server
from rock.testing.made_run import MadeEpisode, MadeGroup, write_run
from tests.cli.command import Done, rock, started
from tests.rollout.live import AGENT

RUN = """\
tasks: tasks.jsonl
agent:
  command: [python3, /opt/agent.py, "{instruction}"]
  files: {/opt/agent.py: agent.py}
grader: {command: [grep, -q, "42", "{workdir}/answer.txt"]}
provider: local
episodes_per_task: 2
concurrency: 1
consume_timeout_seconds: 0
"""
ANSWERS = ["write 42", "done", "write 41", "done", "write 42", "done", "write 42", "done"]


async def _run(folder: Path) -> Done:
    (folder / "agent.py").write_text(AGENT)
    (folder / "run.yaml").write_text(RUN)
    rows = [{"task_id": name, "instruction": f"do {name}"} for name in ("first", "second")]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    async with fake_openai_server(ANSWERS) as hosted:
        return await rock(
            *("run", "run.yaml", "--json", "--model", "openai:m", "--api-base", hosted.url),
            *("--out", "runs/one"),
            home=folder,
            extra={"OPENAI_API_KEY": "sk-hosted"},
        )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """The folder with `runs/one`, and how `rock run --json` ended."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, asyncio.run(_run(folder))


@pytest.mark.userns
def test_json_events_tell_a_whole_run_and_nothing_else_is_printed(real: tuple[Path, Done]) -> None:
    _, done = real
    assert done.code == 0, done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    names = [event["event"] for event in events]
    assert (names[0], names[-1]) == ("run_started", "run_ended")
    assert names.count("attempt_done") == 4
    assert names.count("group_done") == 2
    total = events[-1]["report"]["total"]
    assert (total["episodes"], total["valid"], total["solved"]) == (4, 4, 3)
    phases = total["phases"]
    assert list(phases) == ["provision", "setup", "agent", "export", "grade", "teardown"]
    assert all(0 < spread["p50"] <= spread["p95"] for spread in phases.values())
    assert phases["agent"]["episodes"] == 4


async def test_a_narrow_terminal_cuts_neither_runs_nor_episodes(tmp_path: Path) -> None:
    name = "runs/a-run-with-a-name-that-somebody-chose-20261130-025832"
    task = "a-task-that-is-named-by-its-repository-and-its-commit__1234567890"
    rewards: list[float | None] = [1.0]
    made(tmp_path / name, **{task: rewards})
    narrow = {"COLUMNS": "40"}
    for command in (("runs", "list"), ("runs", "compare", name, name)):
        done = await rock(*command, home=tmp_path, extra=narrow)
        assert name in done.out, done
        assert "\N{HORIZONTAL ELLIPSIS}" not in done.out
    shown = await rock("show", name, home=tmp_path, extra=narrow)
    assert f"{task}/0" in shown.out


@pytest.mark.userns
async def test_the_report_says_how_long_phases_took_what_it_cost_and_how_sure_it_is(
    real: tuple[Path, Done],
) -> None:
    folder, _ = real
    done = await rock("runs", "show", "runs/one", home=folder)
    assert done.code == 0, done.err
    assert "valid 4 of 4 episodes (coverage 100%)" in done.out
    assert "pass@1 0.750 over 2 tasks" in done.out
    assert "pass@2 1.000 over 2 tasks" in done.out
    assert "interval: 95 %, wilson" in done.out
    assert "phase      p50 s    p95 s\nprovision" in done.out
    assert "cost: unknown" in done.out
    assert (folder / "runs/one/report.txt").read_text() in done.out


@pytest.mark.userns
async def test_runs_are_listed_with_how_far_they_are(real: tuple[Path, Done]) -> None:
    folder, _ = real
    shown = await rock("runs", "list", home=folder)
    assert "runs/one" in shown.out
    assert "openai:m" in shown.out
    assert "finished" in shown.out
    assert "4/4" in shown.out
    assert "0.750" in shown.out


@pytest.mark.userns
async def test_ctrl_c_ends_with_130_and_says_so_in_json_and_the_run_is_unfinished(
    tmp_path: Path,
) -> None:
    write_sleepers(tmp_path)
    async with started("run", "run.yaml", "--json", "--out", "out", home=tmp_path) as process:
        assert process.stdout is not None
        async with asyncio.timeout(40):
            while b'"phase":"agent"' not in (line := await process.stdout.readline()):
                assert line, "the run ended before an agent began"
            running = await asyncio.to_thread(overview, tmp_path / "out")
            process.send_signal(signal.SIGINT)
            rest = await process.stdout.read()
            assert await process.wait() == 130
    assert json.loads(rest.splitlines()[-1])["event"] == "run_stopped"
    assert (running.status, running.planned) == ("running", 1)
    assert overview(tmp_path / "out").status == "unfinished"


@pytest.mark.userns
async def test_too_many_infrastructure_failures_end_with_1(tmp_path: Path) -> None:
    write_sleepers(tmp_path, limits={"provision_seconds": 0.0001}, infra={"max_attempts": 1})
    done = await rock("run", "run.yaml", "--json", "--out", "out", home=tmp_path)
    assert done.code == 1
    assert json.loads(done.out.splitlines()[-1])["report"]["total"]["causes"] == {"infra": 1}
    assert "ended in an infrastructure failure" in done.err


def write_sleepers(folder: Path, **fields: Any) -> None:
    run = {
        "tasks": "tasks.jsonl",
        "agent": {"command": ["sleep", "600"], "requires_model": False},
        "grader": {"command": ["true"]},
        "consume_timeout_seconds": 0,
        "provider": "local",
        **fields,
    }
    (folder / "run.yaml").write_text(json.dumps(run))
    (folder / "tasks.jsonl").write_text('{"task_id": "sleep", "instruction": "sleep"}\n')


def made(path: Path, **rewards: list[float | None]) -> Path:
    """A run of tasks with these rewards; None is a sandbox that died."""

    def episode(reward: float | None) -> MadeEpisode:
        died = outcome_of(OutcomeClass.SANDBOX_DIED, Phase.AGENT)
        outcome = died if reward is None else graded(reward, agent_class=None)
        return MadeEpisode(outcome, None)

    write_run(path, [MadeGroup(task, [episode(r) for r in row]) for task, row in rewards.items()])
    return path


def test_runs_are_compared_over_the_tasks_that_both_can_say_something_about(
    tmp_path: Path,
) -> None:
    a = made(tmp_path / "a", x=[1, 0], y=[0, 0], z=[None], gone=[1])
    b = made(tmp_path / "b", x=[1, 1], y=[1, 0], z=[1], new=[0])
    found = compare(read_records(a), read_records(b))
    assert [(t.task_id, t.difference) for t in found.tasks] == [
        ("x", 0.5),
        ("y", 0.5),
        ("z", None),
        ("gone", None),
        ("new", None),
    ]
    assert (found.compared, found.difference, found.better, found.worse) == (2, 0.5, 2, 0)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (0.5, 0.5)


def test_a_run_compared_with_itself_is_no_different(tmp_path: Path) -> None:
    a = made(tmp_path / "a", x=[1, 0], y=[0, 0, 1])
    found = compare(read_records(a), read_records(a))
    assert (found.difference, found.better, found.worse) == (0.0, 0, 0)


async def test_a_comparison_is_a_table_with_a_verdict(tmp_path: Path) -> None:
    made(tmp_path / "a", x=[1, 0], y=[0, None])
    made(tmp_path / "b", x=[1, 1], y=[1, 0])
    done = await rock("runs", "compare", "a", "b", home=tmp_path)
    assert done.code == 0, done.err
    assert "B - A over 2 tasks: +0.500, 95 % +0.500 to +0.500; better in 2, worse in 0" in done.out
    assert "3/4 (75%)" in done.out
    assert "infra 1" in done.out


def test_directories_that_are_no_runs_are_passed_over_and_broken_ones_are_named(
    tmp_path: Path,
) -> None:
    made(tmp_path / "deep" / "er" / "a", x=[1])
    broken = made(tmp_path / "b", x=[1])
    (broken / "run.json").write_text("{")
    (tmp_path / "other").mkdir()
    found = {Path(one.path).name: one for one in map(overview, find_runs(tmp_path))}
    assert found.keys() == {"a", "b"}
    assert found["a"].status == "finished"
    assert (found["b"].status, found["b"].total) == ("unreadable", None)
    assert "not a run.json" in found["b"].detail


async def test_what_is_listed_comes_as_json_too(tmp_path: Path) -> None:
    made(tmp_path / "a", x=[1, 0])
    done = await rock("runs", "list", ".", "--json", home=tmp_path)
    (one,) = json.loads(done.out)
    assert (one["path"], one["planned"], one["total"]["solved"]) == ("a", 2, 1)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="nowhere: there is no such folder"):
        list(find_runs(tmp_path / "nowhere"))
