"""One attempt's grading, from before the agent to the reward.

    async with Exam(loaded, grader, setting) as exam:
        await exam.prepare(sandbox)      # the agent has not started
        ...                              # the agent runs and ends
        grade = await exam.grade(sandbox)

`prepare` hides and keeps safe; `grade` undoes what the agent did to protected files, where asked
carries the work over into a fresh sandbox, and only then brings the grader in. Work that cannot be put
in order, and work that keeps a grader from its end that works otherwise (`control`), scores 0.0. What was
found on the way is `integrity`.
`keep_judging` writes what was said to a judge to `judge.json` in the attempt's folder.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

import msgspec

from rock.errors import (
    BadUser,
    BadWorkdir,
    CapacityExceeded,
    CommandNotFound,
    CommandRefused,
    ConfigError,
    ProviderUnavailable,
    RockError,
    SandboxError,
    SandboxFileError,
    TaskError,
    UnsafeArchive,
)
from rock.rollout.grading.clearing import remove_paths
from rock.rollout.grading.command import grade_by_command
from rock.rollout.grading.control import DOUBTED, Controls
from rock.rollout.grading.judge import Bench, Message, grade_by_judge, head_of
from rock.rollout.grading.protection import Protection, digest_of_file
from rock.rollout.grading.python import grade_by_python
from rock.rollout.grading.scores import Grade, broken
from rock.rollout.inputs.graders import (
    AnyGrader,
    Grader,
    JudgeGrader,
    PythonGrader,
    WeightedGrader,
)
from rock.rollout.inputs.networks import CLOSED_ALWAYS, Reaches, reach
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.records.durable import write_atomically
from rock.rollout.records.evidence import of_a_living_box
from rock.rollout.records.integrity import Integrity
from rock.rollout.records.record import numbered
from rock.rollout.staging import stage, upload_files
from rock.sandbox.base import Provider, Sandbox, SandboxSpec

SETUP_SECONDS = 300.0
THE_WORKS_FAULT: tuple[type[RockError], ...] = (
    TaskError,
    SandboxFileError,
    UnsafeArchive,
    CommandRefused,
    CommandNotFound,
    BadWorkdir,
    BadUser,
)
"""What an agent can bring about by what it leaves, in a sandbox that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What grading needs of its surroundings."""

    provider: Provider
    spec: SandboxSpec
    """Of the agent's sandbox; a fresh one is made like it, without mounts that can be written."""
    bench: Bench | None
    """Where a judge is asked; None where there is none."""
    folder: Path
    """The attempt's folder on the host."""
    reaches: Reaches = CLOSED_ALWAYS
    """What sandboxes may reach; the agent's has `reaches.agent` when grading begins."""
    controls: Controls = field(default_factory=Controls)
    """What is known of the graders of the same run."""


async def lay_out(sandbox: Sandbox, loaded: LoadedTask) -> None:
    """Bring a new sandbox into the task's initial state. Raises `TaskError` and `SandboxError`."""
    task = loaded.task
    if task.build is not None:
        raise TaskError("build: whether its image is built was not settled (make_ready)")
    if task.files:
        await upload_files(sandbox, task.workdir, task.files, folder=loaded.folder)
    if task.setup:
        result = await sandbox.exec(task.setup, timeout_seconds=SETUP_SECONDS, cwd=task.workdir)
        of_a_living_box(result, "in its setup")
        if not result.ok:
            reason = (result.stderr or result.stdout).decode(errors="replace").strip()[-500:]
            raise TaskError(f"setup: {result.status} with code {result.exit_code}: {reason}")


