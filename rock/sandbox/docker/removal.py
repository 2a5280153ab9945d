"""Removing containers although their engine may be away: it crashes, is upgraded, or is out of memory.

A sandbox is ended without its engine, by its own helper, and what the engine still has of it is removed
as soon as it answers again. Nothing waits for an engine that does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rock.errors import ProviderUnavailable, SandboxError
from rock.sandbox.docker.engine import Engine
from rock.sandbox.ending import to_the_end

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class OwnEnd:
    """How a box ends without its engine: it is asked to, and then nobody listens at its socket."""

    ask: Callable[[], Awaitable[object]]
    socket: Path

    async def come(self) -> bool:
        """Whether it has ended, in bounded time."""
        try:
            async with asyncio.timeout(END_SECONDS):
                if not _nobody_listens(self.socket):
                    await self.ask()
                while not _nobody_listens(self.socket):  # noqa: ASYNC110 (nothing tells of it)
                    await asyncio.sleep(0.01)
        except (SandboxError, TimeoutError):
            return _nobody_listens(self.socket)
        return True


class Removal:
    """Removes the containers of one provider. `close` tries a last time; safe to call twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._owed: set[str] = set()
        self._trying: asyncio.Task[None] | None = None
        self._closed = False

    async def remove(self, name: str, own_end: OwnEnd | None) -> None:
        """Remove a container; if its engine is away, see that it ends by itself.

        Raises `SandboxError` if neither was possible. What was not removed is owed.
        """
        try:
            await self._engine.remove(name)
        except SandboxError as exc:
            self._owe(name)
            away = isinstance(exc, ProviderUnavailable)
            if not away or own_end is None or not await own_end.come():
                raise
            log.info("%s was ended without its engine, which still has to remove it", name)

    def _owe(self, name: str) -> None:
        self._owed.add(name)
        if self._trying is None and not self._closed:
            self._trying = asyncio.ensure_future(self._try())

    async def _try(self) -> None:
        while self._owed:
            await asyncio.sleep(RETRY_SECONDS)
            await self._once()
        self._trying = None

    async def _once(self) -> None:
        for name in sorted(self._owed):
            try:
                await self._engine.remove(name)
            except ProviderUnavailable:
                return  # nor will it remove the others
            except SandboxError as exc:
                log.debug("%s is not removed yet: %s", name, exc.message)
                continue
            self._owed.discard(name)

    async def close(self) -> None:
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        trying, self._trying = self._trying, None
        if trying is not None:
            trying.cancel()
            await asyncio.wait([trying])
        await self._once()
        for name in sorted(self._owed):
            log.warning("%s could not be removed and is left to the reaper", name)
        self._owed.clear()


def _nobody_listens(path: Path) -> bool:
    """Also a process that is stopped listens: it is still there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as knocking:
        try:
            knocking.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False
