"""`rock demo` runs the whole loop, says what it is, and leaves nothing but its run directory."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.cli.command import Done, rock, started
from tests.cli.leftovers import children_of, command_line, gone, wait_until

PROVIDERS = [
    pytest.param("local", marks=pytest.mark.userns),
    pytest.param("docker", marks=pytest.mark.docker),
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


async def demo(home: Path, *argv: str) -> Done:
    return await rock("demo", "--out", "run", *argv, home=home, seconds=250)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_demo_solves_some_and_not_all_and_says_that_it_is_scripted(
    tmp_path: Path, provider: str
) -> None:
    done = await demo(tmp_path, "--provider", provider, "--tasks", "2", "--episodes", "2")
    assert done.code == 0, done.err
    assert "scripted" in done.out
    assert f"sandboxes by {provider}" in done.out
    records = [json.loads(p.read_bytes()) for p in (tmp_path / "run").rglob("record.json")]
    rewards = [record["outcome"]["reward"] for record in records]
    assert len(rewards) == 4
    assert set(rewards) == {0.0, 1.0}
    # The trainer took both groups, with rows: every answer's tokens are there.
    assert "taken by the trainer: 2" in done.out
    assert re.search(
        r"trainer \(scripted\): HumanEval/0: advantages .*\d+ sampled tokens", done.out
    )
    assert all(record["usage"]["trainable_tokens"] > 100 for record in records)
    assert all(record["untrainable"] == {} for record in records)
    # The command that it names shows a trajectory.
    command = re.search(r"one trajectory: rock (show .*)", done.out)
    assert command is not None
    shown = await rock(*command[1].split(), home=tmp_path)
    assert shown.code == 0, shown.err
    assert "solution.py" in shown.out
    narrow = await rock(*command[1].split(), home=tmp_path, extra={"COLUMNS": "40"})
    assert (
        "\ndef has_close_elements(numbers: List[float], threshold: float) -> bool:\n" in narrow.out
    )
    as_json = await rock(*command[1].split(), "--json", home=tmp_path)
    assert "trajectory" in json.loads(as_json.out)


@pytest.mark.parametrize(
    ("provider", "number"),
    [
        pytest.param("local", signal.SIGINT, marks=pytest.mark.userns),
        pytest.param("docker", signal.SIGTERM, marks=[pytest.mark.docker, pytest.mark.soak]),
    ],
)
async def test_ctrl_c_in_the_middle_leaves_no_process_and_a_run_that_can_go_on(
    tmp_path: Path, provider: str, number: signal.Signals
) -> None:
    argv = ["demo", "--out", "run", "--provider", provider, "--tasks", "2", "--episodes", "2"]
    async with started(*argv, home=tmp_path) as process:
        # Service, trainer and at least one sandbox or attempt are up before the signal.
        await wait_until(
            lambda: (
                (tmp_path / "run/service/ready.json").exists()
                and any((tmp_path / "run/episodes").glob("*/*/attempt-1"))
                and len(children_of(process.pid)) >= 2
            )
        )
        family = children_of(process.pid)
        process.send_signal(number)
        out, err = await process.communicate()
    assert process.returncode == 130, out.decode() + err.decode()
    assert "Traceback" not in err.decode()
    await wait_until(lambda: all(gone(one) for one in family))
    again = await demo(tmp_path, *argv[3:])
    assert again.code == 0, again.err
    finals = (tmp_path / "run/ledger.jsonl").read_text().count('"final":true')
    assert finals == 4


@pytest.mark.userns
async def test_a_demo_whose_trainer_dies_ends_and_says_so(tmp_path: Path) -> None:
    argv = ["demo", "--out", "run", "--provider", "local", "--tasks", "4"]
    async with started(*argv, home=tmp_path) as process:
        await wait_until(lambda: any((tmp_path / "run/episodes").glob("*/*/attempt-1")))
        trainers = [
            pid for pid, _ in children_of(process.pid) if b"rock.demo.trainer" in command_line(pid)
        ]
        assert len(trainers) == 1
        os.kill(trainers[0], signal.SIGKILL)
        _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 1
    assert "trainer ended with code -9" in err.decode()


@pytest.mark.userns
async def test_a_demo_survives_the_crash_of_its_service(tmp_path: Path) -> None:
    argv = ["demo", "--out", "run", "--provider", "local", "--tasks", "2", "--episodes", "2"]
    ready = tmp_path / "run/service/ready.json"
    async with started(*argv, home=tmp_path) as process:
        await wait_until(lambda: any((tmp_path / "run/episodes").glob("*/*/attempt-1")))
        os.kill(json.loads(ready.read_bytes())["pid"], signal.SIGKILL)
        out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, out.decode() + err.decode()
    assert (tmp_path / "run/service/journal.log").read_bytes().count(b'"t":"booted"') == 2
    finals = (tmp_path / "run/ledger.jsonl").read_text().count('"final":true')
    assert finals == 4


@pytest.mark.userns
async def test_a_second_demo_on_a_run_directory_leaves_the_first_one_alone(tmp_path: Path) -> None:
    # One at a time: the first has work while the second starts.
    argv = ["demo", "--out", "run", "--provider", "local", "--tasks", "2"]
    argv += ["--episodes", "2", "--concurrency", "1"]
    ready = tmp_path / "run/service/ready.json"
    async with started(*argv, home=tmp_path) as first:
        await wait_until(lambda: any((tmp_path / "run/episodes").glob("*/*/attempt-1")))
        before = ready.read_bytes()
        second = await demo(tmp_path, *argv[3:])
        assert second.code == 1
        assert "another process" in second.err
        assert first.returncode is None
        assert ready.read_bytes() == before
        out, err = await first.communicate()
    assert first.returncode == 0, out.decode() + err.decode()


@pytest.mark.userns
async def test_a_closed_terminal_stops_a_demo_in_order(tmp_path: Path) -> None:
    argv = ["demo", "--out", "run", "--provider", "local", "--tasks", "4"]
    async with started(*argv, home=tmp_path) as process:
        await wait_until(
            lambda: (
                any((tmp_path / "run/episodes").glob("*/*/attempt-1"))
                and len(children_of(process.pid)) >= 3
            )
        )
        family = children_of(process.pid)
        process.send_signal(signal.SIGHUP)
        await process.communicate()
    assert process.returncode == 130
    await wait_until(lambda: all(gone(one) for one in family))


@pytest.mark.userns
async def test_a_killed_demo_leaves_neither_service_nor_trainer_nor_sandbox(tmp_path: Path) -> None:
    argv = ["demo", "--out", "run", "--provider", "local", "--tasks", "4"]
    async with started(*argv, home=tmp_path) as process:
        await wait_until(
            lambda: (
                any((tmp_path / "run/episodes").glob("*/*/attempt-1"))
                and len(children_of(process.pid)) >= 3
            )
        )
        family = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        await process.communicate()
    await wait_until(lambda: all(gone(one) for one in family), seconds=30)


@pytest.mark.userns
async def test_an_engine_that_does_not_answer_at_docker_host_is_not_used(tmp_path: Path) -> None:
    extra = {"DOCKER_HOST": f"unix://{tmp_path}/absent.sock"}
    argv = ["demo", "--out", "run", "--tasks", "1", "--episodes", "1"]
    done = await rock(*argv, home=tmp_path, extra=extra, seconds=250)
    assert done.code == 0, done.err
    assert "sandboxes by local" in done.out


async def test_a_demo_stopped_before_its_run_began_leaves_nothing(tmp_path: Path) -> None:
    argv = ["demo", "--out", "runs/first", "--provider", "local", "--tasks", "2"]
    async with started(*argv, home=tmp_path) as process:
        # Its service is just being started, which takes a Python process.
        await wait_until((tmp_path / "runs/first/service/service.log").exists)
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert not (tmp_path / "runs").exists()