class Exam:
    """Use as `async with`; it keeps what it protects in a directory on the host that then goes."""

    def __init__(self, loaded: LoadedTask, grader: AnyGrader, setting: Setting) -> None:
        self._loaded = loaded
        self._task = loaded.task
        self._grader = grader
        self._setting = setting
        self._stack = AsyncExitStack()
        self._stage = Path()
        self._protection = Protection(self._task.workdir, (), Path())
        self._said: list[list[Message]] = []
        self._base: str | None = None

    @property
    def integrity(self) -> Integrity:
        return self._protection.findings.report()

    async def __aenter__(self) -> Self:
        self._stage = await self._stack.enter_async_context(stage())
        self._protection = Protection(self._task.workdir, self._grader.guarded(), self._stage)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def prepare(self, sandbox: Sandbox) -> None:
        """Hide and keep safe what the task says. Raises `TaskError` and `SandboxError`."""
        await self._protection.hide(sandbox, self._task.hide)
        await self._protection.hide_history(sandbox, self._task.git)
        await self._protection.keep(sandbox)
        if self._grader.shows_diff():
            self._base = await head_of(sandbox, self._task.workdir)

    async def grade(self, sandbox: Sandbox) -> Grade:
        """The grade of what is in `sandbox`, where nothing runs any more.

        Raises `SandboxDied`, `ModelServiceError` and what else is not the work's fault.
        """
        given = await self._grade(sandbox)
        if given.cls in DOUBTED:
            await sandbox.stop()  # which leaves room for the other
            given = await self._setting.controls.settle(
                self._task.task_id, given, self._grade_untouched
            )
        return given

    async def _grade(self, sandbox: Sandbox) -> Grade:
        async with AsyncExitStack() as stack:
            if self._grader.fresh:
                if wrong := await _wrong_with(self._collect(sandbox)):
                    return Grade(reward=0.0, detail=f"the work cannot be taken over: {wrong}")
                await sandbox.stop()
                sandbox = await self._fresh(stack, laid_out=bool(self._grader.collect))
            if wrong := await _wrong_with(self._put_in_order(sandbox)):
                return Grade(reward=0.0, detail=f"the work cannot be put in order: {wrong}")
            if not self._protection.findings.restored:
                return Grade(reward=0.0, detail="protected files could not be put back")
            return await self._with_the_grader(sandbox)

    async def _put_in_order(self, sandbox: Sandbox) -> None:
        if self._grader.fresh:
            await self._bring_in(sandbox)
        else:
            await self._protection.give_back(sandbox)
        noted = self._grader.fresh and not self._grader.collect
        await self._protection.put_back(sandbox, note=not noted)

    async def _with_the_grader(self, sandbox: Sandbox) -> Grade:
        reaches = self._setting.reaches
        await reach(sandbox, reaches.grade, before=reaches.agent)
        try:
            return await self._by(sandbox, self._grader, self._task.timeouts.grade_seconds)
        except THE_WORKS_FAULT as exc:
            return broken(f"the grader cannot do its work: {exc.message}")

    async def _grade_untouched(self) -> Grade:
        """What the grader gives for the task as it was before any agent."""
        async with AsyncExitStack() as stack:
            sandbox = await self._fresh(stack, laid_out=True)
            return await self._with_the_grader(sandbox)

    async def _by(self, sandbox: Sandbox, grader: AnyGrader, seconds: float | None) -> Grade:
        limit = seconds or grader.timeout_seconds
        match grader:
            case Grader():
                return await grade_by_command(
                    sandbox,
                    grader,
                    workdir=self._task.workdir,
                    folder=self._loaded.folder,
                    timeout_seconds=limit,
                )
            case PythonGrader():
                return await grade_by_python(
                    sandbox,
                    grader,
                    task=self._task,
                    folder=self._loaded.folder,
                    timeout_seconds=limit,
                )
            case JudgeGrader():
                return await self._by_judge(sandbox, grader, limit)
            case WeightedGrader():
                return await self._by_all(sandbox, grader)

    async def _by_judge(self, sandbox: Sandbox, grader: JudgeGrader, seconds: float) -> Grade:
        if self._setting.bench is None:
            return broken("a judge needs a model, and there is none here")
        result, said = await grade_by_judge(
            sandbox,
            grader,
            task=self._task,
            bench=self._setting.bench,
            timeout_seconds=seconds,
            base=self._base,
        )
        self._said.append(said)
        return result

    async def _by_all(self, sandbox: Sandbox, grader: WeightedGrader) -> Grade:
        """The mean by weight. The first part without a reward decides that there is none.

        A part may run the work, so what is protected is put back before each.
        """
        rewards: dict[str, float] = {}
        details: list[str] = []
        last: Grade | None = None
        for name, part in grader.weighted.items():
            if rewards:
                wrong = await _wrong_with(self._protection.put_back(sandbox, note=False))
                if wrong or not self._protection.findings.restored:
                    detail = f"before {name}: protected files could not be put back {wrong}".strip()
                    return Grade(reward=0.0, detail=detail, parts=rewards)
            given = await self._by(sandbox, part.grader, None)
            details.append(f"{name}: {given.detail}")
            if given.reward is None:
                return replace(given, detail=details[-1], parts=rewards)
            rewards[name] = given.reward
            last = given if given.result is not None else last
        total = sum(part.weight for part in grader.weighted.values())
        reward = sum(rewards[n] * part.weight for n, part in grader.weighted.items()) / total
        result = last.result if last else None
        return Grade(reward=reward, detail="; ".join(details), result=result, parts=rewards)

    async def _collect(self, sandbox: Sandbox) -> None:
        """What is to be graded, onto the host, with the agent's changes to protected files undone."""
        tree = self._stage / "collected"
        if self._grader.collect:
            tree.mkdir()
            for path in self._grader.collect:
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                try:
                    await sandbox.download(self._in_workdir(path), tree / path)
                except SandboxFileError:
                    continue  # the agent did not make it, or removed it
        else:
            await sandbox.download(self._task.workdir, tree)
        digest = await asyncio.to_thread(self._undo, tree)
        self._protection.findings.fresh = True
        self._protection.findings.collected_sha256 = digest

    def _undo(self, tree: Path) -> str:
        digest = _digest_of_tree(tree)
        if not self._grader.collect:
            self._protection.undo_on_host(tree)
        return digest

    async def _fresh(self, stack: AsyncExitStack, *, laid_out: bool) -> Sandbox:
        spec = self._setting.spec
        mounts = tuple(mount for mount in spec.mounts if mount.read_only)
        try:
            sandbox = await self._setting.provider.create(replace(spec, mounts=mounts))
        except (CapacityExceeded, ProviderUnavailable, ConfigError, BadUser):
            raise
        except SandboxError as exc:  # not the grader's fault
            raise ProviderUnavailable(f"no fresh sandbox: {exc.message}") from exc
        stack.push_async_callback(sandbox.stop)
        await reach(sandbox, self._setting.reaches.agent)  # of which the setup is a part
        if laid_out:
            await lay_out(sandbox, self._loaded)
        return sandbox

    async def _bring_in(self, sandbox: Sandbox) -> None:
        """What was collected, into the fresh sandbox."""
        tree = self._stage / "collected"
        if not self._grader.collect:
            await remove_paths(sandbox, [self._task.workdir])
            await sandbox.upload(tree, self._task.workdir)
        for path in self._grader.collect:
            await remove_paths(sandbox, [self._in_workdir(path)])
            if (tree / path).exists() or (tree / path).is_symlink():
                await sandbox.upload(tree / path, self._in_workdir(path))

    def _in_workdir(self, path: str) -> str:
        return str(PurePosixPath(self._task.workdir, path))

    def keep_judging(self, grading: int = 1) -> None:
        """Write down what was said to judges, if anything was. Raises `OSError`."""
        if not self._said:
            return
        folder = self._setting.folder
        folder.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(self._said), indent=2)
        write_atomically(folder / numbered("judge.json", grading), text + b"\n")


async def _wrong_with(step: Awaitable[None]) -> str:
    """What the agent left that makes `step` fail, empty if it does not."""
    try:
        await step
    except THE_WORKS_FAULT as exc:
        return exc.message
    return ""


def _digest_of_tree(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            line = f"{path.relative_to(tree)}\0{digest_of_file(path)}\0"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
