"""The rollouts' side of the service: finished groups go to the trainer, until acknowledged."""

from __future__ import annotations

import time

import msgspec
from msgspec import Raw

from rock.modelservice import wire
from rock.modelservice.engine.engine import Engine
from rock.modelservice.journal import records
from rock.modelservice.service.batches import check_claim, check_positive, each
from rock.modelservice.wire import groups as wire_groups


class RolloutSide:
    """The part of `ModelService` that carries groups from the harness to the trainer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish_group(self, group: wire_groups.Group) -> wire_groups.PublishReply:
        """Put a finished group up for the trainer; the first group of an id stands."""
        outbox = self._engine.outbox
        accepted = group.group_id not in outbox
        if accepted:
            content = wire.encode(group)
            record = records.GroupPublished(group_id=group.group_id, group=Raw(content))
            outbox.publish(group.group_id, content)
            self._engine.note(record, lambda: self._offer(group.group_id))
        await self._engine.journal.barrier()
        return wire_groups.PublishReply(accepted=accepted)

    def _offer(self, group_id: str) -> None:
        self._engine.outbox.offer(group_id)
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
        return wire_groups.RolloutClaimReply(groups=groups)

    def _claim_groups_now(
        self, request: wire_groups.RolloutClaimRequest
    ) -> list[wire_groups.ClaimedGroup]:
        seconds = min(request.lease_seconds, self._engine.config.max_lease_seconds)
        groups: list[wire_groups.ClaimedGroup] = []
        while len(groups) < request.max_groups:
            lease = self._engine.outbox.claim(now=self._engine.clock(), lease_seconds=seconds)
            if lease is None:
                break
            group = msgspec.json.decode(lease.group, type=wire_groups.Group)
            groups.append(wire_groups.ClaimedGroup(lease.lease_id, lease.delivery, group))
        return groups

    async def ack_groups(self, request: wire_groups.RolloutAckRequest) -> wire.BatchReply:
        """The trainer has consumed these groups; they are not handed out again."""
        outbox = self._engine.outbox

        def acknowledge_one(lease_id: str) -> None:
            group_id = outbox.holder(lease_id)
            if not outbox.acknowledged(group_id):
                self._engine.note(records.GroupAcknowledged(group_id=group_id))
                outbox.acknowledge(group_id)

        reply = each(request.lease_ids, acknowledge_one)
        await self._engine.journal.barrier()
        return reply

    def group_status(self, group_id: str) -> wire_groups.GroupStatus:
        """Raises `NotFound`."""
        return self._engine.outbox.status(group_id)
