"""One attempt of an episode, from an empty sandbox to a durable record.

    provision → setup → agent → export → grade → teardown

The only catcher of failures: whatever happens, cancellation included, the attempt ends with exactly
one outcome, its record is saved, and everything it started is stopped first. Each phase has its own
deadline, so an attempt as a whole has one too.

The session is revoked as soon as the agent has ended, before anything is graded: what is still
waiting in it ends then, and nothing can be added to the trajectory later.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rock.errors import BuildFailed, ModelServiceError, SandboxError
from rock.modelservice import wire
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.planes.attach import Attachment
from rock.rollout.building import make_ready
from rock.rollout.episode.agent import (
    AgentEnd,
    Place,
    Watch,
    act,
    agent_values,
    open_listener,
    watched,
)
from rock.rollout.episode.phases import Phases
from rock.rollout.episode.progress import Handle, Watchdog
from rock.rollout.episode.setups import KeptSetups
from rock.rollout.episode.specs import SLACK_SECONDS, grade_seconds, sandbox_spec, session_spec
from rock.rollout.episode.workspace import keep_output, keep_workspace
from rock.rollout.grading import Controls, Exam, Integrity, SessionBench, Setting, lay_out
from rock.rollout.inputs.networks import reach, reaches_of
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.records.evidence import class_of_error, judge_agent
from rock.rollout.records.outcome import TABLE, Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.record import CommandSeen, Plan, Record, Usage, now, seen
from rock.rollout.records.trajectory import Exported, export, note_session
from rock.rollout.report.events import OnEvent, PhaseEntered
from rock.sandbox.base import Origin, Provider, Sandbox
from rock.sandbox.ending import to_the_end
from rock.secrets import keeping, redact_text
from rock.types import Clock

log = logging.getLogger(__name__)

CLEANUP_SECONDS = 5.0

Save = Callable[[Record], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every attempt of a run shares."""

    run: RunFile
    provider: Provider
    admin: AdminShards
    attach_path: Path
    backend: str
    on_event: OnEvent
    clock: Clock = time.monotonic
    setups: KeptSetups = field(default_factory=KeptSetups)
    controls: Controls = field(default_factory=Controls)


@dataclass(slots=True)
class _Seen:
    """What an attempt has learned so far; the record is made from it."""

    session_id: str | None = None
    sandbox_id: str | None = None
    sandbox_origin: Origin | None = None
    agent: CommandSeen | None = None
    grader: CommandSeen | None = None
    integrity: Integrity | None = None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    usage: Usage = field(default_factory=Usage)
    untrainable: dict[str, int] = field(default_factory=dict[str, int])
    version: int | None = None
    agent_class: OutcomeClass | None = None
    graded: bool = False
    workspace: str | None = None

    def exported(self, kept: Exported) -> None:
        self.usage, self.untrainable, self.version = kept.usage, kept.untrainable, kept.version


async def run_attempt(
    plan: Plan,
    loaded: LoadedTask,
    tools: Tools,
    *,
    folder: Path,
    save: Save,
    handle: Handle | None = None,
) -> Record:
    """Run one attempt; its record has been given to `save` on return, and on cancellation too.

    Cancelled, it has the class that `handle` names then. Never raises for what went wrong in the
    attempt. Raises what `save` raises.
    """
    handle = handle or Handle()
    attempt = _Attempt(plan, loaded, tools, folder, handle)
    started_at, started = now(), tools.clock()
    cancelled: asyncio.CancelledError | None = None
    try:
        outcome = await attempt.run()
    except asyncio.CancelledError as exc:
        cancelled = exc
        outcome = outcome_of(handle.stop_class, attempt.phases.phase, detail=handle.stop_detail)
    except Exception as exc:  # noqa: BLE001 - the one place where failures become outcomes
        outcome = attempt.outcome_of_error(exc)
    record = attempt.record(outcome, started_at, tools.clock() - started)
    await to_the_end(_awaited(save(record)))
    if cancelled is not None:
        raise cancelled
    return record


async def _awaited(work: Awaitable[None]) -> None:
    await work


