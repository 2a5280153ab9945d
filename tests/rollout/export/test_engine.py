"""Files: resumable after a kill, verified, the same bytes every time, never mixed up."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from rock.errors import ConfigError, ExportError, LedgerError
from rock.rollout.export import FORMATS, export, options_of, reload, samples
from rock.rollout.export import manifest as manifests
from rock.rollout.export.engine import Progress
from rock.testing.made_run import MadeGroup, make_run, write_run
from tests.cli.command import started
from tests.rollout.export.sessions import group
from tests.rollout.live import wait_until


def names(out: Path) -> list[str]:
    return sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_same_run_gives_the_same_bytes(made_run: Path, tmp_path: Path, name: str) -> None:
    options = options_of(shard_samples=4)
    one = export(made_run, tmp_path / "a", name, options)
    two = export(made_run, tmp_path / "b", name, options)
    assert one.digest == two.digest
    assert names(tmp_path / "a") == names(tmp_path / "b")
    for file in one.files:
        left, right = (tmp_path / "a" / file.name), (tmp_path / "b" / file.name)
        assert left.read_bytes() == right.read_bytes()


def test_files_hold_whole_groups_and_the_manifest_adds_up(made_run: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    options = options_of(shard_samples=4)
    manifest = export(made_run, tmp_path / "out", "jsonl", options, on_progress=seen.append)
    left_out = Counter[str]()
    expected = list(samples(made_run, left_out=left_out))
    assert (manifest.samples, manifest.tokens) == (
        len(expected),
        sum(len(s.token_ids) for s in expected),
    )
    assert manifest.sampled_tokens == sum(sum(s.mask) for s in expected)
    assert manifest.complete
    exported = [g.group_id for shard in manifest.shards for g in shard.groups]
    assert exported == ["g0", "g1", "g2"]
    assert [s.groups_done for s in seen] == sorted({s.groups_done for s in seen})
    assert (seen[-1].groups_done, seen[-1].groups) == (3, 3)
    assert manifests.load(tmp_path / "out") == manifest
    assert manifest.left_out == left_out


async def test_killed_in_the_middle_it_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    make_run(run, tasks=6, episodes=4, turns=4)
    whole = export(run, tmp_path / "whole", "jsonl", options_of(shard_samples=6))
    # A trajectory that nobody writes stops the export in its fourth group, in its second file.
    stuck = next((run / "episodes" / "task-3").rglob("trajectory.json"))
    kept = stuck.rename(tmp_path / "kept.json")
    os.mkfifo(stuck)
    argv = ["export", str(run), "--out", str(out), "--set", "shard_samples=6"]
    async with started(*argv, home=tmp_path) as process:
        await wait_until(lambda: (out / "part-00001.jsonl.part").exists())
        assert process.returncode is None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    stuck.unlink()
    kept.rename(stuck)
    before = manifests.load(out)
    assert before is not None
    assert (len(before.shards), before.complete) == (1, False)
    first = (out / "part-00000.jsonl").stat()
    after = export(run, out, "jsonl", options_of(shard_samples=6))
    assert after == whole
    assert (out / "part-00000.jsonl").stat().st_mtime_ns == first.st_mtime_ns
    assert names(out) == names(tmp_path / "whole")
    ids = [row.sample_id for row in reload(out)]
    assert ids == [sample.sample_id for sample in samples(run)]


def test_what_the_run_finishes_later_is_added(tmp_path: Path) -> None:
    early, late = group("early", 1.0), group("late", 0.0)
    write_run(tmp_path / "run", [early, MadeGroup("late", [None])])
    first = export(tmp_path / "run", tmp_path / "out", "jsonl")
    assert first.samples == 1
    write_run(tmp_path / "grown", [early, late])
    (tmp_path / "run").rename(tmp_path / "old")
    (tmp_path / "grown").rename(tmp_path / "run")
    second = export(tmp_path / "run", tmp_path / "out", "jsonl")
    assert [len(shard.groups) for shard in second.shards] == [1, 1]
    assert [row.group_id for row in reload(tmp_path / "out")] == ["g0", "g1"]
    assert export(tmp_path / "run", tmp_path / "out", "jsonl") == second


def test_a_group_with_other_attempts_is_not_mixed_in(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("t", 1.0)])
    export(tmp_path / "run", tmp_path / "out", "jsonl")
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    rewritten = [line for line in lines if line["event"] not in ("started", "ended")]
    for attempt, final in ((1, False), (2, True)):
        base = {"group_id": "g0", "index": 0, "attempt": attempt}
        rewritten.append({"event": "started", **base})
        rewritten.append({"event": "ended", **base, "class": "solved", "final": final})
    ledger.write_text("".join(json.dumps(line) + "\n" for line in rewritten))
    with pytest.raises(ExportError, match="group g0 has other attempts"):
        export(tmp_path / "run", tmp_path / "out", "jsonl")


def test_other_options_formats_and_runs_are_refused_by_name(made_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(made_run, out, "jsonl")
    with pytest.raises(ConfigError, match="rows: 'chain' there, 'turn' now"):
        export(made_run, out, "jsonl", options_of(rows="turn"))
    with pytest.raises(ConfigError, match="format: 'jsonl' there, 'slime' now"):
        export(made_run, out, "slime")
    write_run(tmp_path / "other", [group("t", 1.0)], run_id="run-other")
    with pytest.raises(ConfigError, match="run_id: 'run-made' there, 'run-other' now"):
        export(tmp_path / "other", out, "jsonl")


def test_a_changed_or_lost_file_is_noticed(made_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(made_run, out, "jsonl")
    part = out / "part-00000.jsonl"
    data = part.read_bytes()
    part.write_bytes(data.replace(b"1", b"2", 1))
    with pytest.raises(ExportError, match=r"part-00000.jsonl: it is not what was exported"):
        export(made_run, out, "jsonl")
    part.unlink()
    with pytest.raises(ExportError, match="it is gone"):
        export(made_run, out, "jsonl")
    part.write_bytes(data)
    export(made_run, out, "jsonl")


def test_a_directory_of_something_else_is_left_alone(made_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="it holds something else"):
        export(made_run, tmp_path / "out", "jsonl")
    assert names(tmp_path / "out") == ["notes.txt"]
    with pytest.raises(ExportError, match="cannot be used as an export directory"):
        export(made_run, tmp_path / "out" / "notes.txt", "jsonl")
    with pytest.raises(ExportError, match="not an export"):
        list(reload(tmp_path / "out"))


async def test_two_exports_into_one_directory_do_not_mix(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    make_run(run, tasks=1, episodes=2, turns=2)
    stuck = next(run.rglob("trajectory.json"))
    kept = stuck.rename(tmp_path / "kept.json")
    os.mkfifo(stuck)
    async with started("export", str(run), "--out", str(out), home=tmp_path):
        await wait_until(lambda: (out / "part-00000.jsonl.part").exists())
        stuck.unlink()
        kept.rename(stuck)
        with pytest.raises(ExportError, match="another export is writing here"):
            export(run, out, "jsonl")


def test_what_is_not_a_run_is_named(tmp_path: Path, made_run: Path) -> None:
    with pytest.raises(LedgerError, match="not a run directory"):
        export(tmp_path, tmp_path / "out", "jsonl")
    record = next(made_run.rglob("record.json"))
    record.unlink()
    with pytest.raises(LedgerError, match="the record of a finished episode is gone"):
        export(made_run, tmp_path / "out", "jsonl")


def test_a_run_with_nothing_to_export_is_an_empty_export(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("t", None, None)])
    manifest = export(tmp_path / "run", tmp_path / "out", "parquet")
    assert (manifest.samples, manifest.files, manifest.complete) == (0, [], True)
    assert manifest.left_out == {"episode not in loss: sandbox_died": 2}
    assert list(reload(tmp_path / "out")) == []
    assert names(tmp_path / "out") == ["manifest.json"]
