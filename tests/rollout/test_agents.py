"""Agents of every kind in whole runs: solutions, functions, presets; and judges beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.wire import Lease
from rock.rollout.export import options_of, samples
from rock.rollout.inputs.presets import PRESETS
from rock.rollout.inputs.runfile import RunFile, load_run_file, resolve
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_records
from rock.rollout.run import RunResult, run
from tests.rollout.live import GRADER, address, answering, new_provider, write_tasks

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_of(folder: Path, agent: dict[str, Any], **fields: Any) -> RunFile:
    data = {"tasks": "tasks.jsonl", "agent": agent, "grader": GRADER, "consume_timeout_seconds": 0}
    return resolve(RunFile.model_validate({**data, **fields}), folder / "run.yaml")


def records_of(result: RunResult) -> list[Record]:
    return read_records(result.directory)


@pytest.mark.userns
async def test_oracles_are_agents_that_ask_no_model(tmp_path: Path) -> None:
    overrides = {"tasks": str(EXAMPLES / "tasks/fix-intervals.yaml"), "provider": "local"}
    async with new_provider() as provider:
        good = await run(
            EXAMPLES / "oracle.yaml",
            directory=tmp_path / "good",
            overrides=overrides,
            provider=provider,
        )
        wrong = await run(
            EXAMPLES / "oracle.yaml",
            directory=tmp_path / "wrong",
            overrides={**overrides, "agent": {"solution": "wrong"}},
            provider=provider,
        )
    (right,) = records_of(good)
    assert (right.outcome.cls, right.usage.turns) == (OutcomeClass.SOLVED, 0)
    assert right.integrity is not None
    assert records_of(wrong)[0].outcome.cls is OutcomeClass.FAILED


@pytest.mark.userns
async def test_a_task_without_the_solution_is_invalid_and_says_which_it_has(tmp_path: Path) -> None:
    write_tasks(tmp_path, "t", solutions={"other": "true"})
    async with new_provider() as provider:
        result = await run(
            run_of(tmp_path, {"solution": "oracle"}), directory=tmp_path / "run", provider=provider
        )
    outcome = records_of(result)[0].outcome
    assert outcome.cls is OutcomeClass.TASK_INVALID
    assert "has no solution 'oracle' (it has: other)" in outcome.detail


AGENT = """
import asyncio

async def copy(seat):
    messages = [{"role": "user", "content": seat.instruction}]
    while True:
        reply = await seat.client.chat.completions.create(model=seat.model, messages=messages)
        text = reply.choices[0].message.content
        if text == "stop":
            return "done"
        if text == "fail":
            raise ValueError("told to")
        if text == "hang":
            await asyncio.sleep(600)
        result = await seat.run(text)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": result.stdout.decode() or "ok"},
        ]
