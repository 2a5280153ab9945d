"""Wrong flags and files: exit code 2, one message that names the field and what was expected."""

import os
import signal
import time
from pathlib import Path

import pytest

from rock.modelservice.hosting.supervise import ServiceProcess
from tests.cli.command import rock

GOOD = """\
tasks: tasks.jsonl
agent: {command: [python3, agent.py]}
grader: {command: ["true"]}
"""
TASK = '{"task_id": "one", "instruction": "do it"}\n'


@pytest.mark.parametrize(
    ("files", "argv", "expected"),
    [
        pytest.param({}, ["run", "missing.yaml"], ["missing.yaml"], id="no-run-file"),
        pytest.param(
            {"run.yaml": "tasks: [", "tasks.jsonl": TASK},
            ["run", "run.yaml"],
            ["run.yaml", "YAML"],
            id="not-yaml",
        ),
        pytest.param(
            {"run.yaml": GOOD + "concurency: 3\n", "tasks.jsonl": TASK},
            ["run", "run.yaml"],
            ["run.yaml", "concurency", "did you mean concurrency?"],
            id="unknown-field",
        ),
        *(
            pytest.param({}, ["serve", "--set", given], expected, id=given)
            for given, expected in {
                "state_dir=x": ["state_dir", "use --state-dir"],
                "shard=1": ["shard", "rock serve --shards sets it"],
                "Compact-Shares=1": ["there is no such field; did you mean compact_share?"],
            }.items()
        ),
        pytest.param(
            {},
            ["serve", "--set", "agent_port=18612", "--set", "control_port=18612"],
            ["agent_port and control_port are the same, 18612"],
            id="one-port-twice",
        ),
        pytest.param(
            {"run.yaml": GOOD + "concurrency: many\n", "tasks.jsonl": TASK},
            ["run", "run.yaml"],
            ["concurrency", "integer", "'many'"],
            id="wrong-kind",
        ),
        pytest.param(
            {"run.yaml": GOOD + "concurrency: 0\n", "tasks.jsonl": TASK},
            ["run", "run.yaml"],
            ["concurrency", "greater than or equal to 1", "0"],
            id="too-small",
        ),
        pytest.param(
            {"run.yaml": GOOD, "tasks.jsonl": '{"task_id": "one"}\n'},
            ["run", "run.yaml"],
            ["tasks.jsonl", "1", "instruction"],
            id="task-without-instruction",
        ),
        pytest.param(
            {"run.yaml": GOOD, "tasks.jsonl": TASK + TASK},
            ["run", "run.yaml"],
            ["tasks.jsonl", "one"],
            id="task-twice",
        ),
        pytest.param(
            {"run.yaml": GOOD, "tasks.jsonl": TASK},
            ["run", "run.yaml", "--model", "gpt-5"],
            ["model", "queue", "litellm:"],
            id="unknown-backend",
        ),
        pytest.param(
            {},
            ["serve", "--state-dir", "s", "--set", "control_port=99999"],
            ["control_port", "65535"],
            id="port-too-large",
        ),
        pytest.param(
            {},
            ["serve", "--state-dir", "s", "--set", "nonsense"],
            ["--set nonsense", "NAME=VALUE"],
            id="setting-without-value",
        ),
        pytest.param(
            {},
            ["serve", "--state-dir", "s", "--backend", "magic"],
            ["magic", "litellm"],
            id="backend",
        ),
        pytest.param({}, ["demo", "--tasks", "0"], ["--tasks"], id="demo-without-tasks"),
    ],
)
async def test_bad_input_is_named(
    tmp_path: Path, files: dict[str, str], argv: list[str], expected: list[str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = await rock(*argv, home=tmp_path)
    assert done.code == 2, done.err
    for part in expected:
        assert part in done.err
    assert "Traceback" not in done.err


async def test_a_session_without_a_service_says_how_to_start_one(tmp_path: Path) -> None:
    done = await rock("session", "--state-dir", "s", "--wait-seconds", "0", home=tmp_path)
    assert done.code == 1
    assert "rock serve --state-dir" in done.err


async def test_a_session_that_waits_for_its_service_says_so(tmp_path: Path) -> None:
    done = await rock("session", "--state-dir", "s", "--wait-seconds", "1.5", home=tmp_path)
    assert done.code == 1
    first, _ = done.err.splitlines()
    assert first == f"rock: waiting up to 1.5 s for a service in {tmp_path}/s"
    assert done.out == ""  # that is for a file of variables


async def test_a_killed_services_address_is_not_waited_for(tmp_path: Path) -> None:
    state = tmp_path / "s"
    async with ServiceProcess(state) as service:
        os.kill(service.pid, signal.SIGKILL)
        await service.wait()
        killed = (state / "ready.json").read_bytes()
    (state / "ready.json").write_bytes(killed)
    began = time.monotonic()
    done = await rock("session", "--state-dir", "s", "--wait-seconds", "0", home=tmp_path)
    assert done.code == 1
    assert "was killed" in done.err
    assert "rock serve --state-dir" in done.err
    assert time.monotonic() - began < 15.0  # and not as long as a client tries again


async def test_showing_what_is_no_run_says_so(tmp_path: Path) -> None:
    done = await rock("show", ".", home=tmp_path)
    assert done.code == 1
    assert "not a run directory" in done.err


async def test_an_unknown_log_level_is_named(tmp_path: Path) -> None:
    done = await rock("version", home=tmp_path, extra={"ROCK_LOG_LEVEL": "loud"})
    assert done.code == 2
    assert "ROCK_LOG_LEVEL" in done.err
    assert "'loud'" in done.err
    assert "Traceback" not in done.err


async def test_a_demo_that_cannot_write_its_run_directory_says_so(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = await rock("demo", "--out", "taken", home=tmp_path)
    assert done.code == 1
    assert f"{tmp_path}/taken" in done.err
    assert "Traceback" not in done.err
