"""The owner's heartbeat: a sandbox whose lease is not renewed in time ends itself.

A harness that is killed says nothing to anybody. Its containers hold a lease, a fraction of their
lifetime, which this renews while the harness lives; some seconds after its death they are gone,
without a reaper. Renewing goes to each helper directly: an engine that is being restarted is not asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from rock.errors import SandboxError
from rock.sandbox.box.stateful import StatefulSandbox
from rock.sandbox.ending import to_the_end

log = logging.getLogger(__name__)

BEATS_PER_LEASE = 4
"""So many renewals may fail, one after another, before a lease runs out."""
_AT_ONCE = 16


class Heartbeat:
    """Renews the leases of `members()` for as long as it runs. `stop` is safe to call twice."""

    def __init__(
        self, members: Callable[[], Iterable[StatefulSandbox]], *, lease_seconds: float
    ) -> None:
        self._members = members
        self._lease_seconds = lease_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to beat, if that was not done already."""
        if self._task is None and self._lease_seconds > 0:
            self._task = asyncio.ensure_future(self._beat())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await to_the_end(_ended(task))

    async def _beat(self) -> None:
        free = asyncio.Semaphore(_AT_ONCE)

        async def renew(sandbox: StatefulSandbox) -> None:
            async with free:
                try:
                    await sandbox.state.renew(lease_seconds=self._lease_seconds)
                except SandboxError as exc:
                    # Whoever uses the sandbox is told; the next beat tries again.
                    log.debug("the lease of sandbox %s was not renewed: %s", sandbox.id, exc)

        while True:
            await asyncio.sleep(self._lease_seconds / BEATS_PER_LEASE)
            await asyncio.gather(*(renew(sandbox) for sandbox in list(self._members())))


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
