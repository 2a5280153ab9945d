"""The rollouts' side of the service: finished groups go to the trainer, until acknowledged."""

from __future__ import annotations

import time

import msgspec
from msgspec import Raw

from rock.modelservice import wire
from rock.modelservice.engine.engine import Engine
from rock.modelservice.engine.outbox import freshness_of
from rock.modelservice.journal import records
from rock.modelservice.service.batches import check_claim, check_positive, each
from rock.modelservice.sessions import Session
from rock.modelservice.states import State
from rock.modelservice.wire import groups as wire_groups
from rock.modelservice.wire.pulse import PulseReply, PulseRequest, SessionPulse


class RolloutSide:
    """The part of `ModelService` that carries groups from the harness to the trainer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish_group(self, group: wire_groups.Group) -> wire_groups.PublishReply:
        """Put a finished group up for the trainer; the first of an id and revision stands."""
        outbox = self._engine.outbox
        accepted = outbox.accepts(group.group_id, group.revision)
        if accepted:
            content = wire.encode(group)
            record = records.GroupPublished(group_id=group.group_id, group=Raw(content))
            outbox.publish(group.group_id, content, freshness_of(content))
            self._engine.note(record, lambda: self._offer(group.group_id, group.revision))
        await self._engine.journal.barrier()
        return wire_groups.PublishReply(accepted=accepted)

    def _offer(self, group_id: str, revision: int) -> None:
        self._engine.outbox.offer(group_id, revision)
        self._engine.group_bell.ring()

    async def claim_groups(
        self, request: wire_groups.RolloutClaimRequest
    ) -> wire_groups.RolloutClaimReply:
        """Lease published groups, waiting up to `wait_seconds` for the first."""
        check_claim(request.worker_id, request.lease_seconds, request.wait_seconds)
        check_positive("max_groups", request.max_groups)
        groups = self._claim_groups_now(request)
        end = time.monotonic() + min(request.wait_seconds, self._engine.config.max_wait_seconds)
        bell = self._engine.group_bell
        while not groups and (left := end - time.monotonic()) > 0:
            if not await bell.wait(left) or self._engine.stopping:
                break
            groups = self._claim_groups_now(request)
        if groups:
            await self._engine.journal.barrier()
        return wire_groups.RolloutClaimReply(groups=groups)

    def _claim_groups_now(
        self, request: wire_groups.RolloutClaimRequest
    ) -> list[wire_groups.ClaimedGroup]:
        seconds = min(request.lease_seconds, self._engine.config.max_lease_seconds)
        groups: list[wire_groups.ClaimedGroup] = []
        version = request.policy_version
        if version is None:
            version = self._engine.book.policy.version
        while len(groups) < request.max_groups:
            lease = self._engine.outbox.claim(
                now=self._engine.clock(), lease_seconds=seconds, version=version
            )
            if lease is None:
                break
            group = msgspec.json.decode(lease.group, type=wire_groups.Group)
            self._engine.note(
                records.GroupLeased(
                    group_id=group.group_id, lease_id=lease.lease_id, delivery=lease.delivery
                )
            )
            groups.append(wire_groups.ClaimedGroup(lease.lease_id, lease.delivery, group))
        return groups

    async def ack_groups(self, request: wire_groups.RolloutAckRequest) -> wire.BatchReply:
        """The trainer has consumed these groups; they are not handed out again."""
        outbox = self._engine.outbox

        def acknowledge_one(lease_id: str) -> None:
            group_id = outbox.holder(lease_id)
            if not outbox.acknowledged(group_id):
                record = records.GroupAcknowledged(
                    group_id=group_id, step=request.step, lease_id=lease_id
                )
                outbox.acknowledge(group_id, step=request.step)
                self._engine.note(record, lambda: outbox.settle(group_id))

        reply = each(request.lease_ids, acknowledge_one)
        await self._engine.journal.barrier()
        return reply

    def renew_groups(self, request: wire_groups.RolloutRenewRequest) -> wire.BatchReply:
        """Prolong leases on groups, for a training step that takes longer than one."""
        check_positive("lease_seconds", request.lease_seconds)
        seconds = min(request.lease_seconds, self._engine.config.max_lease_seconds)

        def renew_one(lease_id: str) -> None:
            self._engine.outbox.renew(lease_id, now=self._engine.clock(), lease_seconds=seconds)

        return each(request.lease_ids, renew_one)

    def release_groups(self, request: wire_groups.RolloutReleaseRequest) -> wire.BatchReply:
        """Give groups back unconsumed; they are handed out again, before all others."""

        def release_one(lease_id: str) -> None:
            self._engine.outbox.release(lease_id)
            self._engine.group_bell.ring()

        return each(request.lease_ids, release_one)

    def pulse_of(self, request: PulseRequest, policy: wire.PolicyStatus) -> PulseReply:
        """Signs of life of a harness's sessions, and what became of its groups."""
        sessions = self._engine.book.sessions
        now = self._engine.clock()
        self._engine.outbox.withdraw_stale(policy.version)
        return PulseReply(
            policy=policy,
            sessions=[
                _pulse_of(session, now)
                for name in request.session_ids
                if name in sessions and (session := sessions.get(name)).open
            ],
            groups=self._engine.outbox.statuses(request.group_ids),
        )

    def group_status(self, group_id: str) -> wire_groups.GroupStatus:
        """Raises `NotFound`."""
        return self._engine.outbox.status(group_id)


def _pulse_of(session: Session, now: float) -> SessionPulse:
    return SessionPulse(
        session_id=session.id,
        queued=session.counts[State.QUEUED],
        leased=session.counts[State.LEASED],
        last_call_age_seconds=None if session.last_call_at is None else now - session.last_call_at,
        first_sampled_version=session.first_sampled_version,
        completion_tokens=session.completion_tokens,
    )
