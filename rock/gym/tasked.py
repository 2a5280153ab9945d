"""An episode of a task: a shell in a sandbox, script by script, and the task's grader at the end.

Every action is a script of its own, run in the working directory; when it is over, so is everything it
started. So the state between actions is files alone, and a snapshot after each of them is all of it:
when the sandbox dies, another one goes on from the last snapshot with the action that was cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rock.errors import ConfigError, EnvironmentFailed, EnvironmentLost, SandboxDied, SandboxError
from rock.gym.definition import Definition
from rock.gym.place import mounts_of
from rock.rollout.building import make_ready, refuse_unbuilt
from rock.rollout.grading import Exam, Grade, Setting, lay_out
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.tasks import load_tasks
from rock.sandbox.base import ExecResult, ExecStatus, Limits, Provider, Sandbox, SandboxSpec
from rock.sandbox.state import Capability, Snapshot

log = logging.getLogger(__name__)

SUBMIT = "submit"
"""The action that ends an episode: the work is then graded."""
SHELL = ("sh", "-c")
OUTPUT_BYTES = 64 * 1024


def find_task(definition: Definition) -> LoadedTask:
    """The one task that `task:TASKS[#TASK_ID]` names. Raises `ConfigError`."""
    spec, _, task_id = definition.name.partition("#")
    loaded = load_tasks(spec, base=Path.cwd())
    if task_id:
        loaded = [item for item in loaded if item.task_id == task_id]
    if len(loaded) != 1:
        raise ConfigError(
            f"{definition.source}: expected one task, found {len(loaded)} (name it: task:{spec}#TASK_ID)"
        )
    if loaded[0].task.grader is None:
        raise ConfigError(f"{definition.source}: {loaded[0].task_id!r} has no grader")
    return loaded[0]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one action did: text for the agent, and the rest."""

    observation: str
    info: dict[str, Any]


