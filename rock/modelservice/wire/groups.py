"""Finished groups of episodes on the wire: from the harness to the outbox, from there to the trainer."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from rock.modelservice.wire.base import Input, Wire
from rock.modelservice.wire.trajectory import TokenRow


class GroupEpisode(Input):
    episode_id: str
    index: int
    """Place in the group; stable under retry and resume. With redundant members it may be over size."""
    session_id: str | None
    outcome: dict[str, Any]
    """`rock.rollout.records.outcome.Outcome` as JSON."""
    reward: float | None
    rows: list[TokenRow]
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    """Reason -> number of rows that the run does not train on."""


class Group(Input):
    """All episodes of one task that belong together.

    Published once per `group_id` and `revision`: a later revision takes the place of an earlier one
    that was not acknowledged, and leases on that one are over.
    """

    group_id: str
    run_id: str
    task_id: str
    size: int
    """Episodes that there were to be; those that do not count say why in their outcome."""
    episodes: list[GroupEpisode]
    revision: int = 0
    oldest_version: int | None = None
    """The policy version that began the oldest sample that counts; null if that is unknown."""
    max_staleness: int | None = None
    """Not handed out to a policy more versions than this after `oldest_version`."""


class RolloutClaimRequest(Input):
    worker_id: str
    max_groups: int = 1
    lease_seconds: float = 300.0
    wait_seconds: float = 20.0
    policy_version: int | None = None
    """The version that is about to be trained; null is the one the service was told last."""


class ClaimedGroup(Wire):
    lease_id: str
    delivery: int
    group: Group


class RolloutClaimReply(Wire):
    groups: list[ClaimedGroup]


class RolloutAckRequest(Input):
    lease_ids: list[str]
    step: int | None = None
    """The training step that consumed them, for the record."""


class RolloutRenewRequest(Input):
    lease_ids: list[str]
    lease_seconds: float = 300.0


class RolloutReleaseRequest(Input):
    lease_ids: list[str]


class PublishReply(Wire):
    accepted: bool
    """False when this or a later revision of the group was published before, or it is consumed."""


class GroupStatus(Wire):
    group_id: str
    state: Literal["pending", "leased", "stale", "acknowledged"]
    """`stale`: it became too old and is not handed out any more; a later revision may be published."""
    delivery: int
    revision: int = 0
    step: int | None = None
    """Of an acknowledged group: the training step, if the trainer named it."""
