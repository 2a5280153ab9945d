"""The run directory: the unit that is started, resumed, looked at and kept.

    run.yaml                 the run file as it was given
    run.json                 run id, versions, every resolved setting (run-1.json, …: before a new grader)
    lock                     held (flock) while a harness works here
    ledger.jsonl             the one truth about groups and episodes
    service/                 ModelService's state, when this run started it
    episodes/TASK/INDEX/attempt-N/
        record.json          outcome, times, usage; there only once it is whole
        trajectory.json      every call, and the token rows
        agent.stdout  agent.stderr  grader.stdout  grader.stderr  judge.json
    report.json  report.txt  the figures of the last finished run

Files that others read are written under another name, synced, and renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import platform
import re
import secrets
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from rock import __version__
from rock.config import validated
from rock.errors import ConfigError, LedgerError
from rock.rollout.inputs.changes import differences
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.records.durable import write_atomically
from rock.rollout.records.ledger import Ledger, replay
from rock.rollout.records.ledger_lines import RunOpened
from rock.rollout.records.record import SCHEMA as RECORD_SCHEMA
from rock.rollout.records.record import Plan, Record, decode, encode, file_name_of, now
from rock.secrets import redact

SCHEMA = 1
GONE = (
    "the record of a finished episode is gone; put its folder back from a copy, or begin anew in "
    "another directory"
)
PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`."""

    schema: int
    run_id: str
    created_at: str
    rock_version: str
    python_version: str
    system: str
    config: dict[str, Any]


def file_name(task_id: str) -> str:
    """A file name for any task id: itself when that is safe, else a readable part and a hash.

    Different ids give different names: `~` is in no plain name and in every other one.
    """
    if PLAIN_NAME.fullmatch(task_id):
        return task_id
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", task_id).lstrip(".")[:60]
    return f"{readable}~{hashlib.sha256(task_id.encode()).hexdigest()[:12]}"


class RunDir:
    """An open run directory: locked, its settings checked, its ledger replayed. Use with `with`."""

    def __init__(self, path: Path, info: RunInfo, ledger: Ledger, lock: int) -> None:
        self.path = path
        self.info = info
        self.ledger = ledger
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        run: RunFile,
        *,
        source: bytes = b"",
        may_change: frozenset[str] = frozenset(),
    ) -> Self:
        """Start a run in `path`, or go on with the one there, with those settings changed.

        Raises `LedgerError` when another harness works in it, when it holds something else, and,
        naming each field, when the run it holds was started with other settings.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise LedgerError(f"{path}: cannot be used as a run directory: {exc.strerror}") from exc
        try:
            _take(lock, path)
            info = _start_or_continue(path, run, source, may_change)
            ledger = Ledger.open(path / "ledger.jsonl")
        except OSError as exc:
            os.close(lock)
            raise LedgerError(f"{path}: cannot be used as a run directory: {exc.strerror}") from exc
        except BaseException:
            os.close(lock)
            raise
        try:
            _fits(ledger, path, info)
        except LedgerError:
            ledger.close()
            os.close(lock)
            raise
        return cls(path, info, ledger, lock)

    async def begin(self) -> None:
        """Write the ledger's first line if it is not there yet."""
        if self.ledger.state.run_id is None:
            await self.ledger.append(RunOpened(run_id=self.info.run_id, at=now()))

    @property
    def run_id(self) -> str:
        return self.info.run_id

    def attempt_folder(self, plan: Plan) -> Path:
        return self.path / attempt_path(plan)

    def make_folder(self, plan: Plan) -> Path:
        """The attempt's folder, which is there on return. Raises `LedgerError`."""
        folder = self.attempt_folder(plan)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LedgerError(f"{folder}: cannot be made: {exc.strerror}") from exc
        return folder

    def write_record(self, record: Record) -> None:
        """Put the record in its attempt's folder; durable on return. Raises `LedgerError`."""
        folder = self.attempt_folder(plan_of(record))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / file_name_of(record.grading), encode(record))
        except OSError as exc:
            raise LedgerError(f"{folder}: the record cannot be written: {exc.strerror}") from exc

    def read_record(self, plan: Plan, *, grading: int = 1) -> Record | None:
        """The attempt's record, None when it never got one. Raises `LedgerError` for a broken one."""
        return record_at(self.attempt_folder(plan) / file_name_of(grading), plan)

    def set_aside(self, plan: Plan) -> None:
        """Move away what lies where a new attempt will work: the ledger, which knows nothing of it,
        has lost lines. Else an old record could pass for the new one's. Raises `LedgerError`."""
        folder = self.attempt_folder(plan)
        try:
            if folder.exists():
                left = (folder.with_name(f"left-{n}-{folder.name}") for n in itertools.count(1))
                folder.rename(next(path for path in left if not path.exists()))
        except OSError as exc:
            raise LedgerError(f"{folder}: cannot be moved away: {exc.strerror}") from exc

    def close(self) -> None:
        """Let go of the directory. Safe to call twice."""
        self.ledger.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def attempt_path(plan: Plan) -> Path:
    """Where an attempt's files are, in a run directory."""
    return Path("episodes", file_name(plan.task_id), str(plan.index), f"attempt-{plan.attempt}")