"""


@pytest.mark.userns
async def test_a_function_is_an_agent_with_an_exact_trajectory(tmp_path: Path) -> None:
    write_tasks(tmp_path, "a", "b", "c")
    (tmp_path / "my_agent.py").write_text(AGENT)
    scripts = {
        "solve a": ["echo 42 > answer.txt", "cat answer.txt", "stop"],
        "solve b": ["echo 1 > answer.txt", "fail"],
        "solve c": ["hang"],
    }

    def answer(lease: Lease) -> str:
        said = [json.loads(bytes(message)) for message in lease.request.messages]
        return scripts[said[0]["content"]][sum(m["role"] == "assistant" for m in said)]

    agent = {"python": "my_agent.py:copy", "timeout_seconds": 2}
    async with (
        new_provider() as provider,
        ServiceProcess(tmp_path / "service", exit_with_parent=True) as service,
        answering(service, answer),
    ):
        result = await run(
            run_of(tmp_path, agent),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    solved, failed, hung = records_of(result)
    assert (solved.outcome.cls, solved.usage.turns, solved.usage.rows) == (
        OutcomeClass.SOLVED,
        3,
        1,
    )
    assert failed.outcome.cls is OutcomeClass.AGENT_NONZERO_EXIT
    assert hung.outcome.cls is OutcomeClass.AGENT_TIMEOUT
    errors = (tmp_path / "run/episodes/b/0/attempt-1/agent.stderr").read_text()
    assert "ValueError: told to" in errors
    rows = list(samples(tmp_path / "run", options_of()))
    assert len(rows) == 3


@pytest.mark.userns
async def test_a_judge_scores_a_run_and_is_in_no_trajectory(tmp_path: Path) -> None:
    write_tasks(tmp_path, "a")
    (tmp_path / "my_agent.py").write_text(AGENT)
    asked: list[dict[str, str]] = []

    def answer(lease: Lease) -> str:
        asked.append(lease.labels)
        if lease.labels.get("role") == "judge":
            assert "42" in bytes(lease.request.messages[-1]).decode()
            return '{"score": 6, "reason": "JUDGED"}'
        return "stop" if len(lease.request.messages) > 1 else "echo 42 > answer.txt"

    grader = {"judge": "Is the answer right?", "show": ["answer.txt"]}
    async with (
        new_provider() as provider,
        ServiceProcess(tmp_path / "service", exit_with_parent=True) as service,
        answering(service, answer),
    ):
        result = await run(
            run_of(tmp_path, {"python": "my_agent.py:copy"}, grader=grader),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    (record,) = records_of(result)
    assert record.outcome.reward == 0.6
    assert record.parts == {"judge": 6.0}
    assert [labels.get("role") for labels in asked] == [None, None, "judge"]
    folder = tmp_path / "run/episodes/a/0/attempt-1"
    assert "JUDGED" in (folder / "judge.json").read_text()
    assert "JUDGED" not in (folder / "trajectory.json").read_text()
    assert (record.usage.turns, record.usage.rows) == (2, 1)


def write_run(folder: Path, agent: Any, **fields: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(json.dumps({"tasks": "tasks.jsonl", "agent": agent, **fields}))
    return path


def test_a_preset_becomes_a_command_with_its_mounts_and_room(tmp_path: Path) -> None:
    for name in ("qwen-code", "node"):
        (tmp_path / "tools" / name).mkdir(parents=True)
    agent = {"preset": "qwen-code", "install": "tools", "env": {"OPENAI_MODEL": "mine"}}
    run = load_run_file(write_run(tmp_path, agent))
    assert run.agent.command[0] == "/opt/node/bin/node"
    assert "{instruction}" in run.agent.command
    assert run.agent.env == {"OPENAI_MODEL": "mine"}
    assert [(m.source, m.target) for m in run.mounts()] == [
        (tmp_path / "tools" / "qwen-code", "/opt/client"),
        (tmp_path / "tools" / "node", "/opt/node"),
    ]
    assert run.limits.memory_bytes == 8 * 1024**3
    own = load_run_file(write_run(tmp_path, agent, limits={"memory_bytes": 2**32}))
    assert own.limits.memory_bytes == 2**32


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_taken_from_an_image(tmp_path: Path, name: str) -> None:
    run = load_run_file(write_run(tmp_path, {"preset": name, "install": "image"}))
    assert run.mounts() == ()
    text = " ".join(run.agent.command)
    assert "{instruction}" in text
    assert "{program}" not in text
    assert PRESETS[name].in_image in text


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({}, r"exactly one of command, preset, python, solution \(given: none\)"),
        (
            {"command": ["a"], "solution": "oracle"},
            r"exactly one of .*\(given: command, solution\)",
        ),
        ({"preset": "emacs"}, r"preset: expected one of mini-swe-agent, codex"),
        (
            {"preset": "openhands", "install": "tools"},
            r"openhands: it runs from an image: .*rock agents install openhands --image",
        ),
        ({"preset": "codex", "install": "tools"}, r"codex is not in .*rock agents install codex"),
        ({"python": "no_such.py:f"}, r"agent\.python: no such file"),
        ({"python": "f"}, r"agent\.python: .*'package\.module:function'"),
    ],
)
def test_a_wrong_agent_is_named_with_its_field(tmp_path: Path, agent: Any, message: str) -> None:
    (tmp_path / "tools").mkdir()
    with pytest.raises(ConfigError, match=message):
        load_run_file(write_run(tmp_path, agent))
