"""The run file: paths relative to it, a clear line per wrong field, and what a resume may change."""

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.rollout.inputs.changes import differences
from rock.rollout.inputs.graders import Grader
from rock.rollout.inputs.runfile import RunFile, load_run_file
from rock.sandbox.base import Limits

GOOD: dict[str, Any] = {"tasks": "tasks.jsonl", "agent": {"command": ["agent", "{instruction}"]}}


def write(folder: Path, data: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_paths_are_relative_to_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("")
    (tmp_path / "tool").mkdir()
    agent = {
        "command": ["a"],
        "files": {"/opt/tool": "tool"},
        "mounts": [{"source": "tool", "target": "/tool"}],
    }
    run = load_run_file(write(tmp_path, {**GOOD, "agent": agent, "out": "runs/x"}))
    assert run.tasks == str(tmp_path / "tasks.jsonl")
    assert run.agent.files == {"/opt/tool": tmp_path / "tool"}
    assert run.mounts()[0].source == tmp_path / "tool"
    assert run.mounts()[0].read_only
    assert run.out == tmp_path / "runs" / "x"


def test_a_run_wide_grader_brings_its_files_along(tmp_path: Path) -> None:
    (tmp_path / "checks" / "deep").mkdir(parents=True)
    (tmp_path / "checks" / "deep" / "t.py").write_bytes(b"assert 1\n")
    grader = {"command": ["python3"], "files": {"t": {"source": "checks"}, "x": "y"}}
    run = load_run_file(write(tmp_path, {**GOOD, "grader": grader}))
    assert isinstance(run.grader, Grader)
    assert {name: file.data() for name, file in run.grader.files.items()} == {
        "t/deep/t.py": b"assert 1\n",
        "x": b"y",
    }


def test_overrides_win_over_the_file_and_are_checked_like_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert load_run_file(path, overrides={"model": "litellm:m"}).model == "litellm:m"
    with pytest.raises(ConfigError, match=r"model: .*'gpt'"):
        load_run_file(path, overrides={"model": "gpt"})


def test_a_format_name_is_not_taken_for_a_path(tmp_path: Path) -> None:
    assert load_run_file(write(tmp_path, {**GOOD, "tasks": "humaneval:0-3"})).tasks == (
        "humaneval:0-3"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent": None}, r"run\.yaml: agent: .*\(given: None\)"),
        ({"agent": {"command": []}}, r"agent: .*exactly one of command, preset, python, solution"),
        ({"agent": {"command": "ls"}}, r"agent\.command: .*list \(given: 'ls'\)"),
        ({"agent": {"command": ["a"], "timeout_seconds": 0}}, r"agent\.timeout_seconds: .*greater"),
        ({"agent": {"command": ["a"], "shell": True}}, r"agent\.shell: .*no such field"),
        ({"agent": {"command": ["a"], "files": {"opt": "x"}}}, r"agent\.files\..*absolute path"),
        ({"agent": {"command": ["a"], "files": {"/x": "no"}}}, r"agent\.files\./x: no such file"),
        (
            {"agent": {"command": ["a"], "mounts": [{"source": "no", "target": "/x"}]}},
            r"agent\.mounts\.0\.source: no such file",
        ),
        ({"episodes_per_task": 0}, r"episodes_per_task: .*\(given: 0\)"),
        ({"concurrency": "many"}, r"concurrency: .*integer"),
        ({"provider": "podman"}, r"provider: .*'podman'"),
        (
            {"model": "gpt"},
            r"model: expected 'queue'.*service\.backends_file.*got 'gpt'",
        ),
        ({"model": "litellm:"}, r"model: .*expected 'queue'.*\(given: 'litellm:'\)"),
        ({"infra": {"max_failed_fraction": 2}}, r"infra\.max_failed_fraction"),
        ({"sampling": {"temperature": -1}}, r"sampling\.temperature"),
        ({"limits": {"memory_bytes": 1}}, r"limits\.memory_bytes"),
        ({"limits": {"disk_bytes": 1}}, r"limits\.disk_bytes"),
        ({"grader": {"command": ["a"], "files": {"t": {"source": "no"}}}}, r"grader\.files\.t"),
        ({"colour": 1}, r"colour: .*no such field"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run_file(write(tmp_path, {**GOOD, **change}))


def test_a_runs_bounds_are_those_of_its_sandboxes(tmp_path: Path) -> None:
    bounds = {"memory_bytes": 2**28, "pids": 64, "cpus": 0.5, "disk_bytes": 2**25}
    assert load_run_file(write(tmp_path, {**GOOD, "limits": bounds})).sandbox_limits() == Limits(
        memory_bytes=2**28, pids=64, cpus=0.5, disk_bytes=2**25
    )


def test_every_wrong_field_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_file(write(tmp_path, {**GOOD, "concurrency": 0, "provider": "x", "zzz": 1}))
    assert len(caught.value.message.splitlines()) == 3


@pytest.mark.parametrize("text", ["- a\n", "", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected fields like tasks, agent"):
        load_run_file(write(tmp_path, text))


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_run_file(tmp_path / "run.yaml")


def test_a_resume_may_change_how_but_not_what_is_run() -> None:
    old = RunFile.model_validate(GOOD)
    faster = RunFile.model_validate({**GOOD, "concurrency": 64, "infra": {"max_attempts": 9}})
    other = RunFile.model_validate(
        {**GOOD, "episodes_per_task": 8, "agent": {"command": ["agent"], "env": {"A": "1"}}}
    )
    dump = [run.model_dump(mode="json") for run in (old, faster, other)]
    assert differences(dump[0], dump[1]) == []
    assert [line.split(":")[0] for line in differences(dump[0], dump[2])] == [
        "agent.command",
        "agent.env.A",
        "episodes_per_task",
    ]
