"""Full disks, damaged runs and damaged exports: one clear error each, and nothing half-read."""

import json
import os
import signal
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rock.cli.runs.diff import Side
from rock.errors import ConfigError, ExportError, LedgerError
from rock.rollout.export import FORMATS, export, options_of, reload, samples
from rock.rollout.export.float_streams import FloatStream, StreamLine, append, stream_path
from rock.testing.made_run import MadeGroup, make_run, write_run
from tests.cli.command import rock, started
from tests.rollout.export.sessions import group
from tests.rollout.live import wait_until

ATTEMPT = "episodes/task-1/0/attempt-1"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another(path: Path) -> None:
    path.write_bytes((path.parents[2] / "1" / "attempt-1" / path.name).read_bytes())


@pytest.mark.parametrize(
    ("name", "damage", "complaint"),
    [
        ("trajectory.json", cut, "trajectory.json: not a trajectory"),
        ("trajectory.json", a_folder, "trajectory.json: cannot be read: Is a directory"),
        ("record.json", cut, "record.json: not a record"),
        ("record.json", Path.unlink, "the record of a finished episode is gone"),
        ("record.json", a_folder, "record.json: cannot be read: Is a directory"),
    ],
)
def test_a_damaged_episode_is_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None], complaint: str
) -> None:
    make_run(tmp_path / "run", tasks=2, episodes=2, turns=1)
    damage(tmp_path / "run" / ATTEMPT / name)
    with pytest.raises(LedgerError, match=complaint):
        export(tmp_path / "run", tmp_path / "out", "jsonl")
    with pytest.raises(LedgerError, match=complaint):
        Side(tmp_path / "run", "task-1/0")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("trajectory.json", "trajectory.json: not a trajectory"),
        ("record.json", "record.json: not a record"),
    ],
)
async def test_show_and_diff_say_it_in_one_line(tmp_path: Path, name: str, complaint: str) -> None:
    make_run(tmp_path / "run", tasks=2, episodes=2, turns=1)
    cut(tmp_path / "run" / ATTEMPT / name)
    for argv in (
        ["show", "run", "task-1/0"],
        ["diff", "run", "task-1/0", "run", "task-1/1"],
    ):
        done = await rock(*argv, home=tmp_path)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err
        assert complaint in done.err


