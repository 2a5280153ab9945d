"""Many episodes: what is left to do is run with bounded concurrency until every one has an outcome.

The ledger says what is left, so a first run and a resumed one are the same thing. An attempt that
ended in an infrastructure failure is followed by another, after a growing wait, up to the bound in
the run file. A failure of one episode never touches another; the run gives up early only when it
cannot succeed any more (too many infrastructure failures) or when going on is useless (the hosted
model refuses the key).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import tenacity

from rock.errors import LedgerError
from rock.rollout.episode import Tools, run_attempt
from rock.rollout.events import AttemptDone
from rock.rollout.groups import Publisher
from rock.rollout.ledger import AttemptEnded, AttemptStarted, EpisodeState, GroupPlanned, GroupState
from rock.rollout.outcome import TABLE, Cause, OutcomeClass, Phase, outcome_of
from rock.rollout.record import Plan, Record, Usage, now
from rock.rollout.rundir import RunDir
from rock.rollout.task import LoadedTask, digest_of

MAX_BACKOFF_SECONDS = 60.0


class GaveUp(Exception):
    """The run cannot succeed any more; the message says why."""


class Runner:
    """One run over an open run directory."""

    def __init__(self, tasks: Sequence[LoadedTask], directory: RunDir, tools: Tools) -> None:
        self._tasks = {item.task_id: item for item in tasks}
        self._directory = directory
        self._ledger = directory.ledger
        self._tools = tools
        self._run = tools.run
        self._publisher = Publisher(
            directory, tools.admin, tools.on_event, train_chains=tools.run.train_chains
        )
        self._infra_failed = 0

    async def plan(self) -> None:
        """Give every task its group, the same as before when the run is resumed.

        Raises `LedgerError` naming the task when the tasks are not those the run was started with.
        """
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
                        task_digest=digest,
                        at=now(),
                    )
                )
            elif (before := planned[group_id].plan).task_id != item.task_id:
                raise self._other_tasks(f"task {number} was {before.task_id}, now {item.task_id}")
            elif before.task_digest != digest:
                raise self._other_tasks(f"{item.task_id} has other contents now")
        if planned and len(planned) != len(self._tasks):
            raise self._other_tasks(f"there were {len(planned)}, now there are {len(self._tasks)}")
        await self._directory.begin()
        if events:
            await self._ledger.append(*events)
        await self._settle_interrupted()

    def _other_tasks(self, what: str) -> LedgerError:
        return LedgerError(
            f"{self._directory.path}: tasks: the run was started with others: {what}"
        )

    async def _settle_interrupted(self) -> None:
        """Give attempts in which an earlier harness died their end; their folders stay."""
        for group, index in list(self._ledger.state.interrupted()):
            plan = self._plan_of(group, index, group.episodes[index].attempts)
            record = self._directory.read_record(plan)
            if record is None:
                record = _interrupted(plan)
                await asyncio.to_thread(self._directory.write_record, record)
            await self._enter(group, record)

    async def run(self) -> str | None:
        """Run what is left; None, or why the run gave up. Groups are published as they complete."""
        waiting: deque[tuple[GroupState, int]] = deque()
        failure: str | None = None
        try:
            for group in self._ledger.state.groups.values():
                await self._publisher.publish_if_complete(group)
                for index, episode in enumerate(group.episodes):
                    if episode.final_attempt is None:
                        waiting.append((group, index))
                    else:
                        self._count_infra(episode)
            watcher = asyncio.ensure_future(self._publisher.watch())
            try:
                await self._work(waiting)
            finally:
                watcher.cancel()
                await asyncio.gather(watcher, return_exceptions=True)
        except GaveUp as exc:
            failure = str(exc)
        await self._publisher.wait(self._run.consume_timeout_seconds)
        return failure

    async def _work(self, waiting: deque[tuple[GroupState, int]]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self._run.concurrency, len(waiting))):
                    tasks.create_task(self._worker(waiting))
        except BaseExceptionGroup as errors:
            # The workers' first own error; the rest only followed from it.
            first = errors.exceptions[0]
            raise first from None

    async def _worker(self, waiting: deque[tuple[GroupState, int]]) -> None:
        while waiting:
            group, index = waiting.popleft()
            await self._episode(group, index)
            await self._publisher.publish_if_complete(group)
            self._count_infra(group.episodes[index])

    async def _episode(self, group: GroupState, index: int) -> None:
        """Attempts until one is final."""
        infra = self._run.infra
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda final: final is False),
            wait=tenacity.wait_exponential(
                multiplier=infra.backoff_seconds, max=MAX_BACKOFF_SECONDS
            )
            + tenacity.wait_random(0, infra.backoff_seconds / 2),
            stop=tenacity.stop_after_attempt(infra.max_attempts),
        )
        await retrying(self._attempt, group, index)

    async def _attempt(self, group: GroupState, index: int) -> bool:
        """One attempt; whether the episode is done with it."""
        plan = self._plan_of(group, index, group.episodes[index].attempts + 1)
        await self._ledger.append(
            AttemptStarted(group_id=plan.group_id, index=plan.index, attempt=plan.attempt, at=now())
        )
        folder = self._directory.attempt_folder(plan)
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)

        async def save(record: Record) -> None:
            await asyncio.to_thread(self._directory.write_record, record)
            await self._enter(group, record)

        record = await run_attempt(
            plan, self._tasks[plan.task_id], self._tools, folder=folder, save=save
        )
        if record.outcome.cls is OutcomeClass.MODEL_UNAUTHORIZED:
            raise GaveUp(f"the model refuses the key: {record.outcome.detail}")
        return group.episodes[index].final_attempt is not None

    async def _enter(self, group: GroupState, record: Record) -> None:
        """Put a saved record's end into the ledger."""
        final = self._is_final(record, group.episodes[record.index])
        await self._ledger.append(
            AttemptEnded(
                group_id=record.group_id,
                index=record.index,
                attempt=record.attempt,
                cls=record.outcome.cls,
                final=final,
                reward=record.outcome.reward,
                at=now(),
            )
        )
        self._tools.on_event(AttemptDone(record=record, final=final))

    def _is_final(self, record: Record, episode: EpisodeState) -> bool:
        if record.outcome.cls in (OutcomeClass.CANCELLED, OutcomeClass.INTERRUPTED):
            return False
        return not record.outcome.retryable or episode.failures + 1 >= self._run.infra.max_attempts

    def _count_infra(self, episode: EpisodeState) -> None:
        """Give up as soon as more episodes have failed than the run file allows."""
        if episode.cls is None or TABLE[episode.cls].cause is not Cause.INFRA:
            return
        self._infra_failed += 1
        total = len(self._tasks) * self._run.episodes_per_task
        allowed = self._run.infra.max_failed_fraction
        if self._infra_failed > allowed * total:
            raise GaveUp(
                f"{self._infra_failed} of {total} episodes ended in an infrastructure failure "
                f"(allowed: {allowed:.0%}); the last one: {episode.cls}"
            )

    def _plan_of(self, group: GroupState, index: int, attempt: int) -> Plan:
        return Plan(
            run_id=self._directory.run_id,
            group_id=group.plan.group_id,
            task_id=group.plan.task_id,
            index=index,
            attempt=attempt,
        )


def _interrupted(plan: Plan) -> Record:
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
        outcome=outcome_of(OutcomeClass.INTERRUPTED, Phase.AGENT, detail="the harness died"),
        usage=Usage(),
    )
