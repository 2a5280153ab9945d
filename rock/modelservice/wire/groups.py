"""Finished groups of episodes on the wire: from the harness to the outbox, from there to the trainer."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from rock.modelservice.wire.base import Input, Wire
from rock.modelservice.wire.trajectory import TokenRow


class GroupEpisode(Input):
    episode_id: str
    index: int
    """Place in the group, 0..size-1; stable under retry and resume."""
    session_id: str | None
    outcome: dict[str, Any]
    """`rock.rollout.outcome.Outcome` as JSON."""
    reward: float | None
    rows: list[TokenRow]
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of rows that the run does not train on."""


class Group(Input):
    """All episodes of one task that belong together. Published once per `group_id`."""

    group_id: str
    run_id: str
    task_id: str
    size: int
    episodes: list[GroupEpisode]


class RolloutClaimRequest(Input):
    worker_id: str
    max_groups: int = 1
    lease_seconds: float = 300.0
    wait_seconds: float = 20.0


class ClaimedGroup(Wire):
    lease_id: str
    delivery: int
    group: Group


class RolloutClaimReply(Wire):
    groups: list[ClaimedGroup]


class RolloutAckRequest(Input):
    lease_ids: list[str]


class PublishReply(Wire):
    accepted: bool
    """False when this group id was published before; the first one stands."""


class GroupStatus(Wire):
    group_id: str
    state: Literal["pending", "leased", "acknowledged"]
    delivery: int
