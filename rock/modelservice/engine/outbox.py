"""Finished groups on their way to the trainer: published once, leased, handed out again until
acknowledged. No I/O; time is passed in."""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from rock.errors import LeaseLost, NotFound, shown
from rock.modelservice.timers import Timers
from rock.modelservice.wire.groups import GroupStatus


class GroupLease(Struct, frozen=True):
    """A claim on one group, and the group as it was published (JSON)."""

    lease_id: str
    delivery: int
    group: bytes


class _Entry:
    __slots__ = ("acknowledged", "delivery", "group", "lease_id")

    def __init__(self, group: bytes) -> None:
        self.group = group
        self.delivery = 0
        self.lease_id: str | None = None
        self.acknowledged = False


class Outbox:
    """Groups by id, in the order of publication. `boot` tells runs of the service apart."""

    def __init__(self, *, boot: str = "0") -> None:
        self._boot = boot
        self._entries: dict[str, _Entry] = {}
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._leases: dict[str, str] = {}
        self._expiries = Timers()
        self._issued = 0

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._entries

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def publish(self, group_id: str, group: bytes) -> None:
        """Know a group; a group whose id is known already changes nothing."""
        if group_id not in self._entries:
            self._entries[group_id] = _Entry(group)

    def offer(self, group_id: str) -> None:
        """Let a published group be claimed."""
        self._waiting[group_id] = None

    def claim(self, *, now: float, lease_seconds: float) -> GroupLease | None:
        """Lease the group that has waited longest, or None."""
        if not self._waiting:
            return None
        group_id, _ = self._waiting.popitem(last=False)
        entry = self._entries[group_id]
        entry.delivery += 1
        self._issued += 1
        lease_id = f"g{self._boot}{self._issued}"
        entry.lease_id = lease_id
        self._leases[lease_id] = group_id
        self._expiries.set(lease_id, now + lease_seconds)
        return GroupLease(lease_id, entry.delivery, entry.group)

    def holder(self, lease_id: str) -> str:
        """The group a lease is on. Raises `LeaseLost`."""
        group_id = self._leases.get(lease_id)
        if group_id is None:
            raise LeaseLost(
                f"lease {shown(lease_id)} is over; the group is handed out again or consumed"
            )
        return group_id

    def acknowledged_ids(self) -> list[str]:
        return [name for name, entry in self._entries.items() if entry.acknowledged]

    def acknowledge(self, group_id: str) -> None:
        """The group is consumed; its content is dropped."""
        entry = self._entries[group_id]
        entry.acknowledged = True
        entry.group = b""
        self._waiting.pop(group_id, None)
        if entry.lease_id is not None:
            self._expiries.drop(entry.lease_id)
            # The lease id stays known, so that a repeated acknowledgement is no conflict.

    def acknowledged(self, group_id: str) -> bool:
        return self._entries[group_id].acknowledged

    def expire(self, now: float) -> int:
        """Put groups whose lease is over back to the head; how many."""
        count = 0
        for lease_id in self._expiries.due(now):
            group_id = self._leases.pop(lease_id)
            self._entries[group_id].lease_id = None
            self._waiting[group_id] = None
            self._waiting.move_to_end(group_id, last=False)
            count += 1
        return count

    def status(self, group_id: str) -> GroupStatus:
        """Raises `NotFound`."""
        entry = self._entries.get(group_id)
        if entry is None:
            raise NotFound(f"no group {shown(group_id)} was published here")
        if entry.acknowledged:
            state = "acknowledged"
        else:
            state = "leased" if entry.lease_id is not None else "pending"
        return GroupStatus(group_id=group_id, state=state, delivery=entry.delivery)