class _Attempt:
    def __init__(
        self, plan: Plan, loaded: LoadedTask, tools: Tools, folder: Path, handle: Handle
    ) -> None:
        self.plan = plan
        self.loaded = loaded
        self.task = loaded.task
        self.tools = tools
        self.limits = tools.run.limits
        self.folder = folder
        self.handle = handle
        self.reaches = reaches_of(tools.run, self.task)
        self.seen = _Seen()
        self.phases = Phases(
            tools.clock,
            whole_seconds=self.limits.episode_seconds,
            on_enter=lambda phase: tools.on_event(PhaseEntered(plan=plan, phase=phase)),
        )

    async def run(self) -> Outcome:
        grader = self.task.grader or self.tools.run.grader
        if grader is None:
            return outcome_of(OutcomeClass.TASK_INVALID, Phase.GRADE, detail="it has no grader")
        async with AsyncExitStack() as stack:
            sandbox = await self._provision(stack)
            exam = Exam(self.loaded, grader, self._setting())
            await stack.enter_async_context(exam)
            await self._prepare(exam, sandbox)
            end, info = await self._agent(sandbox)
            async with self.phases.enter(Phase.EXPORT, self.limits.export_seconds):
                exported = await export(self.tools.admin, info, self.folder)
                self.seen.exported(exported)
            agent = self.tools.run.agent
            verdict = judge_agent(
                end.result,
                exported.session,
                requires_model=agent.requires_model and agent.solution is None,
                stuck=end.stuck,
            )
            self.seen.agent_class = verdict.cls
            if verdict.cls is not None and not TABLE[verdict.cls].gradable:
                return outcome_of(verdict.cls, Phase.AGENT, detail=verdict.detail)
            await self._keep(sandbox)
            return await self._grade(exam, sandbox, verdict.cls, verdict.detail)

    async def _provision(self, stack: AsyncExitStack) -> Sandbox:
        build = self.task.build
        seconds = self.limits.provision_seconds + (build.timeout_seconds if build else 0.0)
        async with self.phases.enter(Phase.PROVISION, seconds):
            await self._make_ready()
            sandbox = await self.tools.setups.create(
                self.tools.provider,
                sandbox_spec(self.plan, self.task, self.tools.run),
                self.plan.episode_id,
            )
        stack.push_async_callback(self._teardown, sandbox)
        self.seen.sandbox_id = sandbox.id
        self.seen.sandbox_origin = sandbox.origin
        return sandbox

    async def _make_ready(self) -> None:
        """Settle the task's image and files. What the build of an image said is `build.log`."""
        log: str | None = None
        try:
            ready = await make_ready(self.loaded, self.tools.provider, self.tools.run.build)
            self.loaded, log = ready.loaded, ready.log
            self.task = self.loaded.task
        except BuildFailed as exc:
            log = exc.log
            raise
        finally:
            if log is not None:
                await asyncio.to_thread(self._keep_log, log)

    def _keep_log(self, log: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "build.log").write_text(redact_text(log))

    async def _prepare(self, exam: Exam, sandbox: Sandbox) -> None:
        """The task's initial state, what is kept from the agent, and the agent's own files."""
        seconds = self.task.timeouts.setup_seconds or self.limits.setup_seconds
        async with self.phases.enter(Phase.SETUP, seconds):
            await reach(sandbox, self.reaches.agent)
            if self.seen.sandbox_origin != "snapshot":
                await lay_out(sandbox, self.loaded)
                if (self.task.retry_from or self.tools.run.infra.retry_from) == "setup":
                    await self.tools.setups.keep(self.plan.episode_id, sandbox)
            await exam.prepare(sandbox)
            for target, host in self.tools.run.agent.files.items():
                await sandbox.upload(host, target)

    async def _agent(self, sandbox: Sandbox) -> tuple[AgentEnd, wire.SessionInfo]:
        """Run the agent in a session of its own; how both ended."""
        run = self.tools.run
        timeout = self.task.timeouts.agent_seconds or run.agent.timeout_seconds
        async with self.phases.enter(Phase.SETUP, self.limits.setup_seconds):
            spec = session_spec(self.plan, run, backend=self.tools.backend, agent_seconds=timeout)
            session = await self.tools.admin.create_session(spec)
            self.seen.session_id = self.handle.session_id = session.session_id
        try:
            await asyncio.to_thread(note_session, self.folder, session.session_id)
            async with AsyncExitStack() as stack:
                stack.enter_context(keeping(session.key))
                listener = await self._attach(stack, sandbox, session)
                values = agent_values(self.task, model_name=run.model_name, listener=listener)
                async with self.phases.enter(
                    Phase.AGENT, timeout, slack_seconds=SLACK_SECONDS
                ) as seconds:
                    place = Place(
                        sandbox=sandbox,
                        values=values,
                        base_url=session.base_url,
                        api_key=session.key,
                    )
                    working = act(place, run.agent, self.loaded, timeout_seconds=seconds)
                    end = await watched(working, sandbox, self._watch())
            await asyncio.to_thread(keep_output, self.folder, "agent", end.result)
            self.seen.agent = seen(end.result)
            async with self.phases.enter(Phase.EXPORT, self.limits.export_seconds):
                info = await self.tools.admin.close_session(session.session_id)
            return end, info
        except BaseException:
            await to_the_end(self._revoke(session.session_id))
            raise
        finally:
            self.handle.session_id = None

    def _watch(self) -> Watch:
        limit, clock = self.tools.run.agent.no_progress_seconds, self.tools.clock
        watchdog = None if limit is None else Watchdog(limit, clock())
        return Watch(handle=self.handle, watchdog=watchdog, clock=clock)

    async def _keep(self, sandbox: Sandbox) -> None:
        most = self.tools.run.keep_workspace_bytes
        if not most:
            return
        limit = self.limits.export_seconds
        try:
            async with self.phases.enter(Phase.EXPORT, limit):
                why_not = await keep_workspace(
                    sandbox, self.task.workdir, self.folder, max_bytes=most
                )
        except TimeoutError:  # what it left is the agent's choice, and no fault of the machine
            why_not = f"it could not be fetched within {limit:g} s"
        self.seen.workspace = why_not or "kept"

    async def _attach(
        self, stack: AsyncExitStack, sandbox: Sandbox, session: wire.SessionCreated
    ) -> socket.socket:
        async with self.phases.enter(Phase.SETUP, self.limits.setup_seconds):
            listener = stack.enter_context(await open_listener(sandbox))
            path = session.attach_path or self.tools.attach_path
            await stack.enter_async_context(Attachment(Path(path), listener, session.session_id))
        return listener

    async def _revoke(self, session_id: str) -> None:
        """Close the session of an attempt that failed and keep what it has of a trajectory.

        If the service does not answer, the session's deadline ends it.
        """
        admin = self.tools.admin
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                info = await admin.close_session(session_id, reason="revoked")
                kept = await export(admin, info, self.folder)
                self.seen.exported(kept)
        except (ModelServiceError, TimeoutError, OSError) as exc:
            reason = str(exc) or type(exc).__name__
            log.warning("session %s was not closed and kept: %s", session_id, reason)

    async def _grade(
        self, exam: Exam, sandbox: Sandbox, agent_class: OutcomeClass | None, detail: str
    ) -> Outcome:
        self.seen.graded = True
        seconds = grade_seconds(self.task, self.tools.run)
        slack = SLACK_SECONDS + self.limits.setup_seconds
        # A grader that gives nothing is tried once more, over the untouched task.
        slack += self.limits.provision_seconds + self.limits.setup_seconds + seconds
        async with self.phases.enter(Phase.GRADE, seconds, slack_seconds=slack):
            try:
                result = await exam.grade(sandbox)
            finally:
                await asyncio.to_thread(exam.keep_judging)
        self.seen.integrity, self.seen.parts = exam.integrity, dict(result.parts)
        if result.result is not None:
            await asyncio.to_thread(keep_output, self.folder, "grader", result.result)
            self.seen.grader = seen(result.result)
        if result.reward is None:
            cls = result.cls or OutcomeClass.GRADER_BROKEN
            return outcome_of(cls, Phase.GRADE, detail=result.detail)
        details = "; ".join(part for part in (detail, result.detail) if part)
        return graded(result.reward, agent_class=agent_class, detail=details)

    def _setting(self) -> Setting:
        bench = SessionBench(
            admin=self.tools.admin,
            backend=self.tools.backend,
            model_name=self.tools.run.model_name,
            labels=self.plan.labels(),
        )
        return Setting(
            provider=self.tools.provider,
            spec=sandbox_spec(self.plan, self.task, self.tools.run),
            bench=bench,
            folder=self.folder,
            reaches=self.reaches,
            controls=self.tools.controls,
        )

    async def _teardown(self, sandbox: Sandbox) -> None:
        """Stop the sandbox, whatever; the provider's own close and its lifetime are behind this."""
        self.tools.on_event(PhaseEntered(plan=self.plan, phase=Phase.TEARDOWN))
        started = self.tools.clock()
        await to_the_end(_bounded_stop(sandbox, self.limits.teardown_seconds))
        spent = self.tools.clock() - started
        self.phases.seconds[Phase.TEARDOWN.value] = round(spent, 6)

    def outcome_of_error(self, exc: Exception) -> Outcome:
        cls = class_of_error(self.phases.phase, exc)
        if cls is OutcomeClass.INTERNAL_ERROR:
            log.error("attempt %s failed", self.plan, exc_info=exc)
        detail = redact_text(f"{type(exc).__name__}: {exc}")
        return outcome_of(cls, self.phases.phase, detail=detail)

    def record(self, outcome: Outcome, started_at: str, seconds: float) -> Record:
        plan, known = self.plan, self.seen
        return Record(
            run_id=plan.run_id,
            group_id=plan.group_id,
            episode_id=plan.episode_id,
            task_id=plan.task_id,
            index=plan.index,
            attempt=plan.attempt,
            started_at=started_at,
            ended_at=now(),
            seconds=round(seconds, 6),
            phase_seconds=self.phases.seconds,
            outcome=outcome,
            usage=known.usage,
            session_id=known.session_id,
            provider=self.tools.provider.name,
            sandbox_id=known.sandbox_id,
            sandbox_origin=known.sandbox_origin,
            agent=known.agent,
            grader=known.grader,
            untrainable=known.untrainable,
            version=known.version,
            agent_class=known.agent_class,
            graded=known.graded,
            workspace=known.workspace,
            integrity=known.integrity,
            parts=known.parts,
        )


async def _bounded_stop(sandbox: Sandbox, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await sandbox.stop()
    except (SandboxError, TimeoutError, OSError) as exc:
        log.warning("sandbox %s was not stopped: %s", sandbox.id, str(exc) or type(exc).__name__)
