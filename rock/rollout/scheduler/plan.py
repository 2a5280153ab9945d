"""What the scheduler is told and what it decides, as plain values.

A *group* is n episodes of one task; its *members* are numbered 0..n+extra-1. A member runs one
attempt at a time until one ends for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

PartialPolicy = Literal["partial", "drop", "refill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """Every bound that the scheduler keeps. None is no bound."""

    concurrency: int = 4
    """Attempts at the same time: what the sandboxes' machine bears."""
    extra_members: int = 0
    """Members of each group beyond n. The first n that count win, the others are stopped."""
    groups_per_step: int | None = None
    """Groups that one training step takes."""
    extra_groups: int = 0
    """Groups beyond that which are under way for a step; once it has its groups, those still
    running are stopped, and their tasks come again later."""
    max_group_cancels: int = 2
    """How often the same group may be such a loser; then it is left to end."""
    max_staleness: int | None = None
    """The async ratio a: policy version n takes only what version n-a or a later one began."""
    max_stale_reopens: int = 3
    """How often one member is run again for that; then its group is dropped."""
    buffer_groups: int | None = None
    """Groups under way or waiting for the trainer."""
    partial: PartialPolicy = "partial"
    """A group in which fewer than n members count: goes out with `min_valid` of them (`partial`),
    is dropped (`drop`), or has members run again first, `max_refills` times (`refill`)."""
    min_valid: int = 0
    max_refills: int = 2
    starts_per_second: float | None = None
    start_burst: int = 1
    queue_wait_seconds: float | None = None
    """Calls should not wait longer than this for the model; concurrency follows (AIMD)."""
    task_concurrency: int | None = None
    """Attempts of one task at the same time."""
    tag_concurrency: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same for all tasks with a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A group to be run."""

    group_id: str
    task_id: str
    size: int
    extra: int = 0
    tags: tuple[str, ...] = ()


EndingKind = Literal["valid", "invalid", "again"]
"""It counts; it is over and does not count; the member is to be run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended. `version` is the policy version of its first sampled token, if any."""

    kind: EndingKind
    version: int | None = None
    after_seconds: float = 0.0
    """Of `again`: how long to wait before the next attempt."""
    no_room: bool = False
    """The machine had no room for its sandbox: fewer at once for a while."""


CancelReason = Literal["redundant", "redundant_group", "stale", "dropped"]


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an attempt of this member."""

    group_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop this member's attempt; its end is still reported."""

    group_id: str
    index: int
    reason: CancelReason


ReopenReason = Literal["stale", "refill"]


@dataclass(frozen=True, slots=True)
class Reopen:
    """This member had ended for good, and is run again after all."""

    group_id: str
    index: int
    reason: ReopenReason


@dataclass(frozen=True, slots=True)
class Settled:
    """A group has its members. With `publish` it goes to the trainer with those in `chosen`."""

    group_id: str
    publish: bool
    chosen: tuple[int, ...]
    reason: str = ""


Decision: TypeAlias = Start | Cancel | Reopen | Settled
