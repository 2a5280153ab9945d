"""Python clients of the control plane: `TrainerClient`, `AdminClient`, and their blocking twins.

    async with TrainerClient(url, key) as trainer:
        for lease in (await trainer.claim("worker-1", max_leases=8)).leases: ...

How a request is made, and what its failures are, is in `control`. Everything that is tried again is
safe to repeat, except that a session may be created twice; the unused one expires.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from urllib.parse import quote

from msgspec import structs
from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice import wire
from rock.modelservice.client.control import ControlClient
from rock.modelservice.graph import deltas
from rock.modelservice.graph.stored import StoredTrajectory, whole
from rock.modelservice.wire import groups as wire_groups
from rock.modelservice.wire.interceptors import (
    Interceptor,
    InterceptorList,
    InterceptorRemoved,
    InterceptorStatus,
)
from rock.modelservice.wire.partial import (
    CancelledReply,
    CancelledRequest,
    Partial,
    PartialReply,
    PartialRequest,
)
from rock.modelservice.wire.pulse import PulseReply, PulseRequest


class TrainerClient(ControlClient):
    """The trainer API: claim calls, answer them, tell the policy version; claim finished groups.

    Between the service and this client history travels once (`deltas`); the leases it returns are
    whole, and the completions it takes may be.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        retry_seconds: float = 30.0,
        memory_bytes: int = deltas.MAX_BYTES,
    ) -> None:
        super().__init__(url, key, retry_seconds=retry_seconds)
        self._memory = deltas.LeaseMemory(memory_bytes)

    async def claim(
        self,
        worker_id: str,
        *,
        max_leases: int = 1,
        lease_seconds: float = 60.0,
        wait_seconds: float = 20.0,
        policy_version: int | None = None,
        whole: bool = True,
    ) -> wire.ClaimReply:
        """Waits up to `wait_seconds` for the first call; no leases when none came.

        Without `whole`, leases are as the service sent them: what this worker has from the parent
        that it answered is left out (`omitted`). For engines that keep their conversations.
        """
        request = wire.ClaimRequest(
            worker_id=worker_id,
            max_leases=max_leases,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
            policy_version=policy_version,
            delta=True,
        )
        reply = await self._call(
            "POST", "/trainer/v1/claim", wire.ClaimReply, request, wait_seconds=wait_seconds
        )
        return replace(reply, leases=await self._restored(reply.leases)) if whole else reply

    async def leases(self, lease_ids: Sequence[str]) -> list[wire.Lease]:
        """These leases, whole; those that are over are missing."""
        body = wire.LeasesRequest(lease_ids=list(lease_ids))
        return (await self._call("POST", "/trainer/v1/leases", wire.LeasesReply, body)).leases

    async def _restored(self, leases: list[wire.Lease]) -> list[wire.Lease]:
        restored = {lease.lease_id: self._memory.restore(lease) for lease in leases}
        missing = [lease_id for lease_id, lease in restored.items() if lease is None]
        if missing:
            for lease in await self.leases(missing):
                restored[lease.lease_id] = self._memory.restore(lease)
        return [lease for lease in restored.values() if lease is not None]

    async def complete(self, completions: Sequence[wire.Completion]) -> list[wire.ItemResult]:
        """Answer leases; look at each item's `error` (late: `lease_lost`)."""
        short = [self._memory.shorten(item) for item in completions]
        results = await self._complete(short)
        # A service that lost the parent's ids, as no one expects, gets the whole.
        again = [
            number
            for number, result in enumerate(results)
            if short[number] is not completions[number]
            and result.error is not None
            and result.error.code == BadRequest.code
        ]
        if again:
            whole = await self._complete([completions[number] for number in again])
            for number, result in zip(again, whole, strict=True):
                results[number] = result
        for completion, result in zip(completions, results, strict=True):
            if result.error is None:
                self._memory.answered(completion, trainable=result.untrainable is None)
        return results

    async def _complete(self, completions: Sequence[wire.Completion]) -> list[wire.ItemResult]:
        body = wire.CompleteRequest(completions=list(completions))
        return (await self._call("POST", "/trainer/v1/complete", wire.BatchReply, body)).results

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply:
        """Send spans of answers while they are being sampled; agents that stream see them at once.

        Look at each item's `error`: `lease_lost` means that nobody wants the rest.
        """
        body = PartialRequest(partials=list(partials), worker_id=worker_id)
        return await self._call("POST", "/trainer/v1/partial", PartialReply, body)

    async def cancelled(
        self, worker_id: str, *, after: int = 0, wait_seconds: float = 20.0
    ) -> CancelledReply:
        """Leases of this worker that ended without its doing; waits for the first. Ask again with
        `after` set to the reply's `cursor`."""
        body = CancelledRequest(worker_id=worker_id, after=after, wait_seconds=wait_seconds)
        return await self._call(
            "POST", "/trainer/v1/cancelled", CancelledReply, body, wait_seconds=wait_seconds
        )

    async def renew(
        self, lease_ids: Sequence[str], *, lease_seconds: float = 60.0
    ) -> list[wire.ItemResult]:
        """Keep leases; an item with an error is over, and sampling for it can stop."""
        body = wire.RenewRequest(lease_ids=list(lease_ids), lease_seconds=lease_seconds)
        return (await self._call("POST", "/trainer/v1/renew", wire.BatchReply, body)).results

    async def release(self, lease_ids: Sequence[str]) -> list[wire.ItemResult]:
        """Give calls back unanswered, to the head of the queue."""
        body = wire.ReleaseRequest(lease_ids=list(lease_ids))
        return (await self._call("POST", "/trainer/v1/release", wire.BatchReply, body)).results

    async def fail(self, failures: Sequence[wire.Failure]) -> list[wire.ItemResult]:
        """End calls without an answer; the agent gets the error."""
        body = wire.FailRequest(failures=list(failures))
        return (await self._call("POST", "/trainer/v1/fail", wire.BatchReply, body)).results

    async def policy(
        self,
        *,
        version: int | None = None,
        state: wire.PolicyState | None = None,
        mode: wire.PauseMode = "hold",
    ) -> wire.PolicyStatus:
        body = wire.PolicyUpdate(version=version, state=state, mode=mode)
        return await self._call("POST", "/trainer/v1/policy", wire.PolicyStatus, body)

    async def stats(self) -> wire.Stats:
        return await self._call("GET", "/trainer/v1/stats", wire.Stats)

    async def claim_rollouts(
        self,
        worker_id: str,
        *,
        max_groups: int = 1,
        lease_seconds: float = 300.0,
        wait_seconds: float = 20.0,
        policy_version: int | None = None,
    ) -> list[wire_groups.ClaimedGroup]:
        """Finished groups of episodes, none too old for `policy_version` (null: the service's).

        Those not acknowledged in time are handed out again; `renew_rollouts` prolongs.
        """
        body = wire_groups.RolloutClaimRequest(
            worker_id=worker_id,
            max_groups=max_groups,
            lease_seconds=lease_seconds,
            wait_seconds=wait_seconds,
            policy_version=policy_version,
        )
        path = "/trainer/v1/rollouts/claim"
        reply = await self._call(
            "POST", path, wire_groups.RolloutClaimReply, body, wait_seconds=wait_seconds
        )
        return reply.groups

    async def ack_rollouts(
        self, lease_ids: Sequence[str], *, step: int | None = None
    ) -> list[wire.ItemResult]:
        """The groups are consumed, in training step `step`. An item with `lease_lost` was handed out
        again, or a later revision of it was published. Saying it twice is harmless."""
        body = wire_groups.RolloutAckRequest(lease_ids=list(lease_ids), step=step)
        path = "/trainer/v1/rollouts/ack"
        return (await self._call("POST", path, wire.BatchReply, body)).results

    async def renew_rollouts(
        self, lease_ids: Sequence[str], *, lease_seconds: float = 300.0
    ) -> list[wire.ItemResult]:
        """Keep groups for longer."""
        body = wire_groups.RolloutRenewRequest(
            lease_ids=list(lease_ids), lease_seconds=lease_seconds
        )
        path = "/trainer/v1/rollouts/renew"
        return (await self._call("POST", path, wire.BatchReply, body)).results

    async def release_rollouts(self, lease_ids: Sequence[str]) -> list[wire.ItemResult]:
        """Give groups back unconsumed; they are handed out again first."""
        body = wire_groups.RolloutReleaseRequest(lease_ids=list(lease_ids))
        path = "/trainer/v1/rollouts/release"
        return (await self._call("POST", path, wire.BatchReply, body)).results


