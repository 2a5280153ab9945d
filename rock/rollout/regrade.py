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

from rock.errors import (
    LedgerError,
    ModelServiceError,
    SandboxError,
    SandboxFileError,
    TaskError,
    first_error,
)
from rock.rollout.building import make_ready
from rock.rollout.episode.episode import Tools
from rock.rollout.episode.specs import SLACK_SECONDS, grade_seconds, sandbox_spec
from rock.rollout.episode.workspace import keep_output, kept_workspace
from rock.rollout.grading import Exam, SessionBench, Setting, lay_out
from rock.rollout.groups import final_record
from rock.rollout.inputs.networks import reach, reaches_of
from rock.rollout.inputs.task import LoadedTask, Task
from rock.rollout.records.evidence import class_of_error, describe
from rock.rollout.records.ledger_lines import EpisodeRegraded
from rock.rollout.records.ledger_state import GroupState
from rock.rollout.records.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.record import Record, now, seen
from rock.rollout.records.rundir import RunDir, plan_of
from rock.rollout.report.events import EpisodeGraded
from rock.sandbox.base import ExecResult, Sandbox

EMPTY_SECONDS = 30.0
_EMPTY = ["sh", "-c", "rm -rf -- ./* ./.[!.]* ./..?*"]


@dataclass(slots=True)
class Regraded:
    """How many episodes were graded again, how many grades changed, and how many could not be."""

    graded: int = 0
    changed: int = 0
    not_kept: int = 0
    failed: int = 0
    """The sandbox or the grader failed; the old grade stands."""


@dataclass(frozen=True, slots=True)
class _Again:
    """One episode's new grading: what is known of the attempt now, and the grade."""

    record: Record
    outcome: Outcome
    exam: Exam | None = None
    printed: ExecResult | None = None


class Regrader:
    """Grades the finished episodes of some groups again."""

    def __init__(self, tasks: Sequence[LoadedTask], directory: RunDir, tools: Tools) -> None:
        self._tasks = {item.task_id: item for item in tasks}
        self._directory = directory
        self._tools = tools
        self._room = asyncio.Semaphore(tools.run.concurrency)
        self.result = Regraded()

    async def run(self, groups: Sequence[GroupState]) -> Regraded:
        """Raises `LedgerError` when a record is gone or cannot be written."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in groups:
                    for index, episode in enumerate(group.episodes):
                        if episode.final_attempt is not None:
                            tasks.create_task(self._episode(group, index))
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
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
                again = await self._grade(record, tree)
            except (SandboxError, ModelServiceError, TaskError, TimeoutError, OSError) as exc:
                cls = class_of_error(Phase.PROVISION, exc)
                again = _Again(record, outcome_of(cls, Phase.GRADE, detail=str(exc)))
            await self._enter(group, again)

    async def _grade(self, record: Record, tree: Path) -> _Again:
        run = self._tools.run
        ready = await make_ready(self._tasks[record.task_id], self._tools.provider, run.build)
        loaded = ready.loaded
        task = loaded.task
        grader = task.grader or run.grader
        if grader is None:
            return _Again(record, outcome_of(OutcomeClass.TASK_INVALID, Phase.GRADE))
        seconds = grade_seconds(task, run)
        setting = self._setting(record, task)
        async with asyncio.timeout(run.limits.provision_seconds):
            sandbox = await self._tools.provider.create(setting.spec)
        async with sandbox, Exam(loaded, grader, setting) as exam:
            async with asyncio.timeout(run.limits.setup_seconds):
                await reach(sandbox, setting.reaches.agent)
                await lay_out(sandbox, loaded)
                await exam.prepare(sandbox)
                await _replace(sandbox, task.workdir, tree)
            control = run.limits.provision_seconds + run.limits.setup_seconds + seconds
            slack = SLACK_SECONDS + run.limits.setup_seconds
            async with asyncio.timeout(seconds + slack + control):
                result = await exam.grade(sandbox)
            record = msgspec.structs.replace(
                record, integrity=exam.integrity, parts=dict(result.parts)
            )
        if result.result is not None:
            record = msgspec.structs.replace(record, grader=seen(result.result))
        if result.reward is None:
            cls = result.cls or OutcomeClass.GRADER_BROKEN
            outcome = outcome_of(cls, Phase.GRADE, detail=result.detail)
        else:
            outcome = graded(result.reward, agent_class=record.agent_class, detail=result.detail)
        return _Again(record, outcome, exam, result.result)

    def _setting(self, record: Record, task: Task) -> Setting:
        run, plan = self._tools.run, plan_of(record)
        return Setting(
            provider=self._tools.provider,
            spec=sandbox_spec(plan, task, run, agent=False),
            bench=SessionBench(
                admin=self._tools.admin,
                backend=self._tools.backend,
                model_name=run.model_name,
                labels=plan.labels(),
            ),
            folder=self._directory.attempt_folder(plan),
            reaches=reaches_of(run, task),
            controls=self._tools.controls,
        )

    async def _enter(self, group: GroupState, found: _Again) -> None:
        record, outcome, before = found.record, found.outcome, found.record.outcome
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
        await asyncio.to_thread(self._keep, again, found)
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

    def _keep(self, record: Record, found: _Again) -> None:
        """The grading's files beside those of earlier ones; the record last, which makes it one."""
        folder, grading = self._directory.attempt_folder(plan_of(record)), record.grading
        try:
            if found.exam is not None:
                found.exam.keep_judging(grading)
            if found.printed is not None:
                keep_output(folder, "grader", found.printed, grading=grading)
        except OSError as exc:
            raise LedgerError(f"{folder}: the grading cannot be kept: {exc.strerror}") from exc
        self._directory.write_record(record)


async def _replace(sandbox: Sandbox, workdir: str, tree: Path) -> None:
    """`tree` in place of what is in the working directory. Raises `SandboxError`."""
    result = await sandbox.exec(_EMPTY, timeout_seconds=EMPTY_SECONDS, cwd=workdir)
    if not result.ok:
        raise SandboxFileError(f"{workdir}: it could not be emptied: {describe(result)}")
    await sandbox.upload(tree, workdir)
