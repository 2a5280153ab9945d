"""Complete groups go to the trainer: assembled from the run directory, published, acknowledged.

Publishing is idempotent by group id, so it is simply done again when in doubt: after a crash
between publishing and the ledger's line, or when the service has forgotten a group.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from rock.errors import LedgerError, NotFound
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.wire import TokenRow
from rock.modelservice.wire import groups as wire_groups
from rock.rollout.events import GroupAcknowledged, GroupDone, OnEvent
from rock.rollout.ledger import GroupConsumed, GroupPublished, GroupState
from rock.rollout.outcome import outcome_json
from rock.rollout.record import Plan, Record, now
from rock.rollout.rundir import RunDir, plan_of
from rock.rollout.trajectory import read_rows

WATCH_SECONDS = 2.0
LAST_WATCH_SECONDS = 0.2


class Publisher:
    """Publishes the groups of one run and records what the trainer has consumed."""

    def __init__(
        self,
        directory: RunDir,
        admin: AdminShards,
        on_event: OnEvent,
        *,
        train_chains: Collection[str],
    ) -> None:
        """`train_chains`: the classes of chains whose rows the trainer gets."""
        self._directory = directory
        self._train_chains = train_chains
        self._admin = admin
        self._on_event = on_event
        self._begun: set[str] = set()

    async def publish_if_complete(self, group: GroupState) -> None:
        """Put a complete group up for the trainer, once; the ledger says so on return.

        Episodes that end at the same moment may all find their group complete; the first one does it.
        """
        group_id = group.plan.group_id
        if group.complete and not group.published and group_id not in self._begun:
            self._begun.add(group_id)
            await self._publish(group)

    async def _publish(self, group: GroupState) -> None:
        assembled = await self._assembled(group)
        await self._admin.publish_group(assembled)
        await self._directory.ledger.append(GroupPublished(group_id=group.plan.group_id, at=now()))
        rewards = tuple(episode.reward for episode in assembled.episodes)
        self._on_event(
            GroupDone(group_id=group.plan.group_id, task_id=group.plan.task_id, rewards=rewards)
        )

    async def _assembled(self, group: GroupState) -> wire_groups.Group:
        return await asyncio.to_thread(assemble, self._directory, group, self._train_chains)

    async def watch(self) -> None:
        """Record acknowledgements as they come. Runs until cancelled."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self.check()

    async def wait(self, timeout_seconds: float) -> None:
        """Record acknowledgements until no group is left without one, but not for longer."""
        waiting = await self.check()
        try:
            async with asyncio.timeout(timeout_seconds):
                while waiting:
                    await asyncio.sleep(LAST_WATCH_SECONDS)
                    waiting = await self.check()
        except TimeoutError:
            return

    async def check(self) -> int:
        """Ask once about each published group; how many are still not acknowledged."""
        waiting = 0
        for group in list(self._directory.ledger.state.groups.values()):
            if not group.published or group.consumed:
                continue
            group_id = group.plan.group_id
            try:
                status = await self._admin.group_status(group_id)
            except NotFound:
                await self._admin.publish_group(await self._assembled(group))
                waiting += 1
                continue
            if status.state == "acknowledged":
                await self._directory.ledger.append(GroupConsumed(group_id=group_id, at=now()))
                self._on_event(GroupAcknowledged(group_id=group_id))
            else:
                waiting += 1
        return waiting


def assemble(
    directory: RunDir, group: GroupState, train_chains: Collection[str]
) -> wire_groups.Group:
    """The group from its episodes' records and trajectories. Rows come only with what counts."""
    plan = group.plan
    return wire_groups.Group(
        group_id=plan.group_id,
        run_id=directory.run_id,
        task_id=plan.task_id,
        size=plan.size,
        episodes=[
            _episode(directory, final_record(directory, group, index), train_chains)
            for index in range(plan.size)
        ],
    )


def final_record(directory: RunDir, group: GroupState, index: int) -> Record:
    """The record that the ledger calls final. Raises `LedgerError` if it is not there."""
    attempt = group.episodes[index].final_attempt
    plan = Plan(
        run_id=directory.run_id,
        group_id=group.plan.group_id,
        task_id=group.plan.task_id,
        index=index,
        attempt=attempt or 0,
    )
    record = directory.read_record(plan) if attempt is not None else None
    if record is None:
        raise LedgerError(
            f"{directory.attempt_folder(plan)}: the record of a finished episode is gone"
        )
    return record


def _episode(
    directory: RunDir, record: Record, train_chains: Collection[str]
) -> wire_groups.GroupEpisode:
    outcome = record.outcome
    rows: list[TokenRow] = []
    left_out = Counter[str]()
    if outcome.in_loss:
        for row in read_rows(directory.attempt_folder(plan_of(record))):
            if row.chain_class in train_chains:
                rows.append(row)
            else:
                left_out[f"chain class {row.chain_class}"] += 1
    return wire_groups.GroupEpisode(
        episode_id=record.episode_id,
        index=record.index,
        session_id=record.session_id,
        outcome=outcome_json(outcome),
        reward=outcome.reward,
        rows=rows,
        left_out=dict(left_out),
    )
