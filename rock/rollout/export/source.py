"""A run directory, read group by group: who is in each group, and one trajectory at a time.

Nothing is locked and nothing is written, so a run that is still going can be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rock.errors import LedgerError
from rock.modelservice.wire import Trajectory
from rock.rollout.export.sample import GroupInfo, Member
from rock.rollout.records.ledger import replay
from rock.rollout.records.ledger_lines import GroupPlanned
from rock.rollout.records.ledger_state import EpisodeState, GroupState
from rock.rollout.records.record import Plan, Record, file_name_of
from rock.rollout.records.rundir import GONE, file_name, read_info, record_at
from rock.rollout.records.trajectory import read_trajectory

PENDING = "not finished"
NOT_IN_LOSS = "not in loss: "
NO_ROWS = "no token rows"


@dataclass(frozen=True, slots=True)
class Group:
    """A group as the ledger has it."""

    state: GroupState
    ordinal: int
    first_episode: int

    @property
    def group_id(self) -> str:
        return self.state.plan.group_id

    @property
    def digest(self) -> str:
        """Changes when another attempt, grading or episode becomes the one that counts."""
        state = self.state
        finals = [(e.final_attempt, e.grading) for e in state.episodes]
        text = f"{self.group_id} {finals} {state.members}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory to read."""

    path: Path
    run_id: str
    agent: str
    """Name of the agent's program."""
    groups: tuple[Group, ...]
    """In the order of the tasks."""

    def members(self, group: Group) -> tuple[GroupInfo, list[Record]]:
        """The group's members, and the records of those that are finished, by index."""
        plan = group.state.plan
        records = {
            index: self._record(plan, index, group.state.episodes[index])
            for index in group.state.members
            if group.state.episodes[index].final_attempt is not None
        }
        info = GroupInfo(
            group_id=plan.group_id,
            task_id=plan.task_id,
            size=plan.size,
            ordinal=group.ordinal,
            first_episode=group.first_episode,
            members=tuple(
                _member(plan.group_id, index, records.get(index)) for index in group.state.members
            ),
        )
        return info, list(records.values())

    def folder(self, record: Record) -> Path:
        return self._folder(record.task_id, record.index, record.attempt)

    def trajectory(self, record: Record) -> Trajectory | None:
        """Raises `LedgerError` for one that cannot be read."""
        return read_trajectory(self.folder(record))

    def _folder(self, task_id: str, index: int, attempt: int) -> Path:
        return self.path / "episodes" / file_name(task_id) / str(index) / f"attempt-{attempt}"

    def _record(self, plan: GroupPlanned, index: int, episode: EpisodeState) -> Record:
        attempt = episode.final_attempt or 0
        folder = self._folder(plan.task_id, index, attempt)
        which = Plan(
            run_id=self.run_id,
            group_id=plan.group_id,
            task_id=plan.task_id,
            index=index,
            attempt=attempt,
        )
        record = record_at(folder / file_name_of(episode.grading), which)
        if record is None:
            raise LedgerError(f"{folder}: {GONE}")
        return record


def open_run(path: Path) -> Run:
    """Raises `LedgerError` for what is not a run directory."""
    info = read_info(path)
    ledger = path / "ledger.jsonl"
    state, _ = replay(ledger.read_bytes() if ledger.exists() else b"", source=str(ledger))
    command = info.config.get("agent", {}).get("command") or ["agent"]
    return Run(path, info.run_id, Path(command[0]).name, tuple(_numbered(state.groups.values())))


def _numbered(states: Iterable[GroupState]) -> Iterator[Group]:
    first = 0
    for ordinal, state in enumerate(states):
        yield Group(state, ordinal, first)
        first += len(state.episodes)


def _member(group_id: str, index: int, record: Record | None) -> Member:
    missing: str | None = None
    if record is None:
        missing = PENDING
    elif not record.outcome.in_loss:
        missing = f"{NOT_IN_LOSS}{record.outcome.cls}"
    elif record.usage.rows == 0:
        missing = NO_ROWS
    return Member(
        index=index,
        episode_id=f"{group_id}.{index}",
        reward=None if record is None else record.outcome.reward,
        in_baseline=record is not None and record.outcome.in_baseline,
        missing=missing,
    )