class TaskEpisodes:
    """Episodes of one task, one after the other. `close` is idempotent.

    `restored` counts how often the last state was brought back.
    """

    def __init__(
        self,
        definition: Definition,
        loaded: LoadedTask,
        provider: Callable[[], Coroutine[Any, Any, Provider]],
    ) -> None:
        self.definition = definition
        self.restored = 0
        self.steps = 0
        self._loaded = loaded
        self._task = loaded.task
        self._provider = provider
        self._stack = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._exam: Exam | None = None
        self._snapshot: Snapshot | None = None

    @property
    def sandbox(self) -> Sandbox | None:
        return self._sandbox

    def _spec(self) -> SandboxSpec:
        definition = self.definition
        return SandboxSpec(
            image=self._task.image or definition.image,
            mounts=mounts_of(definition),
            workdir=self._task.workdir,
            env=self._task.env,
            user=self._task.user,
            limits=Limits(memory_bytes=definition.memory_bytes),
            labels={"environment": definition.source[:60]},
        )

    async def reset(self) -> Seen:
        """The task's initial state in a sandbox of its own. Raises `SandboxError`, `TaskError`."""
        await self.close()
        provider = await self._provider()
        refuse_unbuilt([self._loaded], provider, "auto")
        self._loaded = (await make_ready(self._loaded, provider, "auto")).loaded
        self._task = self._loaded.task
        spec = self._spec()
        grader = self._task.grader
        assert grader is not None
        try:
            self._sandbox = await provider.create(spec)
            setting = Setting(provider=provider, spec=spec, bench=None, folder=Path("/nonexistent"))
            self._exam = await self._stack.enter_async_context(Exam(self._loaded, grader, setting))
            await lay_out(self._sandbox, self._loaded)
            await self._exam.prepare(self._sandbox)
            await self._keep()
        except BaseException:
            await self.close()
            raise
        self.steps = 0
        return Seen(self._task.instruction, {"task_id": self._task.task_id})

    async def step(self, script: str) -> Seen:
        """Run a script. Raises `EnvironmentLost` when the state is gone for good."""
        for _ in range(self.definition.restores + 1):
            result = await self._run(script)
            if result is not None:
                self.steps += 1
                await self._keep()
                return Seen(_shown(result), _details(result))
            await self._bring_back()
        await self.close()
        raise EnvironmentLost(f"{self.definition.source}: its sandbox dies of this action")

    async def _run(self, script: str) -> ExecResult | None:
        """The result; None when the sandbox died of it."""
        if self._sandbox is None:
            raise EnvironmentFailed("step: there is no episode; call reset first")
        try:
            result = await self._sandbox.exec(
                [*SHELL, script],
                timeout_seconds=self.definition.step_seconds,
                cwd=self._task.workdir,
                output_limit_bytes=OUTPUT_BYTES,
                overflow="truncate",
            )
        except SandboxDied as exc:
            log.warning("%s: %s", self.definition.source, exc.message)
            return None
        return None if result.status is ExecStatus.SANDBOX_DIED else result

    async def _keep(self) -> None:
        """The files as they are now are the last good state, if this sandbox can keep one."""
        assert self._sandbox is not None
        if Capability.SNAPSHOT not in self._sandbox.capabilities:
            return
        try:
            snapshot = await self._sandbox.snapshot()
        except SandboxDied:
            return  # the next action finds out, and the last snapshot is still there
        except SandboxError as exc:
            log.warning("%s: no snapshot: %s", self.definition.source, exc.message)
            self._forget()
            return
        self._forget()
        self._snapshot = snapshot

    def _forget(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.release()

    async def _bring_back(self) -> None:
        sandbox = self._sandbox
        assert sandbox is not None
        if self._snapshot is None:
            await self.close()
            raise EnvironmentLost(
                f"{self.definition.source}: its sandbox died, and there was no snapshot of its state. "
                "Reset it."
            )
        provider = await self._provider()
        made = await provider.create(sandbox.spec, snapshot=self._snapshot)
        self._sandbox = made
        self.restored += 1
        await sandbox.stop()

    async def grade(self) -> Grade:
        """Grade the work and end the episode. Raises `EnvironmentFailed` when there is no reward."""
        exam = self._exam
        if exam is None:
            raise EnvironmentFailed("step: there is no episode; call reset first")
        for _ in range(self.definition.restores + 1):
            assert self._sandbox is not None
            try:
                result = await exam.grade(self._sandbox)
            except SandboxDied:
                await self._bring_back()
                continue
            await self.close()
            if result.reward is None:
                raise EnvironmentFailed(f"{self.definition.source}: no reward: {result.detail}")
            return result
        await self.close()
        raise EnvironmentLost(f"{self.definition.source}: its sandbox dies of being graded")

    async def fork(self, other: TaskEpisodes) -> None:
        """Bring `other` to where this one is. Raises `EnvironmentFailed` without a snapshot."""
        if self._snapshot is None or self._sandbox is None:
            raise EnvironmentFailed("spawn: this sandbox keeps no states, or there is no episode")
        await other.reset()
        assert other._sandbox is not None
        before, other._sandbox = (
            other._sandbox,
            await (await self._provider()).create(self._sandbox.spec, snapshot=self._snapshot),
        )
        await before.stop()
        other.steps = self.steps
        await other._keep()

    async def close(self) -> None:
        self._forget()
        sandbox, self._sandbox = self._sandbox, None
        stack, self._stack, self._exam = self._stack, AsyncExitStack(), None
        try:
            if sandbox is not None:
                await sandbox.stop()
        finally:
            await stack.aclose()


def _shown(result: ExecResult) -> str:
    text = result.stdout.decode(errors="replace") + result.stderr.decode(errors="replace")
    if result.status is ExecStatus.EXITED:
        return f"{text}\n[exit code {result.exit_code}]" if result.exit_code else text
    return f"{text}\n[{result.status.value}]"


def _details(result: ExecResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "exit_code": result.exit_code,
        "seconds": round(result.duration_seconds, 6),
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
    }
