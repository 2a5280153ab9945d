"""Leases that ended without their worker's doing, kept until the worker has heard. No I/O; time is
passed in.

A worker asks with the number of the last notice it saw, so a reply that got lost is repeated. A
worker that does not ask hears the same from `renew` and `partial`; its notices are let go in time.
"""

from __future__ import annotations

from collections import deque

from rock.types import LeaseId, WorkerId

KEEP_SECONDS = 600.0
_Notice = tuple[int, float, LeaseId]
"""Number, moment, lease."""


class Notices:
    def __init__(self) -> None:
        self._by_worker: dict[WorkerId, deque[_Notice]] = {}
        self._told = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_worker.values()))

    def tell(self, worker_id: WorkerId, lease_id: LeaseId, *, now: float) -> None:
        self._told += 1
        self._by_worker.setdefault(worker_id, deque()).append((self._told, now, lease_id))

    def after(self, worker_id: WorkerId, number: int) -> tuple[list[LeaseId], int]:
        """(leases told after `number`, the number to ask with next).

        What the worker has seen is forgotten. A number of an earlier run of the service, which is
        above all of this one's, asks for everything.
        """
        if number > self._told:
            number = 0
        notices = self._by_worker.get(worker_id)
        if notices is None:
            return [], self._told
        while notices and notices[0][0] <= number:
            notices.popleft()
        if not notices:
            del self._by_worker[worker_id]
        return [lease_id for _, _, lease_id in notices], self._told

    def forget(self, now: float) -> None:
        """Let go of what has been waiting for too long."""
        for worker_id, notices in list(self._by_worker.items()):
            while notices and notices[0][1] + KEEP_SECONDS <= now:
                notices.popleft()
            if not notices:
                del self._by_worker[worker_id]
