"""What a harness asks about once a second: its sessions, its groups and the policy, in one reply."""

from __future__ import annotations

from msgspec import field

from rock.modelservice.wire.base import Input, Wire
from rock.modelservice.wire.groups import GroupStatus
from rock.modelservice.wire.leases import PolicyStatus


class PulseRequest(Input):
    session_ids: list[str] = field(default_factory=list[str])
    group_ids: list[str] = field(default_factory=list[str])


class SessionPulse(Wire):
    """Signs of life of one open session."""

    session_id: str
    queued: int
    leased: int
    last_call_age_seconds: float | None = None
    """Null before its first call."""
    first_sampled_version: int | None = None
    completion_tokens: int = 0
    """Of all answers so far."""


class PulseReply(Wire):
    """Sessions that are closed and groups that are unknown are missing."""

    policy: PolicyStatus
    sessions: list[SessionPulse]
    groups: list[GroupStatus]
