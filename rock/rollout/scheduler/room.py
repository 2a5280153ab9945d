"""When a machine that refuses sandboxes is only full, and when there is no use in waiting. No I/O."""

from __future__ import annotations


class RoomWatch:
    """Told of every sandbox that was given or refused. Time is passed in."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._since: float | None = None
        self.refusals = 0
        """In a row."""

    def given(self) -> None:
        self._since, self.refusals = None, 0

    def refused(self, *, others: int, now: float) -> bool:
        """Whether to give up: not for one sandbox there was room during the whole limit.

        While `others` run, their ends make room, however long that takes.
        """
        self.refusals += 1
        if others:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._limit