def plan_of(record: Record) -> Plan:
    return Plan(
        run_id=record.run_id,
        group_id=record.group_id,
        task_id=record.task_id,
        index=record.index,
        attempt=record.attempt,
    )


def read_info(path: Path) -> RunInfo:
    """The `run.json` of a run directory. Raises `LedgerError` when there is none to use."""
    file = path / "run.json"
    try:
        info = msgspec.json.decode(file.read_bytes(), type=RunInfo)
    except FileNotFoundError as exc:
        raise LedgerError(f"{path}: not a run directory: it has no run.json") from exc
    except msgspec.DecodeError as exc:
        raise LedgerError(f"{file}: not a run.json: {exc}") from exc
    if info.schema > SCHEMA:
        raise LedgerError(f"{file}: schema {info.schema}; this rock reads up to {SCHEMA}")
    return info


def record_at(file: Path, plan: Plan) -> Record | None:
    """None where there is none. Raises `LedgerError` for a broken one, another attempt's, and a later rock's."""
    try:
        record = decode(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise LedgerError(f"{file}: cannot be read: {exc.strerror}") from exc
    except msgspec.DecodeError as exc:
        raise LedgerError(f"{file}: not a record: {exc}") from exc
    if record.schema > RECORD_SCHEMA:
        raise LedgerError(f"{file}: schema {record.schema}; this rock reads up to {RECORD_SCHEMA}")
    if plan_of(record) != plan:
        raise LedgerError(
            f"{file}: it is the record of another attempt: {record.episode_id} in run {record.run_id}"
        )
    return record


def read_records(path: Path) -> list[Record]:
    """The final records of a run directory, in the ledger's order, without taking its lock.

    Raises `LedgerError` for one that is gone or broken.
    """
    info = read_info(path)
    ledger = path / "ledger.jsonl"
    state, _ = replay(ledger.read_bytes() if ledger.exists() else b"", source=str(ledger))
    records: list[Record] = []
    for group in state.groups.values():
        for index, episode in enumerate(group.episodes):
            if episode.final_attempt is None:
                continue
            plan = Plan(
                run_id=info.run_id,
                group_id=group.plan.group_id,
                task_id=group.plan.task_id,
                index=index,
                attempt=episode.final_attempt,
            )
            folder = path / attempt_path(plan)
            record = record_at(folder / file_name_of(episode.grading), plan)
            if record is None:
                raise LedgerError(f"{folder}: {GONE}")
            records.append(record)
    return records


def _fits(ledger: Ledger, path: Path, info: RunInfo) -> None:
    """Raises `LedgerError` unless it is this run's ledger."""
    if ledger.state.run_id is None and (path / "episodes").exists():
        raise LedgerError(
            f"{path}: its ledger.jsonl is gone, and with it what is done; put it back from a copy, or "
            "begin anew in another directory"
        )
    if ledger.state.run_id not in (None, info.run_id):
        raise LedgerError(f"{path}: ledger.jsonl and run.json are of different runs")


def _take(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise LedgerError(f"{path}: another harness is working in this run directory") from exc


def _continue(path: Path, config: dict[str, Any], may_change: frozenset[str]) -> RunInfo:
    info = read_info(path)
    before = _with_defaults(info.config)
    kept = {field: value for field, value in before.items() if field not in may_change}
    lines = differences(kept, {k: v for k, v in config.items() if k not in may_change})
    if lines:
        raise LedgerError(
            f"{path}: the run here was started with other settings:\n  " + "\n  ".join(lines)
        )
    changed = {field: config[field] for field in may_change if config[field] != before.get(field)}
    if changed:
        _keep_settings(path, info)
        info = msgspec.structs.replace(info, config={**info.config, **changed})
        write_atomically(path / "run.json", encode(info))
    return info


def _keep_settings(path: Path, info: RunInfo) -> None:
    """`run-1.json`, `run-2.json`, …: under which the earlier grades were given."""
    names = (path / f"run-{number}.json" for number in itertools.count(1))
    write_atomically(next(name for name in names if not name.exists()), encode(info))


def _with_defaults(config: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that an earlier version started, with those that it did not know."""
    try:
        return validated(RunFile, config, source="run.json").model_dump(mode="json")
    except ConfigError:
        return config


def _start_or_continue(
    path: Path, run: RunFile, source: bytes, may_change: frozenset[str]
) -> RunInfo:
    # As it is kept there: without secrets.
    config = msgspec.json.decode(redact(msgspec.json.encode(run.model_dump(mode="json"))))
    if (path / "run.json").exists():
        return _continue(path, config, may_change)
    if (path / "ledger.jsonl").exists() or (path / "episodes").exists():
        raise LedgerError(f"{path}: it holds episodes but no run.json; give another directory")
    info = RunInfo(
        schema=SCHEMA,
        run_id=f"run-{secrets.token_hex(6)}",
        created_at=now(),
        rock_version=__version__,
        python_version=platform.python_version(),
        system=f"{sys.platform} {platform.release()} {platform.machine()}",
        config=config,
    )
    write_atomically(path / "run.yaml", source)
    write_atomically(path / "run.json", encode(info))
    return info
