"""A clock that only moves when told to."""

from __future__ import annotations


class FakeClock:
    """Pass it where a `rock.types.Clock` is wanted; `advance` is the passing of time."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
