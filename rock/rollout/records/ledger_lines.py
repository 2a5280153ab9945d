"""The lines of the ledger: what can happen to a run's groups and episodes, one JSON object each.

    group  →  started → ended [→ started → ended …]  per episode  →  published → consumed

What had ended can be opened again (`reopened`) or graded again (`regraded`); what can not be used is
`dropped`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rock.rollout.records.outcome import OutcomeClass

SCHEMA = 2
"""2 added redundant members, reopened and regraded episodes, dropped groups, versions and steps."""

ReopenReason = Literal["stale", "refill", "retry"]


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of the lines. `at` is UTC, for people; nothing is computed from it."""

    at: str = ""


class RunOpened(LedgerEvent, frozen=True, tag="run", kw_only=True):
    """First line: whose ledger this is."""

    run_id: str
    schema: int = SCHEMA


class GroupPlanned(LedgerEvent, frozen=True, tag="group", kw_only=True):
    """A task got its group: `size` episodes and `extra` ones, numbered from 0 for good."""

    group_id: str
    task_id: str
    size: int
    task_digest: str
    work_digest: str = ""
    """Of the task without its grader: what an episode's work depends on."""
    extra: int = 0


class TaskRegraded(LedgerEvent, frozen=True, tag="grader", kw_only=True):
    """The group's task has another grader now; its episodes are graded again."""

    group_id: str
    task_digest: str


class AttemptStarted(LedgerEvent, frozen=True, tag="started", kw_only=True):
    """An episode is leased to an attempt; attempts count from 1."""

    group_id: str
    index: int
    attempt: int


class AttemptEnded(LedgerEvent, frozen=True, tag="ended", kw_only=True):
    """An attempt ended. `final` says that the episode is done with it."""

    group_id: str
    index: int
    attempt: int
    cls: OutcomeClass = msgspec.field(name="class")
    final: bool
    reward: float | None = None
    version: int | None = None
    """The policy version of its first sampled token."""


class EpisodeReopened(LedgerEvent, frozen=True, tag="reopened", kw_only=True):
    """A finished episode is to be run again, with attempts counted from zero failures."""

    group_id: str
    index: int
    reason: ReopenReason


class EpisodeRegraded(LedgerEvent, frozen=True, tag="regraded", kw_only=True):
    """A finished episode was graded again, without being run again; record-`grading`.json holds it."""

    group_id: str
    index: int
    grading: int
    cls: OutcomeClass = msgspec.field(name="class")
    reward: float | None = None


class GroupPublished(LedgerEvent, frozen=True, tag="published", kw_only=True):
    """The group, with the episodes in `chosen` (null: all), is in the outbox."""

    group_id: str
    revision: int = 0
    chosen: tuple[int, ...] | None = None


class GroupDropped(LedgerEvent, frozen=True, tag="dropped", kw_only=True):
    """The group is done and is not for the trainer."""

    group_id: str
    reason: str


class GroupConsumed(LedgerEvent, frozen=True, tag="consumed", kw_only=True):
    """The trainer acknowledged the group, in training step `step` if it said so."""

    group_id: str
    step: int | None = None


Event: TypeAlias = (
    RunOpened
    | GroupPlanned
    | TaskRegraded
    | AttemptStarted
    | AttemptEnded
    | EpisodeReopened
    | EpisodeRegraded
    | GroupPublished
    | GroupDropped
    | GroupConsumed
)
