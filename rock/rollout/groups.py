"""Settled groups go to the trainer: assembled from the run directory, and published.

Publishing is idempotent by group id and revision, so it is simply done again when in doubt: after a
crash between publishing and the ledger's line, or when the service has forgotten a group. A group
that was opened again goes out under the next revision.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

from rock.errors import LedgerError
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.wire import TokenRow
from rock.modelservice.wire import groups as wire_groups
from rock.rollout.records.ledger_lines import GroupPublished
from rock.rollout.records.ledger_state import GroupState
from rock.rollout.records.outcome import outcome_json
from rock.rollout.records.record import Plan, Record, now
from rock.rollout.records.rundir import GONE, RunDir, plan_of
from rock.rollout.records.trajectory import read_rows
from rock.rollout.report.events import GroupDone, OnEvent


class Publisher:
    """Publishes the groups of one run."""

    def __init__(
        self,
        directory: RunDir,
        admin: AdminShards,
        on_event: OnEvent,
        *,
        train_chains: Collection[str],
        max_staleness: int | None = None,
    ) -> None:
        """`train_chains`: the classes of chains whose rows the trainer gets."""
        self._directory = directory
        self._train_chains = train_chains
        self._max_staleness = max_staleness
        self._admin = admin
        self._on_event = on_event

    async def publish(self, group: GroupState, chosen: tuple[int, ...]) -> list[float]:
        """Put a settled group up for the trainer; the ledger says so on return. The rewards in it."""
        revision = group.revision + 1
        assembled = await self._assembled(group, chosen, revision)
        await self._admin.publish_group(assembled)
        group_id, task_id = group.plan.group_id, group.plan.task_id
        await self._directory.ledger.append(
            GroupPublished(group_id=group_id, revision=revision, chosen=chosen, at=now())
        )
        rewards = tuple(episode.reward for episode in assembled.episodes)
        self._on_event(GroupDone(group_id=group_id, task_id=task_id, rewards=rewards))
        return [reward for reward in rewards if reward is not None]

    async def publish_again(self, group: GroupState) -> None:
        """The service does not know a group that was published: it is as it was."""
        await self._admin.publish_group(await self._assembled(group, group.members, group.revision))

    async def _assembled(
        self, group: GroupState, chosen: tuple[int, ...], revision: int
    ) -> wire_groups.Group:
        return await asyncio.to_thread(
            assemble,
            self._directory,
            group,
            self._train_chains,
            chosen=chosen,
            revision=revision,
            max_staleness=self._max_staleness,
        )


def assemble(
    directory: RunDir,
    group: GroupState,
    train_chains: Collection[str],
    *,
    chosen: tuple[int, ...],
    revision: int = 0,
    max_staleness: int | None = None,
) -> wire_groups.Group:
    """The group from its episodes' records and trajectories. Rows come only with what counts."""
    plan = group.plan
    records = [final_record(directory, group, index) for index in chosen]
    versions = [record.version for record in records if record.outcome.in_loss]
    return wire_groups.Group(
        group_id=plan.group_id,
        run_id=directory.run_id,
        task_id=plan.task_id,
        size=plan.size,
        episodes=[_episode(directory, record, train_chains) for record in records],
        revision=revision,
        oldest_version=min((v for v in versions if v is not None), default=None),
        max_staleness=max_staleness,
    )


def final_record(directory: RunDir, group: GroupState, index: int) -> Record:
    """The record that the ledger calls final. Raises `LedgerError` if it is not there."""
    episode = group.episodes[index]
    plan = Plan(
        run_id=directory.run_id,
        group_id=group.plan.group_id,
        task_id=group.plan.task_id,
        index=index,
        attempt=episode.final_attempt or 0,
    )
    record = None
    if episode.final_attempt is not None:
        record = directory.read_record(plan, grading=episode.grading)
    if record is None:
        raise LedgerError(f"{directory.attempt_folder(plan)}: {GONE}")
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
