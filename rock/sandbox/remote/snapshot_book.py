"""The snapshots that a server keeps for its clients, by name, each under a lease of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from rock.errors import CapacityExceeded, SandboxError
from rock.sandbox.state import Snapshot
from rock.types import Clock

MAX_SNAPSHOTS = 1000
"""Each takes what was written before it, and a descriptor for every layer."""


@dataclass(slots=True)
class KeptSnapshot:
    """One snapshot and its client's lease; 0 s is none."""

    snapshot: Snapshot
    sandbox: str
    lease_seconds: float
    born: float
    seen: float


class SnapshotBook:
    """No I/O but the freeing of what is dropped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, KeptSnapshot] = {}

    def check_room(self) -> None:
        """Raises `CapacityExceeded` if no more may be kept."""
        if len(self._kept) >= MAX_SNAPSHOTS:
            raise CapacityExceeded(
                f"the server keeps {MAX_SNAPSHOTS} snapshots already; drop some, or let leases run out"
            )

    def keep(self, snapshot: Snapshot, *, sandbox: str, lease_seconds: float) -> str:
        """The name by which it is found again."""
        name, now = secrets.token_hex(8), self._clock()
        self._kept[name] = KeptSnapshot(snapshot, sandbox, lease_seconds, now, now)
        return name

    def get(self, name: str) -> KeptSnapshot:
        """Its lease starts anew. Raises `SandboxError`."""
        kept = self._kept.get(name)
        if kept is None:
            raise SandboxError(f"the server has no snapshot {name} (any more)")
        kept.seen = self._clock()
        return kept

    def drop(self, name: str) -> None:
        """Free it. Safe to call twice; sandboxes made of it keep what they need."""
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.snapshot.release()

    def drop_expired(self) -> None:
        now = self._clock()
        for name, kept in list(self._kept.items()):
            if kept.lease_seconds and now - kept.seen > kept.lease_seconds:
                self.drop(name)

    def drop_all(self) -> None:
        for name in list(self._kept):
            self.drop(name)

    def __iter__(self) -> Iterator[tuple[str, KeptSnapshot]]:
        return iter(list(self._kept.items()))
