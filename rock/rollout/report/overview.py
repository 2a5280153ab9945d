"""Run directories side by side: what is in a folder of them, and how two of them differ.

Reads only; a harness that works in a directory is not disturbed. Runs are compared task by task, over
the tasks that both have a valid reward for, since runs of other tasks say nothing about each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rock.errors import LedgerError
from rock.rollout.records.ledger import replay
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_info, read_records
from rock.rollout.report.report import Interval, Report, Summary, bootstrap, report

MAX_DEPTH = 3
Status = Literal["running", "unfinished", "finished", "unreadable"]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a line. `detail` says why a directory is unreadable."""

    path: str
    status: Status
    created_at: str = ""
    model: str = ""
    tasks: int = 0
    planned: int = 0
    total: Summary | None = None
    detail: str = ""


class TaskDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Mean rewards of one task; null where no episode was valid."""

    task_id: str
    mean_a: float | None
    mean_b: float | None
    valid_a: int
    valid_b: int

    @property
    def difference(self) -> float | None:
        if self.mean_a is None or self.mean_b is None:
            return None
        return self.mean_b - self.mean_a


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run B against run A. `difference` is the mean over tasks of B's mean reward less A's."""

    a: Report
    b: Report
    tasks: list[TaskDifference]
    compared: int
    """Tasks that both runs have a mean reward for."""
    difference: float | None
    interval: Interval | None
    """95 %, of `difference`, by resampling tasks; null for fewer than two."""
    better: int
    worse: int


def find_runs(folder: Path) -> Iterator[Path]:
    """Every run directory in `folder`, itself included, by name. Raises `LedgerError` for no folder."""
    if not folder.is_dir():
        raise LedgerError(f"{folder}: there is no such folder")
    yield from _search(folder, MAX_DEPTH)


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "run.json").is_file():
        yield folder
        return
    if depth > 0:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                yield from _search(path, depth - 1)


def overview(path: Path) -> Overview:
    """What a run directory holds. One that cannot be read is said to be so."""
    try:
        info = read_info(path)
        ledger = path / "ledger.jsonl"
        state, _ = replay(ledger.read_bytes() if ledger.exists() else b"", source=str(ledger))
        figures = report(read_records(path))
    except (LedgerError, OSError, msgspec.DecodeError) as exc:
        return Overview(path=str(path), status="unreadable", detail=str(exc))
    groups = state.groups.values()
    left = not groups or any(not (group.complete or group.settled) for group in groups)
    status: Status = "unfinished" if left else "finished"
    return Overview(
        path=str(path),
        status="running" if _is_locked(path / "lock") else status,
        created_at=info.created_at,
        model=str(info.config.get("model", "")),
        tasks=len(groups),
        planned=sum(group.plan.size for group in groups),
        total=figures.total,
    )


def _is_locked(path: Path) -> bool:
    """Whether a harness of this machine holds the lock, without ever taking it: a harness that starts
    at this moment must not find it taken. /proc/locks: proc(5)."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    held = (line.split() for line in lines if " FLOCK " in line and "->" not in line)
    return any(fields[5].rpartition(":")[2] == str(inode) for fields in held)


def compare(a: Sequence[Record], b: Sequence[Record]) -> Comparison:
    """The records of two runs against each other; tasks in A's order, then those only B has."""
    left, right = report(a), report(b)
    of_a = {summary.name: summary for summary in left.tasks}
    of_b = {summary.name: summary for summary in right.tasks}
    tasks = [_difference(name, of_a.get(name), of_b.get(name)) for name in [*of_a, *of_b]]
    tasks = list({task.task_id: task for task in tasks}.values())
    differences = [task.difference for task in tasks if task.difference is not None]
    interval = None
    if len(differences) > 1:
        low, high = bootstrap(differences)
        interval = Interval(low=low, high=high, method="bootstrap")
    return Comparison(
        a=left,
        b=right,
        tasks=tasks,
        compared=len(differences),
        difference=math.fsum(differences) / len(differences) if differences else None,
        interval=interval,
        better=sum(value > 0 for value in differences),
        worse=sum(value < 0 for value in differences),
    )


def _difference(name: str, a: Summary | None, b: Summary | None) -> TaskDifference:
    return TaskDifference(
        task_id=name,
        mean_a=a.mean_reward if a else None,
        mean_b=b.mean_reward if b else None,
        valid_a=a.valid if a else 0,
        valid_b=b.valid if b else 0,
    )
