"""Task files: every format, and a clear error for every way to get one wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.rollout.inputs.graders import Grader
from rock.rollout.inputs.task import LoadedTask, digest_of
from rock.rollout.tasks import load_tasks

GOOD: dict[str, Any] = {
    "task_id": "one",
    "instruction": "do it",
    "files": {"src/a.py": "x = 1\n"},
    "grader": {"command": ["true"]},
}


def write_jsonl(folder: Path, *rows: Any) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def load_rows(folder: Path, *rows: Any) -> list[LoadedTask]:
    write_jsonl(folder, *rows)
    return load_tasks("tasks.jsonl", base=folder)


def test_jsonl_holds_one_task_per_line_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    loaded = load_rows(tmp_path, GOOD, "", {**GOOD, "task_id": "two"})
    assert [item.task_id for item in loaded] == ["one", "two"]
    assert loaded[0].task.files["src/a.py"].data() == b"x = 1\n"
    assert loaded[0].task.workdir == "/workspace"


def test_a_folder_holds_one_yaml_task_per_file_named_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "b.yaml").write_text("instruction: second\n")
    (folder / "a.yml").write_text("instruction: first\nfiles: {data.txt: {base64: AAE=}}\n")
    (folder / "notes.md").write_text("not a task")
    loaded = load_tasks("tasks", base=tmp_path)
    assert [(i.task_id, i.task.instruction) for i in loaded] == [("a", "first"), ("b", "second")]
    assert loaded[0].task.files["data.txt"].data() == b"\x00\x01"


def test_source_files_are_found_beside_the_task_file(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    row = {**GOOD, "files": {"repo": {"source": "repo"}}}
    (loaded,) = load_rows(tmp_path, row)
    assert (loaded.folder / "repo").is_dir()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", r"tasks\.jsonl:2: not JSON"),
        ("[1]", r"tasks\.jsonl:2: expected an object.*given: a list"),
        ({"task_id": "x"}, r"tasks\.jsonl:2: instruction: Field required"),
        ({**GOOD, "instruction": 5}, r"2: instruction: .*string \(given: 5\)"),
        ({**GOOD, "instruction": "é" * 50_001}, r"2: instruction: .*at most 100000 bytes"),
        ({**GOOD, "task_id": ""}, r"2: task_id: .*at least 1 character"),
        ({**GOOD, "task_id": "a\nb"}, r"2: task_id: .*control characters"),
        ({**GOOD, "task_id": "a\0b"}, r"2: task_id: .*control characters"),
        ({**GOOD, "colour": "red"}, r"2: colour: .*no such field \(given: 'red'\)"),
        ({**GOOD, "files": {"/etc/passwd": "x"}}, r"files\..*not absolute"),
        ({**GOOD, "files": {"../x": "x"}}, r"files\..*without '\.\.'"),
        ({**GOOD, "files": {"a/../../x": "x"}}, r"files\..*without '\.\.'"),
        ({**GOOD, "files": {"": "x"}}, r"files\..*relative file path"),
        ({**GOOD, "files": {"a": {"text": "x", "base64": "AA=="}}}, r"exactly one of"),
        ({**GOOD, "files": {"a": {}}}, r"exactly one of"),
        ({**GOOD, "files": {"a": {"base64": "!"}}}, r"files\.a.*base64"),
        ({**GOOD, "files": {"a": {"source": "/etc"}}}, r"files\.a\.source.*not absolute"),
        ({**GOOD, "files": {"a": {"source": "nope"}}}, r"files\.a\.source: No such file"),
        ({**GOOD, "files": {"a": {"source": "link"}}}, r"files\.a\.source: .*leads out of it"),
        ({**GOOD, "workdir": "work"}, r"workdir: .*absolute path"),
        ({**GOOD, "grader": {"command": []}}, r"grader\.command: .*at least 1"),
        ({**GOOD, "grader": {"command": ["t"], "reward": "vibes"}}, r"grader\.reward: .*'vibes'"),
        ({**GOOD, "grader": {"command": ["t"], "timeout_seconds": 0}}, r"grader\.timeout_seconds"),
        ({**GOOD, "grader": {"command": ["t"], "files": {"../x": ""}}}, r"grader\.files\."),
        ({**GOOD, "timeouts": {"agent_seconds": -1}}, r"timeouts\.agent_seconds"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, row: Any, message: str) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ConfigError, match=message):
        load_rows(tmp_path, {**GOOD, "task_id": "fine"}, row)


def test_equal_task_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="task_id: 'one' is given twice"):
        load_rows(tmp_path, GOOD, GOOD)


def test_no_task_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        load_rows(tmp_path, "")


def test_broken_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("instruction: x\nfiles: {a: [}\n")
    with pytest.raises(ConfigError, match=r"t\.yaml:2: not YAML"):
        load_tasks("t.yaml", base=tmp_path)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"{}\xff")
    with pytest.raises(ConfigError, match="expected UTF-8 text; byte 2"):
        load_tasks("t.jsonl", base=tmp_path)


@pytest.mark.parametrize("spec", ["nowhere", "nowhere.jsonl", "unknown:3"])
def test_a_name_that_is_neither_path_nor_format_says_what_would_be(
    tmp_path: Path, spec: str
) -> None:
    with pytest.raises(ConfigError, match="one of: humaneval"):
        load_tasks(spec, base=tmp_path)


def test_humaneval_selects_by_number(tmp_path: Path) -> None:
    assert len(load_tasks("humaneval", base=tmp_path)) == 164
    chosen = load_tasks("humaneval:0-2,163", base=tmp_path)
    assert [item.task_id for item in chosen] == [f"HumanEval/{n}" for n in (0, 1, 2, 163)]
    assert "solution.py" in chosen[0].task.instruction


def test_humaneval_shows_the_agent_nothing_of_the_tests(tmp_path: Path) -> None:
    for item in load_tasks("humaneval:0-20", base=tmp_path):
        assert isinstance(item.task.grader, Grader)
        assert "def check(" in item.task.grader.stdin
        assert "def check(" not in item.task.instruction
        assert item.task.files == {}


@pytest.mark.parametrize("selection", ["164", "5-3", "x", "1,", "0-999", "-1"])
def test_a_wrong_humaneval_selection_says_what_is_expected(tmp_path: Path, selection: str) -> None:
    with pytest.raises(ConfigError, match="between 0 and 163"):
        load_tasks(f"humaneval:{selection}", base=tmp_path)


def test_any_change_of_a_task_changes_its_digest(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a").write_text("1")
    row = {**GOOD, "files": {"repo": {"source": "repo"}, "b": "x"}}
    (loaded,) = load_rows(tmp_path, row)
    before = digest_of(loaded)
    assert digest_of(load_rows(tmp_path, row)[0]) == before
    assert digest_of(load_rows(tmp_path, {**row, "instruction": "other"})[0]) != before
    (tmp_path / "repo" / "a").write_text("2")
    assert digest_of(loaded) != before