def test_a_record_in_another_episodes_place_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "run", tasks=2, episodes=2, turns=1)
    of_another(tmp_path / "run" / ATTEMPT / "record.json")
    with pytest.raises(
        LedgerError, match=r"record.json: it is the record of another attempt: g1.1"
    ):
        export(tmp_path / "run", tmp_path / "out", "jsonl")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"call_id": "gone"}, "a span of a call that is not there"),
        ({"mask": 500}, "a mask of other values than 0 and 1"),
    ],
)
def test_a_row_that_does_not_fit_its_calls_is_left_out(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    make_run(tmp_path / "run", tasks=2, episodes=2, turns=1)
    path = tmp_path / "run" / ATTEMPT / "trajectory.json"
    stored = json.loads(path.read_bytes())
    if "mask" in change:
        stored["rows"][0]["mask"][-1] = change["mask"]
    else:
        stored["rows"][0]["spans"][0] |= change
    path.write_text(json.dumps(stored))
    manifest = export(tmp_path / "run", tmp_path / "out", "jsonl")
    assert manifest.left_out[f"invalid: {reason}"] == 1
    assert manifest.samples == 3


def test_a_full_disk_is_said_and_the_export_goes_on_once_there_is_room(tmp_path: Path) -> None:
    early, late = group("early", 1.0), group("late", 0.0)
    run, out = tmp_path / "run", tmp_path / "out"
    out.mkdir()
    write_run(run, [early, MadeGroup("late", [None])])
    (out / "manifest.json.part").symlink_to("/dev/full")
    with pytest.raises(ExportError, match="out: cannot be written: No space left on device"):
        export(run, out, "jsonl")
    (out / "manifest.json.part").unlink()
    assert export(run, out, "jsonl").samples == 1
    write_run(tmp_path / "grown", [early, late])
    run.rename(tmp_path / "old")
    (tmp_path / "grown").rename(run)
    part = out / "part-00001.jsonl.part"
    part.symlink_to("/dev/full")
    with pytest.raises(ExportError, match="out: cannot be written: No space left on device"):
        export(run, out, "jsonl")
    assert not part.is_symlink()
    assert export(run, out, "jsonl").samples == 2
    assert [row.group_id for row in reload(out)] == ["g0", "g1"]


def test_killed_before_its_manifest_or_its_card_an_export_still_ends_whole(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    write_run(run, [group("t", 1.0)])
    whole = export(run, tmp_path / "whole", "hf")
    out.mkdir()
    (out / "manifest.json.part").write_text('{"schema"')
    assert export(run, out, "hf") == whole
    card = (out / "README.md").read_bytes()
    (out / "README.md").unlink()
    assert export(run, out, "hf") == whole
    assert (out / "README.md").read_bytes() == card


@pytest.mark.parametrize("name", ["parquet", "openai-dpo", "atif", "verl"])
async def test_every_kind_of_file_goes_on_after_sigkill(tmp_path: Path, name: str) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    make_run(run, tasks=3, episodes=4, turns=2)
    options = options_of(shard_samples=1)
    whole = export(run, tmp_path / "whole", name, options)
    stuck = next((run / "episodes" / "task-1").rglob("trajectory.json"))
    kept = stuck.rename(tmp_path / "kept.json")
    os.mkfifo(stuck)
    argv = ["export", str(run), "--format", name, "--out", str(out), "--set", "shard_samples=1"]
    async with started(*argv, home=tmp_path) as process:
        await wait_until(lambda: any(out.rglob("*00001*.part")))
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    stuck.unlink()
    kept.rename(stuck)
    assert export(run, out, name, options) == whole
    assert not list(out.rglob("*.part"))


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_damaged_file_is_not_reloaded(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run", [group("t", 1.0, 0.0)])
    manifest = export(tmp_path / "run", tmp_path / "out", name)
    path = tmp_path / "out" / manifest.files[0].name
    whole = path.read_bytes()
    for data in (b"", b"{}\n", whole[:-1], whole + b"\n"):
        path.write_bytes(data)
        with pytest.raises(ExportError, match="it is not what was exported"):
            list(reload(tmp_path / "out"))
    path.unlink()
    with pytest.raises(ExportError, match="it is gone"):
        list(reload(tmp_path / "out"))


def test_a_stream_goes_on_after_a_line_that_its_writer_was_killed_in(tmp_path: Path) -> None:
    first = StreamLine(session_id="s", call_id="c", values=[0.5])
    append(tmp_path, "value", [first])
    path = stream_path(tmp_path, "value")
    for torn in (b'{"session_id":"s","call', b"x" * 200_000):
        with path.open("ab") as file:
            file.write(torn)
        append(tmp_path, "value", [first])
    assert FloatStream(tmp_path, "value").lines("s") == [first] * 3
    path.write_bytes(b'{"session')
    append(tmp_path, "value", [first])
    assert FloatStream(tmp_path, "value").lines("s") == [first]


def test_what_a_stream_does_not_know_is_nan_and_infinity_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, [group("t", 1.0)])
    (sample,) = samples(run)
    answer = sample.answers[0]
    count = answer.end - answer.start
    values = [float("nan"), None, *[2.5] * (count - 2)]
    line = StreamLine(session_id=sample.session_id, call_id=answer.node[0], values=values)
    append(run, "value", [line])
    (with_stream,) = samples(run, options_of(streams=["value"]))
    found = with_stream.streams["value"][answer.start : answer.end]
    assert [value != value for value in found] == [True, True] + [False] * (count - 2)
    assert found[2:] == array("f", [2.5]) * (count - 2)
    for bad in (float("inf"), 1e39):
        with pytest.raises(ConfigError, match="is no float32"):
            append(run, "value", [StreamLine(session_id="s", call_id="c", values=[bad])])
