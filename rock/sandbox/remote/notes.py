"""What a client does over a sandbox's channel, told to the sandbox's server for its log.

The server only passes the channel's bytes on, so it cannot know. Entries are sent some at a time, a moment
after they were written; if the server is not reached they are lost, and the sandbox with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rock.errors import RockError
from rock.sandbox.logs import LogEntry

log = logging.getLogger(__name__)

SEND_SECONDS = 0.2
MAX_WAITING = 5000
"""More than that is not kept: the oldest go."""
_CLOSE_SECONDS = 5.0


class NoteSink:
    """A log's sink. `flush` sends what waits; `close`, too, and nothing is taken any more."""

    def __init__(self, send: Callable[[list[LogEntry]], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: list[LogEntry] = []
        self._sending: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    def add(self, entry: LogEntry) -> None:
        if self._closed:
            return
        self._waiting.append(entry)
        del self._waiting[:-MAX_WAITING]
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_later())

    async def flush(self) -> None:
        async with self._turn:
            entries, self._waiting = self._waiting, []
            if entries:
                try:
                    await self._send(entries)
                except RockError as exc:
                    log.debug("%d entries of a log are lost: %s", len(entries), exc.message)

    async def close(self) -> None:
        """What waits is sent, unless the server takes too long."""
        self._closed = True
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.flush()
        except TimeoutError:
            log.debug("the server takes no entries of a log")
        self.drop()

    def drop(self) -> None:
        """The sandbox ends, and its log with it. Safe to call twice."""
        self._closed = True
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()

    async def _send_later(self) -> None:
        while self._waiting:
            await asyncio.sleep(SEND_SECONDS)
            await self.flush()
