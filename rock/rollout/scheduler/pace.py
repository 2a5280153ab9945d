"""How many attempts at once, and how fast they may begin. No I/O; time is passed in."""

from __future__ import annotations

INCREASE = 1.0
DECREASE = 0.7
SETTLE_SECONDS = 5.0
"""After a decrease nothing more is concluded for this long: what was in flight must drain first."""

ROOM_SECONDS = 5.0
"""After a refusal, and after each rise of the limit that follows, no more is tried for this long."""


class ModelPace:
    """Concurrency that the model bears: up by one while calls are answered in time, down by a third
    when they wait too long (additive increase, multiplicative decrease)."""

    def __init__(self, ceiling: int, target_seconds: float | None) -> None:
        """Without `target_seconds` the ceiling is the limit."""
        self._ceiling = ceiling
        self._target = target_seconds
        self._limit = float(ceiling)
        self._quiet_until = float("-inf")

    @property
    def limit(self) -> int:
        return max(1, int(self._limit))

    def note(self, queue_wait_seconds: float, *, running: int, now: float) -> None:
        """The longest that a call waits at the moment, while the policy takes calls."""
        if self._target is None or now < self._quiet_until:
            return
        if queue_wait_seconds > self._target:
            self._limit = max(1.0, min(self._limit, running) * DECREASE)
            self._quiet_until = now + SETTLE_SECONDS
        elif running >= self.limit:  # a limit that is not used says nothing about the model
            self._limit = min(float(self._ceiling), self._limit + INCREASE)


class RoomPace:
    """Concurrency that the sandboxes' machine bears: down to what runs when it refuses another one, up by
    one for every `ROOM_SECONDS` without a refusal."""

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._limit = ceiling
        self._raise_at = float("inf")

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def raise_at(self) -> float:
        """When one more may run; infinity if nothing was refused."""
        return self._raise_at

    def refused(self, running: int, now: float) -> None:
        """There was no room beside the `running` ones."""
        self._limit = max(1, min(self._limit, running))
        self._raise_at = now + ROOM_SECONDS

    def pass_time(self, now: float) -> None:
        if now >= self._raise_at:
            self._limit = min(self._ceiling, self._limit + 1)
            full = self._limit == self._ceiling
            self._raise_at = float("inf") if full else now + ROOM_SECONDS


class StartRate:
    """A token bucket: `per_second` starts on average, `burst` at once."""

    def __init__(self, per_second: float | None, burst: int) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Whether another start is due; if so, it is taken."""
        if self._per_second is None:
            return True
        self._refill(now, self._per_second)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def ready_at(self, now: float) -> float:
        """When the next start is due."""
        if self._per_second is None:
            return now
        self._refill(now, self._per_second)
        return now + max(0.0, 1.0 - self._tokens) / self._per_second

    def _refill(self, now: float, per_second: float) -> None:
        if self._at is not None:
            tokens = self._tokens + (now - self._at) * per_second
            # A hair below one would otherwise ask to be woken again and again at the same moment.
            self._tokens = min(self._burst, tokens + 1e-9)
        self._at = now
