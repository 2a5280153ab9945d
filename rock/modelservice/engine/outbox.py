"""Finished groups on their way to the trainer: published once, leased, handed out again until
acknowledged. No I/O; time is passed in.

A group says how old its oldest sample is, as a policy version, and how much older the policy that
takes it may be. One that is too old is not handed out: it is `stale`, until a later revision of it is
published. While it is leased nothing changes, for it was young enough when it was taken.

After a restart every group that is not acknowledged waits again, but the last lease on it is still good:
its trainer may be in the middle of the step, and until somebody else gets the group it is that trainer's.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from msgspec import Struct

from rock.errors import LeaseLost, NotFound, shown
from rock.modelservice.timers import Timers
from rock.modelservice.wire.groups import GroupStatus


class Freshness(Struct, frozen=True, kw_only=True):
    """What the outbox knows of a group's content."""

    revision: int = 0
    oldest_version: int | None = None
    max_staleness: int | None = None

    def stale_at(self, version: int | None) -> bool:
        if version is None or self.oldest_version is None or self.max_staleness is None:
            return False
        return version - self.oldest_version > self.max_staleness


def freshness_of(group: bytes) -> Freshness:
    """Of a published group (JSON)."""
    return msgspec.json.decode(group, type=Freshness)


class GroupLease(Struct, frozen=True):
    """A claim on one group, and the group as it was published (JSON)."""

    lease_id: str
    delivery: int
    group: bytes


class Consumption(Struct, frozen=True):
    """What the outbox remembers of a consumed group."""

    step: int | None
    lease_id: str | None


class _Entry:
    __slots__ = (
        "acknowledged",
        "delivery",
        "freshness",
        "group",
        "lease_id",
        "settled",
        "stale",
        "step",
    )

    def __init__(self, group: bytes, freshness: Freshness) -> None:
        self.group = group
        self.freshness = freshness
        self.delivery = 0
        self.lease_id: str | None = None
        """The lease that may acknowledge it. While the group waits, that is one from before a restart."""
        self.stale = False
        self.acknowledged = False
        self.settled = False
        """Whether its acknowledgement is in the journal."""
        self.step: int | None = None


