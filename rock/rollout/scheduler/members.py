"""The scheduler's own picture of groups and members, and the rules about one group alone."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from rock.rollout.scheduler.plan import CancelReason, GroupPlan, SchedulePolicy, Settled
from rock.rollout.scheduler.pool import QuotaKey


class MemberState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    NOT_NEEDED = "not needed"


class Member:
    """One place in a group."""

    __slots__ = (
        "cancel",
        "ended",
        "index",
        "ready_at",
        "refills",
        "reopens",
        "state",
        "valid",
        "version",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = MemberState.WAITING
        self.ready_at = 0.0
        self.cancel: CancelReason | None = None
        """Why its attempt was told to stop, while it has not ended."""
        self.version: int | None = None
        """Of the first sampled token of its attempt; None while nothing was sampled."""
        self.valid = False
        self.ended = 0
        """Place in the order of endings in its group."""
        self.reopens = 0
        self.refills = 0

    @property
    def counts(self) -> bool:
        return self.state is MemberState.DONE and self.valid

    def stale(self, floor: int | None) -> bool:
        """Whether it was begun by a policy older than `floor`."""
        return floor is not None and self.version is not None and self.version < floor

    def again(self) -> None:
        """Back to waiting, and due at once."""
        self.state, self.valid, self.version, self.cancel = MemberState.WAITING, False, None, None
        self.ready_at = float("-inf")


class Group:
    """One group. `order` is its place among all, `window` the step that it was opened for."""

    __slots__ = (
        "admitted",
        "cancels",
        "consumed",
        "dropped",
        "endings",
        "members",
        "order",
        "plan",
        "settled",
        "tag_keys",
        "window",
    )

    def __init__(self, plan: GroupPlan, order: int, tag_keys: tuple[QuotaKey, ...]) -> None:
        self.plan = plan
        self.order = order
        self.tag_keys = tag_keys
        self.members = [Member(index) for index in range(plan.size + plan.extra)]
        self.admitted = False
        self.window: int | None = None
        self.cancels = 0
        self.endings = 0
        self.settled: Settled | None = None
        self.consumed = False
        self.dropped = False

    def in_state(self, state: MemberState) -> Iterator[Member]:
        return (member for member in self.members if member.state is state)

    def end(self, member: Member, *, valid: bool) -> None:
        self.endings += 1
        member.state, member.valid, member.ended = MemberState.DONE, valid, self.endings

    def winners(self) -> list[Member]:
        """The first n members that count, in the order in which they ended."""
        valid = sorted((m for m in self.members if m.counts), key=lambda member: member.ended)
        return valid[: self.plan.size]

    def to_refill(self, policy: SchedulePolicy) -> list[Member]:
        """Members that are to run again because too few of the group count, first by index."""
        if policy.partial != "refill":
            return []
        failed = [
            member
            for member in self.in_state(MemberState.DONE)
            if not member.valid and member.refills < policy.max_refills
        ]
        return failed[: max(0, self.plan.size - len(self.winners()))]

    def verdict(self, policy: SchedulePolicy) -> Settled | None:
        """What becomes of the group, None while that is open."""
        winners = self.winners()
        if len(winners) == self.plan.size:
            return self._publish(winners)
        over = (MemberState.DONE, MemberState.NOT_NEEDED)
        if any(member.state not in over for member in self.members):
            return None
        count = f"{len(winners)} of {self.plan.size} members count"
        if policy.partial == "drop" or len(winners) < policy.min_valid:
            return Settled(self.plan.group_id, publish=False, chosen=(), reason=count)
        # Those that do not count go along, so that the trainer sees what is missing, and why.
        rest = [m for m in self.in_state(MemberState.DONE) if not m.valid]
        return self._publish(winners + rest[: self.plan.size - len(winners)])

    def _publish(self, members: list[Member]) -> Settled:
        chosen = tuple(sorted(member.index for member in members))
        return Settled(self.plan.group_id, publish=True, chosen=chosen)
