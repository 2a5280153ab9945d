"""The trainer's side of calls that are being answered: spans as they come, leases that are over."""

from __future__ import annotations

import time
from functools import partial

from rock.errors import BadRequest
from rock.modelservice.engine import spans
from rock.modelservice.engine.engine import Engine
from rock.modelservice.service.batches import check_wait, tried
from rock.modelservice.wire.partial import (
    CancelledReply,
    CancelledRequest,
    Partial,
    PartialReply,
    PartialRequest,
)
from rock.types import LeaseId, WorkerId


class UnderwaySide:
    """The part of `ModelService` for workers that stream, and for stopping those that need not."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def partial(self, request: PartialRequest) -> PartialReply:
        """Keep spans of answers and show them to agents that stream; item by item, like `complete`.

        A span is on disk before an agent can see it and before this returns. Calls with several
        choices take none.
        """
        results = [
            tried(item.lease_id, partial(self._partial_one, item)) for item in request.partials
        ]
        await self._engine.journal.barrier()
        cancelled: list[LeaseId] = []
        if request.worker_id:
            cancelled, _ = self._engine.notices.after(WorkerId(request.worker_id), 0)
        return PartialReply(
            results=results, cancelled=[*cancelled], policy_state=self._engine.book.policy.state
        )

    def _partial_one(self, partial: Partial) -> None:
        call = self._engine.book.call_of_lease(partial.lease_id)
        held = self._engine.queue.held(LeaseId(partial.lease_id))
        if call.wanted != 1:
            raise BadRequest("a call with several choices takes no partials; complete it whole")
        version = partial.policy_version
        if version is None:
            version = held.policy_version
        record = spans.span_record(call.id, partial, version)
        said = call.said or spans.Said()
        if not said.has(record):
            self._engine.partial(call, said.with_call_ids(record))

    async def cancelled(self, request: CancelledRequest) -> CancelledReply:
        """Leases of a worker that ended without its doing, waiting up to `wait_seconds` for one."""
        check_wait(request.worker_id, request.wait_seconds)
        worker = WorkerId(request.worker_id)
        engine = self._engine
        found, cursor = engine.notices.after(worker, request.after)
        end = time.monotonic() + min(request.wait_seconds, engine.config.max_wait_seconds)
        while not found and (left := end - time.monotonic()) > 0:
            if not await self._told(worker, left) or engine.stopping:
                break
            found, cursor = engine.notices.after(worker, request.after)
        return CancelledReply(lease_ids=[*found], cursor=cursor)

    async def _told(self, worker: WorkerId, seconds: float) -> bool:
        bells = self._engine.notice_bells
        bell = bells[worker]
        try:
            return await bell.wait(seconds)
        finally:
            if not len(bell):  # worker names come and go
                bells.pop(worker, None)
