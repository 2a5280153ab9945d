"""Run and task files written by nobody's friend: refused in one message, in a bounded time."""

import os
from pathlib import Path

import pytest

from rock.errors import ConfigError
from rock.rollout.inputs.runfile import load_run_file
from rock.rollout.inputs.task import digest_of
from rock.rollout.tasks import load_tasks

GOOD = "tasks: tasks.jsonl\nagent: {command: [a]}\n"
TASK = '"task_id": "a", "instruction": "x"'
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def command(value: str) -> str:
    return GOOD.replace("[a]", value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("agent: &a {env: *a}\n", "a value holds itself", id="cyclic"),
        pytest.param("[" * 5000, "nested too deep", id="deep"),
        pytest.param(f"tasks: {'[' * 900}{']' * 900}", "nested too deep", id="deep-and-closed"),
        pytest.param(BOMB + GOOD, "at most 1000000 values", id="bomb"),
        pytest.param(GOOD + "seed: 1\nseed: 2\n", ":4: .*'seed' is given twice", id="field-twice"),
        pytest.param(GOOD + f"seed: {'9' * 5000}\n", "4300 digits", id="many-digits"),
        pytest.param(GOOD + "image: 2020-99-99\n", "not YAML: month", id="no-such-date"),
        pytest.param(GOOD + "image: !!binary aGk=\n", "expected text, not binary", id="binary"),
        pytest.param("!!python/name:os.system x", "could not determine a constructor", id="tag"),
        pytest.param(command('["a\\0b"]'), r"agent\.command\.0: .*without NUL", id="nul"),
        pytest.param(command('["\\ud800"]'), "half a surrogate pair", id="half-a-character"),
        pytest.param(command("[a], env: {a=b: c}"), r"agent\.env\.a=b: .*name", id="variable"),
        pytest.param(command(f"[a], files: {{/x: {'y' * 5000}}}"), "no such file", id="long-path"),
        pytest.param(GOOD + "limits: {cpus: .inf}", r"limits\.cpus: .*finite", id="infinite"),
        pytest.param(GOOD + "infra: {backoff_seconds: .nan}", "backoff_seconds", id="nan"),
        pytest.param("", "expected fields like tasks", id="empty"),
        pytest.param(f"{GOOD}---\n{GOOD}", "another document", id="two-documents"),
        pytest.param("x: " + "y" * (9 << 20), "expected at most 8388608 bytes", id="huge"),
    ],
)
def test_a_hostile_run_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_run_file(path)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.yaml")
    for path in (tmp_path / "run.yaml", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="expected a regular file"):
            load_run_file(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_run_file(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        pytest.param("[" * 100_000, "nested too deep", id="deep"),
        pytest.param(
            f'{{{TASK}, "metadata": {{"a": {"[" * 99}{"]" * 99}}}}}', "nested", id="deep-metadata"
        ),
        pytest.param(f'{{{TASK}, "metadata": {{"a": {"9" * 5000}}}}}', "4300 digits", id="digits"),
        pytest.param(f'{{{TASK}, "task_id": "b"}}', "'task_id' is given twice", id="field-twice"),
        pytest.param(
            f'{{{TASK}, "metadata": {{"a": "\\ud800"}}}}', "surrogate", id="half-a-character"
        ),
        pytest.param(f'{{{TASK}, "files": {{"../a": "x"}}}}', r"files\.\.\./a: .*inside", id="up"),
        pytest.param(f'{{{TASK}, "files": {{"/a": "x"}}}}', "not absolute", id="absolute"),
        pytest.param(
            f'{{{TASK}, "files": {{"a": {{"source": "../a"}}}}}}', "inside", id="source-outside"
        ),
        pytest.param(
            f'{{{TASK}, "files": {{"a": {{"source": "out"}}}}}}', "leads out of it", id="symlink"
        ),
        pytest.param(
            f'{{{TASK}, "files": {{"a": "x", "./a": "y"}}}}', "'a' is given twice", id="file-twice"
        ),
        pytest.param(
            f'{{{TASK}, "files": {{"a": "x", "a/b": "y"}}}}', "'a' to be a file or", id="clash"
        ),
        pytest.param(f'{{{TASK}, "files": {{"{"a" * 300}": "x"}}}}', "255 bytes", id="long-name"),
        pytest.param(f'{{{TASK}, "setup": ["a\\u0000"]}}', "without NUL", id="nul"),
        pytest.param(f"{{{TASK}}}\n{{{TASK}}}", "'a' is given twice", id="task-twice"),
        pytest.param('{"task_id": "a\\nb", "instruction": "x"}', "control char", id="line-end"),
    ],
)
def test_a_hostile_task_is_refused(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "tasks.jsonl").write_text(row + "\n")
    with pytest.raises(ConfigError, match=message):
        load_tasks("tasks.jsonl", base=tmp_path)


def test_tasks_that_are_no_path_are_refused_like_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        load_tasks("x" * 5000, base=tmp_path)


def test_what_only_looks_hostile_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").write_text("x")
    (tmp_path / "one.yaml").write_text(
        "task_id: ünï/ցøժ é\ninstruction: x\n"
        "metadata: {base: &b {a: 1}, other: {<<: *b, a: 2}, day: 2020-01-01, odd: .nan}\n"
        'files: {a: {source: folder}, a/b: y, c: "nul \\0 is text"}\n'
    )
    (item,) = load_tasks("one.yaml", base=tmp_path)
    assert item.task.metadata["other"] == {"a": 2}
    assert len(digest_of(item)) == 16
