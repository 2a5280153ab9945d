"""Waking long-polls: a caller waits until somebody rings, or its time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Bell:
    """Wakes waiters in the order they came, or a named one first. Ringing with nobody there does
    nothing: look first, then wait. O(1) each."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], str | None] = {}
        """In the order they came, with their names."""
        self._named: dict[str, dict[asyncio.Future[None], None]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, seconds: float, *, name: str | None = None) -> bool:
        """Whether it rang within `seconds`. Several may wait under one `name`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = name
        if name is not None:
            self._named.setdefault(name, {})[waiter] = None
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
            self._forget(waiter)
        return True

    def ring(self, preferred: str | None = None) -> None:
        """Wake a waiter with the name `preferred`, if there is one, or who has waited longest."""
        waiters: Iterable[asyncio.Future[None]] = self._waiters
        if preferred is not None and preferred in self._named:
            waiters = self._named[preferred]
        for waiter in waiters:
            self._wake(waiter)
            return

    def ring_all(self) -> None:
        for waiter in list(self._waiters):
            self._wake(waiter)

    def _wake(self, waiter: asyncio.Future[None]) -> None:
        self._forget(waiter)
        if not waiter.done():
            waiter.set_result(None)

    def _forget(self, waiter: asyncio.Future[None]) -> None:
        name = self._waiters.pop(waiter, None)
        if name is not None:
            same = self._named[name]
            del same[waiter]
            if not same:
                del self._named[name]
