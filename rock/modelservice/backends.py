"""Workers inside the service: the same loop on the same queue, for sessions that name them.

A backend is a policy under a name; a session whose `backend` is that name gets its answers from it.
There is no second path: a built-in policy claims and completes like any trainer, and its answers
are journalled like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import cast

from rock.errors import ConfigError
from rock.modelservice import wire
from rock.modelservice.client.worker import Policy, Worker
from rock.modelservice.service.service import ModelService
from rock.modelservice.wire.partial import (
    CancelledReply,
    CancelledRequest,
    Partial,
    PartialReply,
    PartialRequest,
)

LEASE_SECONDS = 60.0


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
        return (await self._service.fail(wire.FailRequest(failures=list(failures)))).results


@asynccontextmanager
async def running(
    service: ModelService, policies: Mapping[str, Policy]
) -> AsyncGenerator[dict[str, Worker], None]:
    """Run one worker per policy for as long as the block; the workers by backend name.

    A policy that is an async context manager is entered first and left last.
    """
    workers = {
        name: Worker(
            policy,
            ServiceDesk(service, name),
            worker_id=f"backend:{name}",
            concurrency=service.config.backend_concurrency,
            lease_seconds=LEASE_SECONDS,
        )
        for name, policy in policies.items()
    }
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        for policy in policies.values():
            if isinstance(policy, AbstractAsyncContextManager):
                await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", policy))
        tasks = [asyncio.ensure_future(worker.run(stop)) for worker in workers.values()]
        try:
            yield workers
        finally:
            stop.set()
            await asyncio.gather(*tasks, return_exceptions=True)


def policy_for(name: str, *, api_base: str | None = None) -> Policy:
    """The policy a backend name stands for, such as `litellm:gpt-5` or `openai:my-model`.

    Raises ConfigError for a name that stands for none, or whose extra is not installed.
    """
    kind, _, model = name.partition(":")
    if kind == "litellm" and model:
        from rock.modelservice.policies.litellm import LitellmPolicy

        return LitellmPolicy(model, api_base=api_base)
    if kind == "openai" and model:
        from rock.modelservice.policies.openai import OpenAIPolicy

        return OpenAIPolicy(model, base_url=api_base)
    raise ConfigError(
        f"backend {name!r}: expected litellm:<model> or openai:<model> (`queue` is always there)"
    )