class Outbox:
    """Groups by id, in the order of publication. `boot` tells runs of the service apart."""

    def __init__(self, *, boot: str = "0") -> None:
        self._boot = boot
        self._entries: dict[str, _Entry] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._leases: dict[str, str] = {}
        self._expiries = Timers()
        self._issued = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def accepts(self, group_id: str, revision: int = 0) -> bool:
        """Whether a group is new, or a later revision of one that is not acknowledged."""
        entry = self._entries.get(group_id)
        if entry is None:
            return True
        return revision > entry.freshness.revision and not entry.acknowledged

    def publish(self, group_id: str, group: bytes, freshness: Freshness | None = None) -> None:
        """Know a group, or its later revision; a lease on an earlier one is over. What is not
        accepted changes nothing."""
        freshness = freshness or Freshness()
        if not self.accepts(group_id, freshness.revision):
            return
        before = self._entries.get(group_id)
        if before is not None and before.lease_id is not None:
            self._forget_lease(before)
        self._waiting.pop(group_id, None)
        self._entries[group_id] = _Entry(group, freshness)
        if before is not None:
            self._entries[group_id].delivery = before.delivery

    def offer(self, group_id: str, revision: int | None = None) -> None:
        """Let a published group be claimed, if `revision` is still the one that is known."""
        entry = self._entries[group_id]
        known = revision in (None, entry.freshness.revision)
        if known and entry.lease_id is None and not entry.acknowledged:
            self._waiting[group_id] = None

    def claim(
        self, *, now: float, lease_seconds: float, version: int | None = None
    ) -> GroupLease | None:
        """Lease the group that has waited longest and is fresh enough for policy `version`, or None.

        Those that are not are stale from then on.
        """
        while self._waiting:
            group_id, _ = self._waiting.popitem(last=False)
            entry = self._entries[group_id]
            if entry.freshness.stale_at(version):
                self._make_stale(entry)
                continue
            if entry.lease_id is not None:
                self._forget_lease(entry)
            entry.delivery += 1
            self._issued += 1
            lease_id = f"g{self._boot}{self._issued}"
            entry.lease_id = lease_id
            self._leases[lease_id] = group_id
            self._expiries.set(lease_id, now + lease_seconds)
            return GroupLease(lease_id, entry.delivery, entry.group)
        return None

    def withdraw_stale(self, version: int | None) -> None:
        """The policy has this version now: groups that wait and are too old for it are stale."""
        for group_id in list(self._waiting):
            entry = self._entries[group_id]
            if entry.freshness.stale_at(version):
                self._make_stale(entry)
                del self._waiting[group_id]

    def _make_stale(self, entry: _Entry) -> None:
        entry.stale = True
        if entry.lease_id is not None:  # from before a restart
            self._forget_lease(entry)

    def holder(self, lease_id: str) -> str:
        """The group a lease is on. Raises `LeaseLost`."""
        group_id = self._leases.get(lease_id)
        if group_id is None:
            raise LeaseLost(
                f"lease {shown(lease_id)} is over; the group is handed out again or consumed"
            )
        return group_id

    def renew(self, lease_id: str, *, now: float, lease_seconds: float) -> None:
        """Raises `LeaseLost`, also for a group that is consumed."""
        group_id = self.holder(lease_id)
        if self._entries[group_id].acknowledged:
            raise LeaseLost(f"lease {lease_id!r} is over; the group is consumed")
        self._waiting.pop(group_id, None)
        self._expiries.set(lease_id, now + lease_seconds)

    def restore(self, group_id: str, *, lease_id: str | None, delivery: int = 0) -> None:
        """A lease from before a restart: nobody waits for it, but it is good until the group is handed
        out again."""
        entry = self._entries[group_id]
        entry.delivery = delivery
        if lease_id is not None:
            entry.lease_id = lease_id
            self._leases[lease_id] = group_id

    def release(self, lease_id: str) -> None:
        """The group is handed out again, before all others. Raises `LeaseLost`."""
        entry = self._entries[self.holder(lease_id)]
        if entry.acknowledged:
            raise LeaseLost(f"lease {lease_id!r} is over; the group is consumed")
        self._back(self._forget_lease(entry))

    def consumed(self) -> dict[str, Consumption]:
        """Consumed groups: the training step of each, if it was named, and the lease."""
        return {
            name: Consumption(entry.step, entry.lease_id)
            for name, entry in self._entries.items()
            if entry.acknowledged
        }

    def acknowledge(self, group_id: str, *, step: int | None = None) -> None:
        """The group is consumed; its content is dropped. `status` says so once it is `settle`d."""
        entry = self._entries[group_id]
        entry.acknowledged, entry.step, entry.stale = True, step, False
        entry.group = b""
        self._waiting.pop(group_id, None)
        if entry.lease_id is not None:
            self._expiries.drop(entry.lease_id)
            # The lease id stays known, so that a repeated acknowledgement is no conflict.

    def settle(self, group_id: str) -> None:
        """The acknowledgement is in the journal."""
        self._entries[group_id].settled = True

    def acknowledged(self, group_id: str) -> bool:
        return self._entries[group_id].acknowledged

    def expire(self, now: float) -> int:
        """Put groups whose lease is over back to the head; how many."""
        count = 0
        for lease_id in self._expiries.due(now):
            self._back(self._forget_lease(self._entries[self._leases[lease_id]]))
            count += 1
        return count

    def _forget_lease(self, entry: _Entry) -> str:
        """The group's id."""
        assert entry.lease_id is not None
        self._expiries.drop(entry.lease_id)
        group_id = self._leases.pop(entry.lease_id)
        entry.lease_id = None
        return group_id

    def _back(self, group_id: str) -> None:
        self._waiting[group_id] = None
        self._waiting.move_to_end(group_id, last=False)

    def status(self, group_id: str) -> GroupStatus:
        """Raises `NotFound`."""
        entry = self._entries.get(group_id)
        if entry is None:
            raise NotFound(f"no group {shown(group_id)} was published here")
        state = "pending"
        if entry.acknowledged:
            state = "acknowledged" if entry.settled else "leased"
        elif entry.stale:
            state = "stale"
        elif entry.lease_id is not None and group_id not in self._waiting:
            state = "leased"
        return GroupStatus(
            group_id=group_id,
            state=state,
            delivery=entry.delivery,
            revision=entry.freshness.revision,
            step=entry.step,
        )

    def statuses(self, group_ids: list[str]) -> list[GroupStatus]:
        """Of those that were published here."""
        return [self.status(name) for name in group_ids if name in self._entries]
