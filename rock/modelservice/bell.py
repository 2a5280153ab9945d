"""Waking long-polls: a caller waits until somebody rings, or its time is up."""

from __future__ import annotations

import asyncio
from collections import deque


class Bell:
    """Wakes waiters in the order they came. Ringing with nobody there does nothing: look first,
    then wait."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return sum(not waiter.done() for waiter in self._waiters)

    async def wait(self, seconds: float) -> bool:
        """Whether it rang within `seconds`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            # A ring in the very moment of the timeout was meant for somebody who still waits.
            if waiter.done() and not waiter.cancelled():
                self.ring()
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.ring()
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True

    def ring(self) -> None:
        """Wake whoever has waited longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def ring_all(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
