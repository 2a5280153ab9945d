"""Where a built-in worker claims and answers: the service itself, without HTTP between.

What HTTP would refuse is refused here, too: a policy in Python may put anything into a field, and what
the journal could not read again would keep the service from ever starting on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from rock.errors import BadRequest
from rock.modelservice import wire
from rock.modelservice.service.batches import tried
from rock.modelservice.service.service import ModelService
from rock.modelservice.wire.partial import (
    CancelledReply,
    CancelledRequest,
    Partial,
    PartialReply,
    PartialRequest,
)
from rock.secrets import redact_text

T = TypeVar("T", wire.Completion, Partial)
_packed = msgspec.msgpack.Encoder()
_completion = msgspec.msgpack.Decoder(wire.Completion)
_partial = msgspec.msgpack.Decoder(Partial)


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
        good, refused = _told_apart(completions, _completion)
        reply = await self._service.complete(wire.CompleteRequest(completions=good))
        return [*reply.results, *refused]

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply:
        good, refused = _told_apart(partials, _partial)
        reply = await self._service.partial(PartialRequest(partials=good, worker_id=worker_id))
        return msgspec.structs.replace(reply, results=[*reply.results, *refused])

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


def _told_apart(
    items: Sequence[T], decoder: msgspec.msgpack.Decoder[T]
) -> tuple[list[T], list[wire.ItemResult]]:
    """The items whose fields hold what they should, and what is wrong with the others."""
    good: list[T] = []

    def take(item: T) -> None:
        try:
            good.append(decoder.decode(_packed.encode(item)))
        except UnicodeEncodeError as exc:
            raise BadRequest(f"it is not valid Unicode: {exc}") from exc
        except OverflowError as exc:
            raise BadRequest("it has a number of more than 64 bits") from exc
        except (msgspec.ValidationError, TypeError) as exc:
            raise BadRequest(f"{exc}") from exc

    results = [tried(item.lease_id, lambda item=item: take(item)) for item in items]
    return good, [result for result in results if result.error is not None]
