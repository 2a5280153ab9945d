"""Warm pools: sandboxes that wait, made ahead, so that a claim is a matter of microseconds.

A pool belongs to one spec (labels aside, which say whose a sandbox is and not what it is). It is opened
by the first request for that spec and filled in the background, slowly enough to leave the machine to
those that work. A claimed sandbox is never returned: `stop` ends it, and another takes its place. It
serves as the second tier of `reset`, too, where a box cannot be put back in place.

The owner of a pool is the provider below it: whatever ends that, ends those that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rock.errors import CapacityExceeded, ConfigError, RockError, SandboxError
from rock.sandbox.base import Availability, BuildNetwork, Built, Provider, Sandbox, SandboxSpec
from rock.sandbox.box.stateful import StatefulSandbox
from rock.sandbox.ending import to_the_end
from rock.sandbox.state import ResetTier, Snapshot
from rock.types import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """How many wait, how fast they are made, and how long they are kept."""

    ready_min: int = 2
    """So many wait for each spec in use."""
    ready_max: int = 8
    """While claims come faster than pools fill, the pool of that spec grows up to this."""
    making_at_once: int = 2
    """Of all pools together."""
    refill_seconds: float = 0.0
    """At least so long between two beginnings, of all pools together."""
    age_seconds: float = 1800.0
    """One that has waited so long is replaced; less than half of what the spec lets a sandbox live."""
    idle_seconds: float = 300.0
    """A pool nobody claimed from for so long is emptied."""

    def __post_init__(self) -> None:
        if not 0 <= self.ready_min <= self.ready_max or self.ready_max < 1:
            raise ConfigError(
                f"ready_min, ready_max: got {self.ready_min}, {self.ready_max}, expected 0 ≤ min ≤ max"
            )
        if self.making_at_once < 1:
            raise ConfigError(f"making_at_once: got {self.making_at_once}, expected at least 1")


@dataclass(slots=True)
class _Waiting:
    sandbox: StatefulSandbox
    since: float


@dataclass(slots=True)
class _Pool:
    """The pool of one spec."""

    spec: SandboxSpec
    wanted: int
    claimed_at: float
    ready: deque[_Waiting] = field(default_factory=deque[_Waiting])
    making: int = 0
    failures: int = 0
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """What the pools have, and what they did so far."""

    ready: int
    making: int
    hits: int
    misses: int


_TICK_SECONDS = 1.0
_RETRY_SECONDS = (1.0, 5.0, 30.0)


class PooledProvider(Provider):
    """A provider that hands out sandboxes of `inner` made ahead. Closing it closes `inner`, unless that is somebody else's: then it
    stops those that wait."""

    def __init__(
        self,
        inner: Provider,
        policy: PoolPolicy | None = None,
        *,
        clock: Clock = time.monotonic,
        owns_inner: bool = True,
    ) -> None:
        self.name = inner.name
        self.builds_images = inner.builds_images
        self._inner = inner
        self._policy = policy or PoolPolicy()
        self._clock = clock
        self._owns_inner = owns_inner
        self._pools: dict[str, _Pool] = {}
        self._wake = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._closed = False
        self._hits = 0
        self._misses = 0
        self._last_made = float("-inf")

    async def probe(self) -> Availability:
        return await self._inner.probe()

    async def build_image(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        timeout_seconds: float = 600.0,
        network: BuildNetwork = "engine",
    ) -> Built:
        return await self._inner.build_image(
            context, dockerfile=dockerfile, timeout_seconds=timeout_seconds, network=network
        )

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """One that waits, if there is one; else, and for a snapshot, a new one."""
        if self._closed:
            raise SandboxError("this provider is closed; it makes no more sandboxes")
        if snapshot is not None:
            return await self._create_in_room(spec, snapshot)
        pool = self._pool(spec)
        claimed = await self._claim(pool, spec)
        if claimed is not None:
            self._hits += 1
            return claimed
        self._misses += 1
        pool.wanted = min(pool.wanted + 1, self._policy.ready_max)
        made = await self._create_in_room(spec)
        if isinstance(made, StatefulSandbox):
            self._replaced_from_pool(made)
        return made

    async def _create_in_room(self, spec: SandboxSpec, snapshot: Snapshot | None = None) -> Sandbox:
        """A new one. On a full machine those that only wait, for other specs, make room for it."""
        while True:
            try:
                return await self._inner.create(spec, snapshot=snapshot)
            except CapacityExceeded:
                pools = [pool for pool in self._pools.values() if pool.ready]
                if not pools:
                    raise
                fullest = max(pools, key=lambda pool: len(pool.ready))
                fullest.wanted = max(self._policy.ready_min, len(fullest.ready) - 1)
                fullest.retry_at = self._clock() + _RETRY_SECONDS[-1]
                await _stop(fullest.ready.popleft().sandbox)

    async def warm(self, spec: SandboxSpec) -> None:
        """Open the pool of `spec` and wait for what is missing of its minimum. Raises what making one raises."""
        pool = self._pool(spec)
        missing = max(0, self._policy.ready_min - len(pool.ready) - pool.making)
        pool.making += missing
        await asyncio.gather(*(self._add_counted(pool) for _ in range(missing)))

    def sandboxes(self) -> list[Sandbox]:
        """Those that somebody works in; not those that wait."""
        waiting = {one.sandbox.id for pool in self._pools.values() for one in pool.ready}
        return [one for one in self._inner.sandboxes() if one.id not in waiting]

    def counts(self) -> PoolCounts:
        pools = self._pools.values()
        return PoolCounts(
            ready=sum(len(pool.ready) for pool in pools),
            making=sum(pool.making for pool in pools),
            hits=self._hits,
            misses=self._misses,
        )

    async def close(self) -> None:
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        tasks = [*self._work, *([] if self._keeping is None else [self._keeping])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        waiting = [one.sandbox for pool in self._pools.values() for one in pool.ready]
        self._pools.clear()
        if self._owns_inner:
            await self._inner.close()
        else:
            await asyncio.gather(*(_stop(sandbox) for sandbox in waiting))

    def _pool(self, spec: SandboxSpec) -> _Pool:
        key = repr(replace(spec, labels={}, env=dict(sorted(spec.env.items()))))
        pool = self._pools.get(key)
        if pool is None:
            pool = _Pool(replace(spec, labels={}), self._policy.ready_min, self._clock())
            self._pools[key] = pool
        if self._keeping is None:
            self._keeping = asyncio.ensure_future(self._keep())
        pool.claimed_at = self._clock()
        self._wake.set()
        return pool

    async def _claim(self, pool: _Pool, spec: SandboxSpec) -> StatefulSandbox | None:
        """The longest waiting one that still answers; its lifetime starts anew."""
        while pool.ready:
            sandbox = pool.ready.popleft().sandbox
            self._wake.set()
            try:
                await sandbox.state.renew(lifetime_seconds=spec.lifetime_seconds)
            except SandboxError as exc:
                log.info("sandbox %s died while it waited: %s", sandbox.id, exc.message)
                self._later(_stop(sandbox))
                continue
            except asyncio.CancelledError:
                self._later(_stop(sandbox))
                raise
            sandbox.spec, sandbox.origin = spec, "pool"
            self._replaced_from_pool(sandbox)
            return sandbox
        return None

    def _replaced_from_pool(self, sandbox: StatefulSandbox) -> None:
        """A reset that cannot be done in place takes a waiting one; else what the provider does."""
        otherwise = sandbox.replacement

        async def replace_it(used: StatefulSandbox) -> tuple[StatefulSandbox, ResetTier]:
            claimed = await self._claim(self._pool(used.spec), used.spec)
            if claimed is not None:
                return claimed, ResetTier.POOL
            if otherwise is None:
                raise SandboxError("the pool is empty")
            return await otherwise(used)

        sandbox.replacement = replace_it

    async def _keep(self) -> None:
        """Fill, renew and empty the pools until closed."""
        while True:
            self._wake.clear()
            now = self._clock()
            for key, pool in list(self._pools.items()):
                self._tidy(key, pool, now)
            wait = self._fill(now)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    def _tidy(self, key: str, pool: _Pool, now: float) -> None:
        idle = now - pool.claimed_at > self._policy.idle_seconds
        oldest = now - min(self._policy.age_seconds, pool.spec.lifetime_seconds / 2)
        while pool.ready and (idle or pool.ready[0].since < oldest):
            self._later(_stop(pool.ready.popleft().sandbox))
        if idle and pool.making == 0:
            del self._pools[key]

    def _fill(self, now: float) -> float:
        """Begin to make what is missing; how long until there may be more to do, in seconds."""
        free = self._policy.making_at_once - sum(pool.making for pool in self._pools.values())
        for pool in self._pools.values():
            missing = pool.wanted - len(pool.ready) - pool.making
            while missing > 0 and free > 0 and now >= pool.retry_at:
                pause = self._last_made + self._policy.refill_seconds - now
                if pause > 0:
                    return min(pause, _TICK_SECONDS)
                self._last_made = now
                missing, free = missing - 1, free - 1
                pool.making += 1
                self._later(self._make(pool))
        return _TICK_SECONDS

    async def _make(self, pool: _Pool) -> None:
        try:
            await self._add_counted(pool)
        except (RockError, OSError) as exc:
            pool.failures += 1
            pause = _RETRY_SECONDS[min(pool.failures, len(_RETRY_SECONDS)) - 1]
            pool.retry_at = self._clock() + pause
            log.warning("a pool makes no sandbox for %g s: %s", pause, exc)
        else:
            pool.failures = 0

    async def _add_counted(self, pool: _Pool) -> None:
        try:
            await self._add(pool)
        finally:
            pool.making -= 1
            self._wake.set()

    async def _add(self, pool: _Pool) -> None:
        made = await self._inner.create(pool.spec)
        if not isinstance(made, StatefulSandbox):
            await made.stop()
            raise ConfigError(f"sandboxes of provider {self.name} cannot be kept in a pool")
        pool.ready.append(_Waiting(made, self._clock()))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)


async def _stop(sandbox: Sandbox) -> None:
    try:
        await sandbox.stop()
    except SandboxError as exc:
        log.warning("sandbox %s of a pool was not stopped: %s", sandbox.id, exc.message)
