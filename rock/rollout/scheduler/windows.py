"""How far the groups may run ahead of the trainer: the steps that are open, and the buffer."""

from __future__ import annotations

from rock.rollout.scheduler.plan import SchedulePolicy


class Windows:
    """Groups are opened for one training step after another. A step's window has room for its
    groups and the extra ones; with a bound a on staleness, at most a steps are begun ahead of the
    one whose groups the trainer is taking."""

    def __init__(self, policy: SchedulePolicy) -> None:
        self._size = policy.groups_per_step
        self._extra = policy.extra_groups
        self._ahead = policy.max_staleness
        self._buffer = policy.buffer_groups
        self._admitted: dict[int, int] = {}
        self._completed: dict[int, int] = {}
        self._current = 0
        self.open_groups = 0
        """Opened and not settled."""
        self.unconsumed = 0
        """Settled to be published and not yet consumed."""
        self.consumed = 0

    def resume(self, published: int) -> None:
        """`published` groups went out before; they filled the first windows."""
        if self._size is not None:
            self._current, part = divmod(published, self._size)
            self._admitted[self._current] = self._completed[self._current] = part

    @property
    def room(self) -> bool:
        """Whether another group may be opened."""
        if self._buffer is not None and self.open_groups + self.unconsumed >= self._buffer:
            return False
        return self._size is None or self._next(self._size) is not None

    def _next(self, size: int) -> int | None:
        """The first window with room, if it may be opened yet."""
        window = self._current
        while self._admitted.get(window, 0) >= size + self._extra:
            window += 1
        if self._ahead is not None and window > self.consumed // size + self._ahead:
            return None
        return window

    def admit(self, window: int | None = None) -> int | None:
        """A group was opened; the window it is in, which may be given."""
        self.open_groups += 1
        if self._size is None:
            return None
        if window is None:
            window = self._next(self._size)
            window = self._current if window is None else window
        self._admitted[window] = self._admitted.get(window, 0) + 1
        return window

    def leave(self, window: int | None) -> None:
        """An open group is not of its window any more: dropped, or back in the pool."""
        self.open_groups -= 1
        if window is not None:
            self._admitted[window] -= 1

    def move_on(self, window: int) -> int:
        """A loser that goes on to its end: it is of the next window now."""
        self._admitted[window] -= 1
        self._admitted[window + 1] = self._admitted.get(window + 1, 0) + 1
        return window + 1

    def complete(self, window: int | None) -> bool:
        """An open group is to be published; whether its window has all it needs now."""
        self.open_groups -= 1
        self.unconsumed += 1
        if self._size is None or window is None:
            return False
        self._completed[window] = self._completed.get(window, 0) + 1
        full = self._completed[window] == self._size
        while self._completed.get(self._current, 0) >= self._size:
            self._current += 1
        return full and self._extra > 0

    def reopen(self) -> None:
        """A published group was withdrawn, and is under way again in its old window."""
        self.unconsumed -= 1
        self.open_groups += 1

    def uncomplete(self, window: int | None) -> None:
        if window is not None:
            self._completed[window] = self._completed.get(window, 0) - 1
            self._current = min(self._current, window)
