"""Many episodes: does what the scheduler decides, and tells it what happened.

    ledger → scheduler → decisions → attempts, cancellations, publications → ledger → scheduler

The ledger says what is left, so a first run and a resumed one are the same thing. A failure of one
episode never touches another; the run gives up early only when it cannot succeed any more (too many
infrastructure failures, a trainer that takes nothing) or when going on is useless (the hosted model
refuses the key).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import tenacity

from rock.errors import RunFailed, first_error
from rock.rollout.episode.episode import Save, Tools, run_attempt
from rock.rollout.episode.progress import Handle
from rock.rollout.groups import Publisher
from rock.rollout.heartbeat import Heartbeat
from rock.rollout.inputs.sections import InfraConfig
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.planning import (
    Planner,
    Selection,
    ended_line,
    infra_failed,
    is_final,
    plan_for,
    stopped_record,
)
from rock.rollout.records.ledger_lines import AttemptStarted, EpisodeReopened, GroupDropped
from rock.rollout.records.ledger_state import GroupState
from rock.rollout.records.outcome import RUN_AGAIN, TABLE, OutcomeClass
from rock.rollout.records.record import Plan, Record, now
from rock.rollout.records.rundir import RunDir
from rock.rollout.report.events import AttemptDone, GroupLeftOut, TrainerAwaited
from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.curriculum import curriculum
from rock.rollout.scheduler.plan import Cancel, Decision, Ending, Reopen, Settled, Start
from rock.rollout.scheduler.pool import Curriculum
from rock.rollout.scheduler.room import RoomWatch

MAX_BACKOFF_SECONDS = 60.0
LONGEST_WAIT_SECONDS = 5.0
"""The loop looks around this often at least, however little happens."""
STOPPED = {
    "redundant": "enough members of its group had ended",
    "redundant_group": "the step had its groups; it comes again in a later one",
    "stale": "the policy moved on further than the staleness bound",
    "dropped": "its group was dropped",
}


@dataclass(slots=True)
class _Running:
    """One attempt that runs. `ending` is set once its end is in the ledger."""

    task: asyncio.Task[None]
    handle: Handle
    final_when_stopped: bool = False
    ending: Ending | None = None


class Runner:
    """One run over an open run directory."""

    def __init__(
        self,
        tasks: Sequence[LoadedTask],
        directory: RunDir,
        tools: Tools,
        *,
        chosen: Selection | None = None,
        order: Curriculum | None = None,
    ) -> None:
        """`order` overrides the run file's curriculum."""
        self._tasks = {item.task_id: item for item in tasks}
        self._directory = directory
        self._ledger = directory.ledger
        self._tools = tools
        self._run = tools.run
        self._order = order or curriculum(tools.run.schedule.curriculum)
        self._planner = Planner(
            self._tasks, directory, tools.run, chosen or Selection(), tools.admin
        )
        self._publisher = Publisher(
            directory,
            tools.admin,
            tools.on_event,
            train_chains=tools.run.train_chains,
            max_staleness=tools.run.schedule.max_staleness,
        )
        self._running: dict[tuple[str, int], _Running] = {}
        self._publishing: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._failure: RunFailed | None = None
        self._room = RoomWatch(tools.run.infra.no_room_seconds)

    async def plan(self) -> None:
        """Give every task its group, the same as before when the run is resumed. Raises `LedgerError`."""
        await self._planner.plan()

    @property
    def planned(self) -> list[GroupState]:
        """The groups that this run is about."""
        return self._planner.selected()

    async def run(self) -> str | None:
        """Run what is left; None, or why the run gave up. Groups go out as they are settled."""
        scheduler = self._planner.scheduler(self._order)
        heart = Heartbeat(
            self._directory.ledger, self._tools, self._publisher, scheduler, self._wake.set
        )
        try:
            self._count_infra()
            async with asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(heart.beat(self._handles))
                await self._drive(scheduler, heart, tasks)
                beating.cancel()
        except BaseExceptionGroup as errors:
            failure = first_error(errors)
            if not isinstance(failure, RunFailed):
                raise failure from None
            return await self._gave_up(heart, failure)
        except RunFailed as failure:
            return await self._gave_up(heart, failure)
        finally:
            self._tools.setups.forget_all()
        return None

    async def _gave_up(self, heart: Heartbeat, failure: RunFailed) -> str:
        await heart.wait_for_trainer(self._run.consume_timeout_seconds)
        return failure.message

    def _handles(self) -> dict[tuple[str, int], Handle]:
        return {key: running.handle for key, running in self._running.items()}

    # --- the loop ---

    async def _drive(
        self, scheduler: Scheduler, heart: Heartbeat, tasks: asyncio.TaskGroup
    ) -> None:
        clock = self._tools.clock
        idle_since: float | None = None
        done_since: float | None = None
        while True:
            self._wake.clear()
            for decision in scheduler.decide(clock()):
                await self._do(decision, scheduler, tasks)
            if self._failure is not None:
                await self._last_groups(scheduler, tasks)
                raise self._failure
            done_since = self._done_since(done_since, scheduler, heart)
            if done_since is not None and (
                not heart.waiting or clock() - done_since >= self._run.consume_timeout_seconds
            ):
                return
            idle_since = (idle_since or clock()) if scheduler.held_by_trainer else None
            self._check_idle(idle_since)
            await self._sleep(scheduler.next_time(clock()))

    def _done_since(
        self, before: float | None, scheduler: Scheduler, heart: Heartbeat
    ) -> float | None:
        """Since when only the trainer is waited for; said as that begins."""
        if not scheduler.finished or self._publishing:
            return None
        patience = self._run.consume_timeout_seconds
        if before is None and patience > 0 and (groups := len(heart.waiting)):
            self._tools.on_event(TrainerAwaited(groups=groups, seconds=patience))
        return before or self._tools.clock()

    async def _last_groups(self, scheduler: Scheduler, tasks: asyncio.TaskGroup) -> None:
        """The run gives up; what is settled by now still goes out."""
        ended = [running.task for running in self._running.values() if running.ending is not None]
        if ended:
            await asyncio.wait(ended)
        for decision in scheduler.decide(self._tools.clock()):
            if isinstance(decision, Settled):
                await self._do(decision, scheduler, tasks)
        if self._publishing:
            await asyncio.wait(self._publishing)

    def _check_idle(self, since: float | None) -> None:
        bound = self._run.schedule.idle_seconds
        if since is not None and self._tools.clock() - since > bound:
            raise RunFailed(
                f"the trainer has taken no group for {bound:g} s, and no more may be made ahead of "
                "it; the run can be resumed"
            )

    async def _sleep(self, moment: float | None) -> None:
        seconds = LONGEST_WAIT_SECONDS
        if moment is not None:
            seconds = min(seconds, max(0.0, moment - self._tools.clock()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _do(self, decision: Decision, scheduler: Scheduler, tasks: asyncio.TaskGroup) -> None:
        match decision:
            case Start():
                self._start(decision, scheduler, tasks)
            case Cancel():
                self._cancel(decision)
            case Reopen():
                await self._ledger.append(
                    EpisodeReopened(
                        group_id=decision.group_id,
                        index=decision.index,
                        reason=decision.reason,
                        at=now(),
                    )
                )
                self._count_infra()
            case Settled():
                task = tasks.create_task(self._settle(decision, scheduler))
                self._publishing.add(task)
                task.add_done_callback(self._settled)

    # --- attempts ---

    def _start(self, start: Start, scheduler: Scheduler, tasks: asyncio.TaskGroup) -> None:
        key = (start.group_id, start.index)
        handle = Handle()
        task = tasks.create_task(self._attempt(self._ledger.state.groups[start.group_id], start))
        self._running[key] = _Running(task, handle)

        def over(_task: asyncio.Task[None]) -> None:
            running = self._running.pop(key)
            # One that was stopped before its first step has no end in the ledger, and no beginning.
            ending = running.ending or Ending(kind="again")
            scheduler.ended(start.group_id, start.index, ending, self._tools.clock())
            self._wake.set()

        task.add_done_callback(over)

    def _cancel(self, cancel: Cancel) -> None:
        running = self._running.get((cancel.group_id, cancel.index))
        if running is None:
            return
        running.handle.stop_class = (
            OutcomeClass.STALE if cancel.reason == "stale" else OutcomeClass.REDUNDANT
        )
        running.handle.stop_detail = STOPPED[cancel.reason]
        running.final_when_stopped = cancel.reason in ("redundant", "dropped")
        running.task.cancel()

    async def _attempt(self, group: GroupState, start: Start) -> None:
        """One attempt, from its line in the ledger to the other."""
        running = self._running[start.group_id, start.index]
        episode = group.episodes[start.index]
        plan = plan_for(self._directory, group, start.index, episode.attempts + 1)

        async def save(record: Record) -> None:
            await asyncio.to_thread(self._directory.write_record, record)
            await self._enter(group, record, running)

        try:
            await asyncio.to_thread(self._directory.set_aside, plan)
            await self._ledger.append(
                AttemptStarted(
                    group_id=plan.group_id, index=plan.index, attempt=plan.attempt, at=now()
                )
            )
            await self._run_attempt(plan, running, save)
        except asyncio.CancelledError:
            if running.handle.stop_class is OutcomeClass.CANCELLED:
                raise  # the run ends
            if episode.running:
                stop = running.handle
                await save(stopped_record(plan, stop.stop_class, stop.stop_detail))

    async def _run_attempt(self, plan: Plan, running: _Running, save: Save) -> None:
        folder = await asyncio.to_thread(self._directory.make_folder, plan)
        await run_attempt(
            plan,
            self._tasks[plan.task_id],
            self._tools,
            folder=folder,
            save=save,
            handle=running.handle,
        )

    async def _enter(self, group: GroupState, record: Record, running: _Running) -> None:
        """Put a saved record's end into the ledger."""
        episode = group.episodes[record.index]
        cls = record.outcome.cls
        final = is_final(record, episode, self._run.infra.max_attempts)
        if cls is OutcomeClass.REDUNDANT:
            final = running.final_when_stopped
        await self._ledger.append(ended_line(record, final=final))
        if record.sandbox_id is not None:
            self._room.given()
        if final:
            self._tools.setups.forget(record.episode_id)
        if cls is OutcomeClass.NO_ROOM:
            running.ending = self._no_room(record)
        else:
            running.ending = self._ending(record, final=final, failures=episode.failures)
        self._tools.on_event(AttemptDone(record=record, final=final))
        if cls is OutcomeClass.MODEL_UNAUTHORIZED:
            self._failure = RunFailed(f"the model refuses the key: {record.outcome.detail}")
        elif infra_failed(episode):
            self._count_infra()

    def _ending(self, record: Record, *, final: bool, failures: int) -> Ending:
        if final:
            kind = "valid" if TABLE[record.outcome.cls].counted else "invalid"
            return Ending(kind=kind, version=record.version)
        if record.outcome.cls in RUN_AGAIN or record.outcome.cls is OutcomeClass.STALE:
            return Ending(kind="again")
        return Ending(kind="again", after_seconds=backoff_seconds(self._run.infra, failures))

    def _no_room(self, record: Record) -> Ending:
        """The attempt is made again, with fewer beside it."""
        others = len(self._running) - 1
        if self._room.refused(others=others, now=self._tools.clock()):
            self._failure = RunFailed(
                f"the machine had no room for one sandbox in {self._run.infra.no_room_seconds:g} s "
                f"(infra.no_room_seconds); the run can be resumed: {record.outcome.detail}"
            )
        pause = backoff_seconds(self._run.infra, self._room.refusals)
        return Ending(kind="again", after_seconds=pause, no_room=True)

    def _count_infra(self) -> None:
        """Give up as soon as more episodes have failed than the run file allows."""
        groups = self._planner.selected()
        episodes = [episode for group in groups for episode in group.episodes]
        failed = [episode for episode in episodes if infra_failed(episode)]
        total = sum(group.plan.size for group in groups)
        allowed = self._run.infra.max_failed_fraction
        if len(failed) > allowed * total:
            self._failure = RunFailed(
                f"{len(failed)} of {total} episodes ended in an infrastructure failure "
                f"(allowed: {allowed:.0%}); the last one: {failed[-1].cls}"
            )
            self._wake.set()

    # --- groups ---

    async def _settle(self, settled: Settled, scheduler: Scheduler) -> None:
        group = self._ledger.state.groups[settled.group_id]
        if settled.publish:
            rewards = await self._publisher.publish(group, settled.chosen)
            scheduler.learn(settled.group_id, rewards)
            return
        await self._ledger.append(
            GroupDropped(group_id=settled.group_id, reason=settled.reason, at=now())
        )
        self._tools.on_event(
            GroupLeftOut(
                group_id=settled.group_id, task_id=group.plan.task_id, reason=settled.reason
            )
        )

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._publishing.discard(task)
        self._wake.set()


def backoff_seconds(infra: InfraConfig, failures: int) -> float:
    """How long to wait after the `failures`-th failed attempt of an episode."""
    wait = tenacity.wait_exponential(multiplier=infra.backoff_seconds, max=MAX_BACKOFF_SECONDS)
    jitter = tenacity.wait_random(0, infra.backoff_seconds / 2)
    state = tenacity.RetryCallState(tenacity.AsyncRetrying(), fn=None, args=(), kwargs={})
    state.attempt_number = max(1, failures)
    return float((wait + jitter)(state))
