"""What a run tells whoever watches it, as plain values. Nothing is computed from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from rock.rollout.records.outcome import Outcome, Phase
from rock.rollout.records.record import Plan, Record
from rock.rollout.report.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The run directory is open. `done` episodes were finished by earlier runs in it."""

    run_id: str
    directory: Path
    provider: str
    groups: int
    episodes: int
    done: int
    trainer_url: str | None = None
    """Where a trainer is to answer; None where a backend does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntered:
    """An attempt went on to a phase."""

    plan: Plan
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What ModelService knows of the attempts that run, about once a second."""

    completion_tokens: Mapping[str, int]
    """By episode id: tokens of all answers that its present attempt got."""
    queued: int
    """Calls that no worker has taken."""
    leased: int
    """Calls that a worker is answering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDone:
    """An attempt ended and its record is durable. If not `final`, another attempt follows."""

    record: Record
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeGraded:
    """A finished episode was graded again. `record` still has the outcome of before."""

    record: Record
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDone:
    """All episodes of a group have ended and the trainer can claim it."""

    group_id: str
    task_id: str
    rewards: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeftOut:
    """A group is done and does not go to the trainer; `reason` says why."""

    group_id: str
    task_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAcknowledged:
    """The trainer has consumed a group."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Every episode has its outcome, or the run gave up; `failure` says why."""

    report: Report
    failure: str | None


Event: TypeAlias = (
    RunStarted
    | PhaseEntered
    | Heard
    | AttemptDone
    | EpisodeGraded
    | GroupDone
    | GroupLeftOut
    | GroupAcknowledged
    | RunEnded
)
OnEvent: TypeAlias = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """For a run that nobody watches."""
