"""The run directory: safe names, one harness at a time, and no mixing of different runs."""

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.errors import LedgerError
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.records.ledger_lines import RunOpened
from rock.rollout.records.outcome import graded
from rock.rollout.records.record import Plan, Record, Usage
from rock.rollout.records.rundir import RunDir, file_name, read_info, read_records

RUN = RunFile.model_validate({"tasks": "humaneval", "agent": {"command": ["a"]}})


def a_record(run_id: str, *, task_id: str = "a/b", attempt: int = 1) -> Record:
    return Record(
        run_id=run_id,
        group_id="g",
        episode_id="g.0",
        task_id=task_id,
        index=0,
        attempt=attempt,
        started_at="",
        ended_at="",
        seconds=1.0,
        phase_seconds={},
        outcome=graded(1.0, agent_class=None),
        usage=Usage(),
    )


@given(st.text(min_size=1, max_size=200))
def test_any_task_id_gives_a_safe_file_name(task_id: str) -> None:
    name = file_name(task_id)
    assert 0 < len(name.encode()) < 200
    assert "/" not in name
    assert "\0" not in name
    assert not name.startswith(".")


@given(st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
def test_different_task_ids_give_different_file_names(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)


def test_a_plain_task_id_is_its_own_file_name() -> None:
    assert file_name("fix-bug_3.1") == "fix-bug_3.1"
    assert file_name("..").startswith("~")
    assert file_name("HumanEval/3").startswith("HumanEval_3~")


def test_a_second_harness_is_refused(tmp_path: Path) -> None:
    with (
        RunDir.open(tmp_path, RUN),
        pytest.raises(LedgerError, match="another harness is working"),
    ):
        RunDir.open(tmp_path, RUN)
    RunDir.open(tmp_path, RUN).close()


def test_a_resumed_run_keeps_its_id_and_a_copy_of_its_file(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN, source=b"tasks: humaneval\n") as first:
        run_id = first.run_id
    with RunDir.open(tmp_path, RUN.model_copy(update={"concurrency": 9})) as again:
        assert again.run_id == run_id
    assert (tmp_path / "run.yaml").read_bytes() == b"tasks: humaneval\n"
    assert read_info(tmp_path).config["tasks"] == "humaneval"


def test_a_run_file_that_no_longer_fits_is_refused_by_field(tmp_path: Path) -> None:
    RunDir.open(tmp_path, RUN).close()
    other = RUN.model_copy(update={"episodes_per_task": 7})
    with pytest.raises(LedgerError, match="episodes_per_task: the run has 1, the run file now"):
        RunDir.open(tmp_path, other)
    RunDir.open(tmp_path, RUN).close()


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "episodes").mkdir()
    with pytest.raises(LedgerError, match=r"no run\.json"):
        RunDir.open(tmp_path, RUN)


async def test_a_ledger_of_another_run_is_refused(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN) as directory:
        await directory.ledger.append(RunOpened(run_id="other"))
    with pytest.raises(LedgerError, match="different runs"):
        RunDir.open(tmp_path, RUN)
    with pytest.raises(LedgerError, match="different runs"):
        RunDir.open(tmp_path, RUN)


def test_a_record_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN) as directory:
        record = a_record(directory.run_id)
        plan = Plan(run_id=directory.run_id, group_id="g", task_id="a/b", index=0, attempt=1)
        assert directory.read_record(plan) is None
        directory.write_record(record)
        assert directory.read_record(plan) == record
        path = directory.attempt_folder(plan) / "record.json"
        assert [item.name for item in path.parent.iterdir()] == ["record.json"]
        path.write_bytes(path.read_bytes()[:40])
        with pytest.raises(LedgerError, match="not a record"):
            directory.read_record(plan)


def test_the_record_of_another_attempt_is_not_taken_for_its_own(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN) as directory:
        directory.write_record(a_record(directory.run_id))
        plan = Plan(run_id=directory.run_id, group_id="g", task_id="a/b", index=0, attempt=2)
        directory.attempt_folder(plan).with_name("attempt-1").rename(directory.attempt_folder(plan))
        with pytest.raises(LedgerError, match=r"the record of another attempt: g\.0"):
            directory.read_record(plan)


def test_what_lies_where_an_attempt_will_work_is_moved_aside(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN) as directory:
        plan = Plan(run_id=directory.run_id, group_id="g", task_id="a", index=0, attempt=1)
        folder = directory.attempt_folder(plan)
        directory.set_aside(plan)
        for text in ("first", "second"):
            folder.mkdir(parents=True)
            (folder / "left").write_text(text)
            directory.set_aside(plan)
        left = [folder.with_name(f"left-{n}-attempt-1") / "left" for n in (1, 2)]
        assert [path.read_text() for path in left] == ["first", "second"]
        assert not folder.exists()


async def test_episodes_without_a_ledger_are_not_run_over(tmp_path: Path) -> None:
    with RunDir.open(tmp_path, RUN) as directory:
        await directory.begin()
        directory.write_record(a_record(directory.run_id))
    RunDir.open(tmp_path, RUN).close()
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match=r"its ledger\.jsonl is gone"):
        RunDir.open(tmp_path, RUN)


def test_a_directory_without_a_run_has_no_records(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="not a run directory"):
        read_records(tmp_path)
    RunDir.open(tmp_path, RUN).close()
    assert read_records(tmp_path) == []


def test_a_file_system_that_takes_no_more_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(LedgerError, match=r"run: cannot be used as a run directory: File too"):
            RunDir.open(tmp_path / "run", RUN, source=b"tasks: x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with RunDir.open(tmp_path / "run", RUN, source=b"tasks: x") as opened:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with pytest.raises(LedgerError, match="the record cannot be written: File too large"):
                opened.write_record(a_record(opened.run_id))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
