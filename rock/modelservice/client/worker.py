"""The worker loop: claim calls, ask a policy, complete them. A trainer in one call.

    async def policy(leases: list[Lease]) -> list[Completion]: ...
    await serve(policy, url=url, key=key, concurrency=64)

Promises: a lease is renewed for as long as its policy call runs; what the policy raises fails its
calls with the message; a lease that was lost meanwhile (expired, cancelled, its agent gone) is
dropped, and the policy call is cancelled once all its leases are, within milliseconds where the
service says so (`cancelled`); on stop or cancellation what is held goes back to the queue. A policy
that streams is served by `serve_streaming`. The built-in policies run in the service through this
same loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, TypeVar

from rock.errors import LeaseLost, RockError, UpstreamUnauthorized, WorkAborted
from rock.modelservice.client.shards import TrainerShards
from rock.modelservice.client.speaking import StreamingPolicy, one_by_one
from rock.modelservice.telemetry.logs import about
from rock.modelservice.wire import ClaimReply, Completion, Failure, ItemResult, Lease
from rock.modelservice.wire.partial import CancelledReply, Partial, PartialReply

log = logging.getLogger(__name__)
T = TypeVar("T")

Policy: TypeAlias = Callable[[list[Lease]], Awaitable[list[Completion]]]
"""Answers leases: one Completion per lease, in any order. Raising fails all of them; `WorkAborted`
gives them back instead, for another try by whoever claims them next."""
SyncPolicy: TypeAlias = Callable[[list[Lease]], list[Completion]]

WAIT_SECONDS = 20.0
"""One long poll."""
LET_GO_SECONDS = 5.0
"""How long a stopping worker tries to give its leases back."""
RETRY_SECONDS = 1.0
"""Between two tries of a watch that failed."""
CANNOT_CONTINUE = "cannot_continue"
"""The code for a lease whose answer must begin with a prefix that this policy cannot go on from."""
EARLY_NOTICES = 1024
OVER = frozenset({"lease_lost", "not_found"})
"""Item errors that mean somebody else has the call, or nobody wants it any more."""


class Desk(Protocol):
    """Where calls are claimed and answered: a `TrainerClient`, or the service itself."""

    async def claim(
        self, worker_id: str, *, max_leases: int, lease_seconds: float, wait_seconds: float
    ) -> ClaimReply: ...

    async def complete(self, completions: Sequence[Completion]) -> list[ItemResult]: ...

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply: ...

    async def cancelled(
        self, worker_id: str, *, after: int, wait_seconds: float
    ) -> CancelledReply: ...

    async def renew(
        self, lease_ids: Sequence[str], *, lease_seconds: float
    ) -> list[ItemResult]: ...

    async def release(self, lease_ids: Sequence[str]) -> list[ItemResult]: ...

    async def fail(self, failures: Sequence[Failure]) -> list[ItemResult]: ...


async def serve(
    policy: Policy,
    *,
    url: str | Sequence[str],
    key: str,
    concurrency: int = 64,
    batch: int = 1,
    worker_id: str | None = None,
    lease_seconds: float = 60.0,
    stop: asyncio.Event | None = None,
    give_up_seconds: float = 300.0,
    continues: bool = False,
) -> None:
    """Answer calls until `stop` is set or the caller is cancelled.

    `concurrency` is how many leases are held at once, `batch` how many of them one policy call gets
    at most. A service that is gone for `give_up_seconds` raises ServiceUnavailable. Leases with a
    `prefix` reach the policy only if it `continues` them; they are handed back or failed otherwise.
    """
    async with TrainerShards(url, key, retry_seconds=give_up_seconds) as desk:
        worker = Worker(
            policy,
            desk,
            worker_id=worker_id,
            concurrency=concurrency,
            batch=batch,
            lease_seconds=lease_seconds,
            continues=continues,
        )
        await worker.run(stop or asyncio.Event())


async def serve_streaming(
    policy: StreamingPolicy,
    *,
    url: str | Sequence[str],
    key: str,
    concurrency: int = 64,
    worker_id: str | None = None,
    lease_seconds: float = 60.0,
    stop: asyncio.Event | None = None,
    give_up_seconds: float = 300.0,
) -> None:
    """`serve` for a policy that says its answer span by span: one call of it per lease.

    It must begin with `lease.prefix`, if there is one, and return the whole answer at the end.
    """
    async with TrainerShards(url, key, retry_seconds=give_up_seconds) as desk:
        worker = Worker(
            one_by_one(policy, desk),
            desk,
            worker_id=worker_id,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            continues=True,
        )
        await worker.run(stop or asyncio.Event())


def serve_blocking(
    policy: SyncPolicy,
    *,
    url: str | Sequence[str],
    key: str,
    concurrency: int = 64,
    batch: int = 1,
    worker_id: str | None = None,
    lease_seconds: float = 60.0,
) -> None:
    """`serve` for a plain function, each call of it in a thread. SIGTERM and Ctrl-C end it cleanly."""

    async def in_thread(leases: list[Lease]) -> list[Completion]:
        return await asyncio.to_thread(policy, leases)

    async def main() -> None:
        stop = asyncio.Event()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(
            in_thread,
            url=url,
            key=key,
            concurrency=concurrency,
            batch=batch,
            worker_id=worker_id,
            lease_seconds=lease_seconds,
            stop=stop,
        )

    asyncio.run(main())


@dataclass(eq=False, slots=True)
class _Batch:
    """One policy call in progress."""

    leases: dict[str, Lease]
    """Those that are still ours, by id."""
    task: asyncio.Task[None] | None = None


class Worker:
    """The loop behind `serve`, on any desk."""

    def __init__(
        self,
        policy: Policy,
        desk: Desk,
        *,
        worker_id: str | None = None,
        concurrency: int = 64,
        batch: int = 1,
        lease_seconds: float = 60.0,
        continues: bool = False,
    ) -> None:
        if concurrency < 1 or batch < 1:
            raise ValueError(f"concurrency and batch must be at least 1: {concurrency}, {batch}")
        self.worker_id = worker_id or f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.refused: str | None = None
        """Says why, once the policy's model refused its key: no further call can succeed."""
        self._policy = policy
        self._desk = desk
        self._concurrency = concurrency
        self._batch = batch
        self._lease_seconds = lease_seconds
        self._continues = continues
        self._batches: set[_Batch] = set()
        self._early: deque[str] = deque(maxlen=EARLY_NOTICES)
        """Leases that were over before the claim that got them had been read."""
        self._room = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> None:
        renewal = asyncio.ensure_future(self._renew_held())
        watch = asyncio.ensure_future(self._watch_cancelled())
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._take(stopping)
        finally:
            for task in (renewal, watch, stopping):
                task.cancel()
            await self._let_go()

    async def _take(self, stopping: asyncio.Task[Literal[True]]) -> None:
        """Claim what there is room for and start on it; returns early when stopping."""
        free = self._concurrency - sum(len(batch.leases) for batch in self._batches)
        if free < 1:
            self._room.clear()
            await _first(self._room.wait(), stopping)
            return
        claim = self._desk.claim(
            self.worker_id,
            max_leases=free,
            lease_seconds=self._lease_seconds,
            wait_seconds=WAIT_SECONDS,
        )
        reply = await _first(claim, stopping)
        leases = [] if reply is None else await self._usable(reply.leases)
        for start in range(0, len(leases), self._batch):
            mine = leases[start : start + self._batch]
            batch = _Batch({lease.lease_id: lease for lease in mine})
            self._batches.add(batch)
            batch.task = asyncio.ensure_future(self._work(batch))

    async def _usable(self, leases: list[Lease]) -> list[Lease]:
        """The leases that the policy can answer and somebody still wants."""
        leases = [lease for lease in leases if lease.lease_id not in self._early]
        if self._continues or not any(lease.prefix for lease in leases):
            return leases
        failures = [
            Failure(
                lease_id=lease.lease_id,
                code=CANNOT_CONTINUE,
                message="the worker cannot go on from what another one has streamed",
            )
            for lease in leases
            if lease.prefix is not None
        ]
        try:
            await self._desk.fail(failures)
        except RockError as exc:
            log.warning("could not hand back %d leases: %s", len(failures), exc.message)
        return [lease for lease in leases if lease.prefix is None]

    async def _work(self, batch: _Batch) -> None:
        try:
            completions = await self._policy(list(batch.leases.values()))
            await self._complete(batch, completions)
        except LeaseLost as exc:
            log.info("a policy stopped: %s", exc.message)
        except WorkAborted as exc:
            await self._give_back(batch, exc)
        except Exception as exc:  # noqa: BLE001 - a policy may raise anything; its calls must end
            await self._fail(batch, exc)
        finally:
            self._batches.discard(batch)
            self._room.set()

    async def _give_back(self, batch: _Batch, exc: WorkAborted) -> None:
        log.info("a policy gave back %d leases: %s", len(batch.leases), exc.message)
        try:
            await self._desk.release(list(batch.leases))
        except RockError as again:  # they expire by themselves
            log.warning("could not give leases back: %s", again.message)

    async def _complete(self, batch: _Batch, completions: Sequence[Completion]) -> None:
        good = [item for item in completions if item.lease_id in batch.leases]
        results = await self._desk.complete(good) if good else []
        answered = {item.lease_id for item in good}
        wrong = [
            Failure(
                lease_id=item.lease_id, message=f"the completion was refused: {item.error.message}"
            )
            for item in results
            if item.error is not None and item.error.code not in OVER
        ]
        missing = [
            Failure(lease_id=lease_id, message="the policy returned no completion for this call")
            for lease_id in batch.leases
            if lease_id not in answered
        ]
        if wrong or missing:
            log.warning("%d of %d completions unusable", len(wrong + missing), len(batch.leases))
            await self._desk.fail(wrong + missing)

    async def _fail(self, batch: _Batch, exc: Exception) -> None:
        if isinstance(exc, UpstreamUnauthorized):
            self.refused = exc.message
        code = exc.code if isinstance(exc, RockError) else "call_failed"
        message = exc.message if isinstance(exc, RockError) else f"{type(exc).__name__}: {exc}"
        # A message may quote a file name or an output that is no Unicode; it must get there anyway.
        message = message.encode("utf-8", "backslashreplace").decode()
        # Not the message, which may quote a prompt; it is in the calls themselves.
        log.warning(
            "policy failed",
            extra=about(calls=len(batch.leases), code=code, error=type(exc).__name__),
            exc_info=exc if log.isEnabledFor(logging.DEBUG) else None,
        )
        failures = [
            Failure(lease_id=lease_id, code=code, message=message) for lease_id in batch.leases
        ]
        try:
            await self._desk.fail(failures)
        except RockError as again:
            # The leases expire by themselves; there is nobody left to tell.
            log.warning("could not report the failure: %s", again.message)

    async def _renew_held(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            owners = {lease_id: batch for batch in self._batches for lease_id in batch.leases}
            if not owners:
                continue
            try:
                results = await self._desk.renew(list(owners), lease_seconds=self._lease_seconds)
            except RockError as exc:
                log.warning("could not renew %d leases: %s", len(owners), exc.message)
                continue
            for result in results:
                if result.error is not None and result.error.code in OVER:
                    self._drop(owners[result.lease_id], result.lease_id)

    async def _watch_cancelled(self) -> None:
        """Stop work that nobody wants any more, as soon as the service says so."""
        cursor = 0
        while True:
            try:
                reply = await self._desk.cancelled(
                    self.worker_id, after=cursor, wait_seconds=WAIT_SECONDS
                )
            except RockError as exc:  # renewals say the same, later
                log.warning("cannot hear of cancelled leases: %s", exc.message)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            cursor = reply.cursor
            owners = {lease_id: batch for batch in self._batches for lease_id in batch.leases}
            for lease_id in reply.lease_ids:
                if lease_id in owners:
                    self._drop(owners[lease_id], lease_id)
                else:
                    self._early.append(lease_id)

    def _drop(self, batch: _Batch, lease_id: str) -> None:
        batch.leases.pop(lease_id, None)
        self._room.set()
        if not batch.leases and batch.task is not None:
            batch.task.cancel()

    async def _let_go(self) -> None:
        """Stop the policy calls and give their leases back, as far as that works at once."""
        held = [lease_id for batch in self._batches for lease_id in batch.leases]
        tasks = [batch.task for batch in self._batches if batch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if held:
            # Gone with its service, they expire instead.
            release = asyncio.ensure_future(self._desk.release(held))
            try:
                await asyncio.wait({release}, timeout=LET_GO_SECONDS)
            finally:
                release.cancel()
                await asyncio.gather(release, return_exceptions=True)


async def _first(work: Awaitable[T], stopping: asyncio.Task[Literal[True]]) -> T | None:
    """The result of `work`, or None, and `work` cancelled, if stopping comes first."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
