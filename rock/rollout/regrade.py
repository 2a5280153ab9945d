"""Grade finished episodes again, from the working directories that they kept; no agent runs.

For a grader that was wrong. What the agent left outside its working directory is not there, and no
process of its: a grader that needs either cannot be used so. An episode whose grade changes goes
out again with its group, unless the trainer has taken that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rock.errors import SandboxError
from rock.rollout.episode import SLACK_SECONDS, Tools
from rock.rollout.events import EpisodeGraded
from rock.rollout.evidence import class_of_error
from rock.rollout.grading import grade
from rock.rollout.groups import final_record
from rock.rollout.ledger import EpisodeRegraded, GroupState
from rock.rollout.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.record import Record, now, seen
from rock.rollout.rundir import RunDir, plan_of
from rock.rollout.task import LoadedTask
from rock.rollout.workspace import kept_workspace
from rock.sandbox.base import SandboxSpec


@dataclass(slots=True)
class Regraded:
    """How many episodes were graded again, how many grades changed, and how many could not be."""

    graded: int = 0
    changed: int = 0
    not_kept: int = 0
    failed: int = 0
    """The sandbox or the grader failed; the old grade stands."""


class Regrader:
    """Grades the finished episodes of some groups again."""

    def __init__(self, tasks: Sequence[LoadedTask], directory: RunDir, tools: Tools) -> None:
        self._tasks = {item.task_id: item for item in tasks}
        self._directory = directory
        self._tools = tools
        self._room = asyncio.Semaphore(tools.run.concurrency)
        self.result = Regraded()

    async def run(self, groups: Sequence[GroupState]) -> Regraded:
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                for index, episode in enumerate(group.episodes):
                    if episode.final_attempt is not None:
                        tasks.create_task(self._episode(group, index))
        return self.result

    async def _episode(self, group: GroupState, index: int) -> None:
        async with self._room:
            record = await asyncio.to_thread(final_record, self._directory, group, index)
            if not record.graded:
                return
            tree = kept_workspace(self._directory.attempt_folder(plan_of(record)))
            if tree is None:
                self.result.not_kept += 1
                return
            try:
                outcome, record = await self._grade(record, tree)
            except (SandboxError, TimeoutError, OSError) as exc:
                outcome = outcome_of(
                    class_of_error(Phase.PROVISION, exc), Phase.GRADE, detail=str(exc)
                )
            await self._enter(group, record, outcome)

    async def _grade(self, record: Record, tree: Path) -> tuple[Outcome, Record]:
        loaded = self._tasks[record.task_id]
        task, run = loaded.task, self._tools.run
        grader = task.grader or run.grader
        if grader is None:
            return outcome_of(OutcomeClass.TASK_INVALID, Phase.GRADE), record
        timeout = task.timeouts.grade_seconds or grader.timeout_seconds
        spec = SandboxSpec(
            image=task.image or run.image,
            mounts=run.mounts(),
            workdir=task.workdir,
            limits=run.sandbox_limits(),
            labels=plan_of(record).labels(),
            lifetime_seconds=timeout + run.limits.setup_seconds + 300.0,
        )
        async with asyncio.timeout(run.limits.provision_seconds):
            sandbox = await self._tools.provider.create(spec)
        async with sandbox:
            async with asyncio.timeout(run.limits.setup_seconds):
                await sandbox.upload(tree, task.workdir)
            async with asyncio.timeout(timeout + SLACK_SECONDS + run.limits.setup_seconds):
                result = await grade(
                    sandbox,
                    grader,
                    workdir=task.workdir,
                    folder=loaded.folder,
                    timeout_seconds=timeout,
                )
        if result.result is not None:
            record = msgspec.structs.replace(record, grader=seen(result.result))
        if result.reward is None:
            cls = result.cls or OutcomeClass.GRADER_BROKEN
            return outcome_of(cls, Phase.GRADE, detail=result.detail), record
        return graded(result.reward, agent_class=record.agent_class, detail=result.detail), record

    async def _enter(self, group: GroupState, record: Record, outcome: Outcome) -> None:
        before = record.outcome
        if not (outcome.in_denominator or outcome.cause == "task"):
            self.result.failed += 1
            return
        self.result.graded += 1
        self._tools.on_event(EpisodeGraded(record=record, outcome=outcome))
        if (before.cls, before.reward) == (outcome.cls, outcome.reward):
            return
        self.result.changed += 1
        again = msgspec.structs.replace(
            record, outcome=outcome, grading=record.grading + 1, ended_at=now()
        )
        await asyncio.to_thread(self._directory.write_record, again)
        await self._directory.ledger.append(
            EpisodeRegraded(
                group_id=group.plan.group_id,
                index=record.index,
                grading=again.grading,
                cls=outcome.cls,
                reward=outcome.reward,
                at=now(),
            )
        )