class AdminClient(ControlClient):
    """The admin API, for harnesses: sessions, trajectories, groups."""

    async def create_session(self, spec: wire.SessionSpec | None = None) -> wire.SessionCreated:
        body = spec or wire.SessionSpec()
        _check_finite(body)
        return await self._call("POST", "/admin/v1/sessions", wire.SessionCreated, body)

    async def close_session(
        self, session_id: str, reason: wire.CloseReason = "finished"
    ) -> wire.SessionInfo:
        """Idempotent; what is still waiting in the session ends with `session_closed`."""
        path = f"/admin/v1/sessions/{_named(session_id)}/close"
        return await self._call("POST", path, wire.SessionInfo, wire.SessionClose(reason=reason))

    async def session(self, session_id: str) -> wire.SessionInfo:
        return await self._call("GET", f"/admin/v1/sessions/{_named(session_id)}", wire.SessionInfo)

    async def trajectory(self, session_id: str) -> wire.Trajectory:
        path = f"/admin/v1/sessions/{_named(session_id)}/trajectory"
        return whole(await self._call("GET", path, StoredTrajectory, wait_seconds=60.0))

    async def interceptors(self) -> InterceptorList:
        return await self._call("GET", "/admin/v1/interceptors", InterceptorList)

    async def set_interceptor(self, name: str, spec: Interceptor) -> InterceptorStatus:
        """Add one, or change the one of that name; it holds from the next request on."""
        path = f"/admin/v1/interceptors/{_named(name)}"
        return await self._call("PUT", path, InterceptorStatus, spec)

    async def remove_interceptor(self, name: str) -> InterceptorRemoved:
        path = f"/admin/v1/interceptors/{_named(name)}"
        return await self._call("DELETE", path, InterceptorRemoved)

    async def publish_group(self, group: wire_groups.Group) -> wire_groups.PublishReply:
        """Idempotent by `group_id` and `revision`."""
        return await self._call("POST", "/admin/v1/groups", wire_groups.PublishReply, group)

    async def group_status(self, group_id: str) -> wire_groups.GroupStatus:
        return await self._call(
            "GET", f"/admin/v1/groups/{_named(group_id)}", wire_groups.GroupStatus
        )

    async def pulse(self, session_ids: Sequence[str], group_ids: Sequence[str]) -> PulseReply:
        """Signs of life of these sessions, what became of these groups, and the policy."""
        body = PulseRequest(session_ids=list(session_ids), group_ids=list(group_ids))
        return await self._call("POST", "/admin/v1/pulse", PulseReply, body)

    async def health(self) -> wire.Health:
        return await self._call("GET", "/admin/v1/health", wire.Health)


def _named(id: str) -> str:
    """An id in a path. Raises `BadRequest`."""
    try:
        return quote(id, safe="")
    except UnicodeEncodeError as exc:
        raise BadRequest(f"id: text that is not valid Unicode: {exc.reason}") from exc
    except TypeError as exc:
        raise BadRequest(f"id: expected a string, got {type(id).__name__}") from exc


def _check_finite(spec: wire.SessionSpec) -> None:
    """JSON has no NaN and no infinity: they would arrive as null, which is no bound at all."""
    for name, values in (("limits", spec.limits), ("pins", spec.pins)):
        for field, value in structs.asdict(values).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise BadRequest(f"{name}.{field}: expected a finite number, got {value}")
