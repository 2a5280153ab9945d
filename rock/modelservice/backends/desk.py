"""Where a built-in worker claims and answers: the service itself, without HTTP between."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rock.modelservice import wire
from rock.modelservice.service.service import ModelService
from rock.modelservice.wire.partial import (
    CancelledReply,
    CancelledRequest,
    Partial,
    PartialReply,
    PartialRequest,
)
from rock.secrets import redact_text


class ServiceDesk:
    """The service as a desk for one backend's worker."""

    def __init__(self, service: ModelService, backend: str) -> None:
        self._service = service
        self._backend = backend

    async def claim(
        self, worker_id: str, *, max_leases: int, lease_seconds: float, wait_seconds: float
    ) -> wire.ClaimReply:
        request = wire.ClaimRequest(
            worker_id=worker_id,
            max_leases=max_leases,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
        )
        return await self._service.claim(request, backend=self._backend)

    async def complete(self, completions: Sequence[wire.Completion]) -> list[wire.ItemResult]:
        request = wire.CompleteRequest(completions=list(completions))
        return (await self._service.complete(request)).results

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply:
        return await self._service.partial(
            PartialRequest(partials=[*partials], worker_id=worker_id)
        )

    async def cancelled(self, worker_id: str, *, after: int, wait_seconds: float) -> CancelledReply:
        request = CancelledRequest(worker_id=worker_id, after=after, wait_seconds=wait_seconds)
        return await self._service.cancelled(request)

    async def renew(
        self, lease_ids: Sequence[str], *, lease_seconds: float
    ) -> list[wire.ItemResult]:
        request = wire.RenewRequest(lease_ids=list(lease_ids), lease_seconds=lease_seconds)
        return self._service.renew(request).results

    async def release(self, lease_ids: Sequence[str]) -> list[wire.ItemResult]:
        return self._service.release(wire.ReleaseRequest(lease_ids=list(lease_ids))).results

    async def fail(self, failures: Sequence[wire.Failure]) -> list[wire.ItemResult]:
        # A hosted model's refusal may quote the key that it was given.
        told = [
            msgspec.structs.replace(failure, message=redact_text(failure.message))
            for failure in failures
        ]
        return (await self._service.fail(wire.FailRequest(failures=told))).results
