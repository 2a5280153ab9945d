"""Exports read by the projects they are made for, and tasks in their formats read by us and them.

Each has an environment of its own, made by `make test-export` (scripts/export-envs.sh), which alone
runs these tests; a missing environment fails them. ROLL, prime-rl and slime cannot be installed from the index: they are
checked by their published fields in test_formats.py.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rock.rollout.export import export, options_of, samples
from rock.rollout.tasks import load_tasks

ROOT = Path(__file__).parents[3]
READERS = Path(__file__).parent / "real"

pytestmark = [pytest.mark.packages, pytest.mark.slow, pytest.mark.userns, pytest.mark.timeout(300)]


def python_of(name: str) -> Path:
    folder = ROOT / ".venv-export" / name
    if not (folder / ".ready").exists():
        pytest.fail(f"no environment with {name} (make test-export makes it)")
    return folder / "bin" / "python"


def read(name: str, reader: str, *arguments: Path) -> list[Any]:
    """What the project's own code finds: [token ids, mask, log-probs, more] per sequence."""
    done = subprocess.run(
        [python_of(name), READERS / reader, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(arguments[-1].parent), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def expected(run: Path, **options: Any) -> list[list[Any]]:
    return [
        [s.token_ids.tolist(), s.mask.tolist(), s.logprobs.tolist()]
        for s in samples(run, options_of(**options))
    ]


def test_harbors_models_accept_atif_and_hold_every_token(
    recorded_run: Path, tmp_path: Path
) -> None:
    export(recorded_run, tmp_path / "out", "atif")
    found = read("harbor", "read_atif.py", tmp_path / "out" / "part-00000.jsonl")
    assert [row[:3] for row in found] == expected(recorded_run)
    assert {row[3] for row in found} == {"ATIF-v1.8"}


def test_harbor_reads_our_task_directories_as_we_do(tmp_path: Path) -> None:
    folders = sorted(path.parent for path in (ROOT / "examples" / "tasks").glob("*/task.toml"))
    (tmp_path / "folders.json").write_text(json.dumps([str(folder) for folder in folders]))
    found = read("harbor", "read_task.py", tmp_path / "folders.json")
    ours = [load_tasks(str(folder), base=ROOT)[0].task for folder in folders]
    assert ours
    assert [[row[0], row[1].strip(), row[2], row[3]] for row in found] == [
        [
            task.task_id,
            task.instruction.strip(),
            task.timeouts.agent_seconds,
            task.grader.timeout_seconds if task.grader else None,
        ]
        for task in ours
    ]
    assert {(row[4], row[5]) for row in found} == {("test.sh", "solve.sh")}


@pytest.mark.parametrize("rows", ["chain", "turn"])
def test_verls_data_proto_holds_every_token_and_reward(
    recorded_run: Path, tmp_path: Path, rows: str
) -> None:
    export(recorded_run, tmp_path / "out", "verl", options_of(rows=rows, placement="per_turn"))
    found = read("verl", "read_verl.py", tmp_path / "out" / "part-00000.npz")
    assert [row[:3] for row in found] == expected(recorded_run, rows=rows)
    by_row = list(samples(recorded_run, options_of(rows=rows, placement="per_turn")))
    assert [row[3] for row in found] == [[s.group.group_id, sum(s.rewards or ())] for s in by_row]


def test_datasets_loads_an_export_directory(recorded_run: Path, tmp_path: Path) -> None:
    export(recorded_run, tmp_path / "out", "hf", options_of(shard_samples=8))
    found = read("hf", "read_hf.py", tmp_path / "out", tmp_path / "cache")
    assert [row[:3] for row in found] == expected(recorded_run)
    assert [row[3] for row in found] == [s.sample_id for s in samples(recorded_run)]
