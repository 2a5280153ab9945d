"""From the tasks and the ledger to what the scheduler has to do, the same for a first run and a
resumed one."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rock.errors import ConfigError, LedgerError
from rock.modelservice.client.shards import AdminShards
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import LoadedTask, digest_of, work_digest_of
from rock.rollout.records.ledger_lines import (
    AttemptEnded,
    EpisodeReopened,
    Event,
    GroupPlanned,
    TaskRegraded,
)
from rock.rollout.records.ledger_state import EpisodeState, GroupState
from rock.rollout.records.outcome import TABLE, Cause, OutcomeClass, Phase, outcome_of
from rock.rollout.records.record import Plan, Record, Usage, now
from rock.rollout.records.rundir import RunDir
from rock.rollout.records.trajectory import rescue
from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.plan import Ending, GroupPlan, SchedulePolicy
from rock.rollout.scheduler.pool import Curriculum

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of a run directory's work to do."""

    only: frozenset[str] | None = None
    """Task ids; None is all."""
    retry_infra: bool = False
    """Run episodes again that ended in an infrastructure failure, if the trainer has not taken them."""
    regrade: bool = False
    """Only grade finished episodes again; tasks and the run may have other graders than before."""

    def check(self, directory: Path, task_ids: Collection[str]) -> None:
        """A `ConfigError` for what makes no sense in `directory` with these tasks."""
        for task_id in sorted(self.only or ()):
            if task_id not in task_ids:
                near = difflib.get_close_matches(task_id, task_ids, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {len(task_ids)} others"
                raise ConfigError(f"only: the run has no task {task_id!r} ({hint})")
        if self.retry_infra and self.regrade:
            raise ConfigError("retry, regrade: expected one of them; grading again runs no agent")
        asked = "regrade" if self.regrade else "retry" if self.retry_infra else None
        if asked is not None and not (directory / "run.json").exists():
            raise ConfigError(
                f"{asked}: expected the directory of a run that has begun, by --resume RUN or --out RUN "
                f"(there is no run in {directory})"
            )


def policy_of(run: RunFile) -> SchedulePolicy:
    schedule = run.schedule
    return SchedulePolicy(
        concurrency=run.concurrency,
        extra_members=schedule.extra_members,
        groups_per_step=schedule.groups_per_step,
        extra_groups=schedule.extra_groups,
        max_staleness=schedule.max_staleness,
        buffer_groups=schedule.buffer_groups,
        partial=schedule.partial,
        min_valid=schedule.min_valid,
        max_refills=schedule.max_refills,
        starts_per_second=schedule.starts_per_second,
        start_burst=schedule.start_burst,
        queue_wait_seconds=schedule.queue_wait_seconds,
        task_concurrency=schedule.task_concurrency,
        tag_concurrency=schedule.tag_concurrency,
    )


class Planner:
    """Makes the ledger say what there is to do, and tells the scheduler."""

    def __init__(
        self,
        tasks: Mapping[str, LoadedTask],
        directory: RunDir,
        run: RunFile,
        chosen: Selection,
        admin: AdminShards,
    ) -> None:
        self._tasks = tasks
        self._directory = directory
        self._ledger = directory.ledger
        self._run = run
        self._chosen = chosen
        self._admin = admin

    async def plan(self) -> None:
        """Give every task its group, end what an earlier harness left, reopen what was asked for.

        Raises `LedgerError` naming the task when the tasks are not those the run was started with.
        """
        events = self._new_groups()
        await self._directory.begin()
        if events:
            await self._ledger.append(*events)
        await self._settle_interrupted()
        if self._chosen.retry_infra:
            await self._reopen_infra()
        if self._chosen.regrade:
            await self._take_graders()

    def _new_groups(self) -> list[GroupPlanned]:
        planned = self._ledger.state.groups
        events: list[GroupPlanned] = []
        for number, item in enumerate(self._tasks.values()):
            group_id = f"{self._directory.run_id}.{number:05d}"
            digest = digest_of(item)
            if group_id not in planned:
                events.append(
                    GroupPlanned(
                        group_id=group_id,
                        task_id=item.task_id,
                        size=self._run.episodes_per_task,
                        extra=self._run.schedule.extra_members,
                        task_digest=digest,
                        work_digest=work_digest_of(item),
                        at=now(),
                    )
                )
            elif (before := planned[group_id].plan).task_id != item.task_id:
                raise self._other_tasks(f"task {number} was {before.task_id}, now {item.task_id}")
            elif before.task_digest != digest and not (
                self._chosen.regrade and before.work_digest == work_digest_of(item)
            ):
                raise self._other_tasks(f"{item.task_id} has other contents now")
        if planned and len(planned) != len(self._tasks):
            raise self._other_tasks(f"there were {len(planned)}, now there are {len(self._tasks)}")
        return events

    async def _take_graders(self) -> None:
        """The tasks' graders are those of now."""
        events: list[Event] = []
        for group in self._ledger.state.groups.values():
            digest = digest_of(self._tasks[group.plan.task_id])
            if digest != group.plan.task_digest:
                events.append(
                    TaskRegraded(group_id=group.plan.group_id, task_digest=digest, at=now())
                )
        if events:
            await self._ledger.append(*events)

    def _other_tasks(self, what: str) -> LedgerError:
        return LedgerError(
            f"{self._directory.path}: tasks: the run was started with others: {what}"
        )

    async def _settle_interrupted(self) -> None:
        """Give attempts in which an earlier harness died their end; their folders stay."""
        for group, index in list(self._ledger.state.interrupted()):
            plan = plan_for(self._directory, group, index, group.episodes[index].attempts)
            record = self._record_of(plan)
            session_id = await rescue(self._admin, self._directory.attempt_folder(plan))
            if record is None:
                record = stopped_record(
                    plan, OutcomeClass.INTERRUPTED, "the harness died", session_id=session_id
                )
                await asyncio.to_thread(self._directory.write_record, record)
            episode = group.episodes[index]
            final = is_final(record, episode, self._run.infra.max_attempts)
            await self._ledger.append(ended_line(record, final=final))

    def _record_of(self, plan: Plan) -> Record | None:
        """What an attempt that did not end had come to; half of it is nothing."""
        try:
            return self._directory.read_record(plan)
        except LedgerError as exc:
            log.warning("%s; the attempt counts as interrupted", exc)
            return None

    async def _reopen_infra(self) -> None:
        events: list[Event] = [
            EpisodeReopened(group_id=group.plan.group_id, index=index, reason="retry", at=now())
            for group in self.selected()
            if not group.consumed
            for index, episode in enumerate(group.episodes)
            if infra_failed(episode)
        ]
        if events:
            await self._ledger.append(*events)

    def selected(self) -> list[GroupState]:
        only = self._chosen.only
        groups = self._ledger.state.groups.values()
        return [group for group in groups if only is None or group.plan.task_id in only]

    def scheduler(self, curriculum: Curriculum | None) -> Scheduler:
        """A scheduler that knows what the ledger knows."""
        scheduler = Scheduler(policy_of(self._run), curriculum=curriculum)
        selected = self.selected()
        groups = self._ledger.state.groups.values()
        for group in groups:
            if group.published:
                scheduler.add_published(
                    self._group_plan(group),
                    _endings(group, group.members),
                    consumed=group.consumed,
                )
        for group in selected:
            if not group.settled and (group.complete or not self._chosen.regrade):
                places = range(len(group.episodes))
                scheduler.add(
                    self._group_plan(group),
                    done=_endings(group, places),
                    not_needed=[
                        i for i in places if group.episodes[i].cls is OutcomeClass.REDUNDANT
                    ],
                )
        return scheduler

    def _group_plan(self, group: GroupState) -> GroupPlan:
        plan = group.plan
        task = self._tasks[plan.task_id].task
        return GroupPlan(
            group_id=plan.group_id,
            task_id=plan.task_id,
            size=plan.size,
            extra=plan.extra,
            tags=tuple(task.tags),
        )


def _endings(group: GroupState, indexes: Collection[int]) -> dict[int, Ending]:
    """How these episodes ended, those that are done, in the order in which they did."""
    done = [
        (group.episodes[index], index)
        for index in indexes
        if group.episodes[index].final_attempt is not None
        and group.episodes[index].cls is not OutcomeClass.REDUNDANT
    ]
    return {
        index: Ending(kind="valid" if episode.counts else "invalid", version=episode.version)
        for episode, index in sorted(done, key=lambda item: item[0].place)
    }


def infra_failed(episode: EpisodeState) -> bool:
    """Whether its last word is an infrastructure failure."""
    cls = episode.cls
    return episode.final_attempt is not None and cls is not None and TABLE[cls].cause is Cause.INFRA


def plan_for(directory: RunDir, group: GroupState, index: int, attempt: int) -> Plan:
    return Plan(
        run_id=directory.run_id,
        group_id=group.plan.group_id,
        task_id=group.plan.task_id,
        index=index,
        attempt=attempt,
    )


_NEVER_FINAL = frozenset({OutcomeClass.CANCELLED, OutcomeClass.INTERRUPTED, OutcomeClass.NO_ROOM})


def is_final(record: Record, episode: EpisodeState, max_attempts: int) -> bool:
    """Whether no further attempt follows one that ended by itself, or with the harness."""
    if record.outcome.cls in _NEVER_FINAL:
        return False
    return not record.outcome.retryable or episode.failures + 1 >= max_attempts


def ended_line(record: Record, *, final: bool) -> AttemptEnded:
    """The ledger's line about a saved record."""
    return AttemptEnded(
        group_id=record.group_id,
        index=record.index,
        attempt=record.attempt,
        cls=record.outcome.cls,
        final=final,
        reward=record.outcome.reward,
        version=record.version,
        at=now(),
    )


def stopped_record(
    plan: Plan, cls: OutcomeClass, detail: str, *, session_id: str | None = None
) -> Record:
    """The record of an attempt that never got to write one."""
    return Record(
        run_id=plan.run_id,
        group_id=plan.group_id,
        episode_id=plan.episode_id,
        task_id=plan.task_id,
        index=plan.index,
        attempt=plan.attempt,
        started_at="",
        ended_at=now(),
        seconds=0.0,
        phase_seconds={},
        outcome=outcome_of(cls, Phase.AGENT, detail=detail),
        usage=Usage(),
        session_id=session_id,
    )
