"""The grader that is a Python function, on the harness's side.

    def grade(work: Work) -> float: ...

It gets a `Work`, through which it looks at the sandbox, and returns a number, or an object with
`reward` and whatever else it wants to have recorded. A file that it reads and the agent did not leave
is no work: 0.0. It runs in a thread of its own, so it may block
and compute without holding up other episodes; one that is over its time is left alone, and its next
use of the sandbox raises. It is trusted code: it runs with the harness's rights.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar, cast

from rock.errors import SandboxDied, SandboxFileError
from rock.rollout.grading.scores import Grade, broken, number_of
from rock.rollout.inputs.functions import load_function
from rock.rollout.inputs.graders import PythonGrader
from rock.rollout.inputs.task import Task
from rock.rollout.records.evidence import of_a_living_box
from rock.rollout.records.outcome import OutcomeClass
from rock.sandbox.base import ExecResult, Sandbox

T = TypeVar("T")
CALL_SECONDS = 600.0
_DIED = "the sandbox died under the grader"


class Work:
    """What the agent left, as a function in a thread sees it. Paths may be relative to `workdir`."""

    def __init__(self, sandbox: Sandbox, task: Task, loop: asyncio.AbstractEventLoop) -> None:
        self.task = task
        self.workdir = task.workdir
        self._sandbox = sandbox
        self._loop = loop
        self._over = False
        self.died = False
        """Whether the sandbox died under the function, whatever that made of it."""

    def read(self, path: str, *, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """A file's bytes. Raises `SandboxFileError`."""
        return self._wait(self._sandbox.read_file(self._at(path), max_bytes=max_bytes))

    def text(self, path: str) -> str:
        """A file's text; what is not UTF-8 is replaced. Raises `SandboxFileError`."""
        return self.read(path).decode("utf-8", "replace")

    def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Put a file into the sandbox."""
        self._wait(self._sandbox.write_file(self._at(path), data, mode=mode))

    def download(self, path: str, target: Path) -> None:
        """A file or tree, onto the host."""
        self._wait(self._sandbox.download(self._at(path), target))

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 60.0,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """A command in the sandbox, to its end. A failing one is a result; of a sandbox that died
        under it, `SandboxDied` is raised."""
        result = self._wait(
            self._sandbox.exec(
                argv,
                timeout_seconds=timeout_seconds,
                stdin=stdin,
                env=env,
                cwd=cwd or self.workdir,
            )
        )
        try:
            return of_a_living_box(result, "under the grader")
        except SandboxDied:
            self.died = True
            raise

    def end(self) -> None:
        """Nothing of the sandbox can be used from now on."""
        self._over = True

    def _at(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.workdir}/{path}"

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._over:
            work.close()
            raise SandboxDied("the grading is over")
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS)
        except SandboxDied:
            self.died = True
            raise


async def in_own_thread(work: Callable[[], T]) -> T:
    """Run blocking code in a thread of its own, which does not keep the process from ending."""
    done: Future[T] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # from here on its end has somebody to be told
        try:
            done.set_result(work())
        except BaseException as exc:  # noqa: BLE001 - raised again where it is awaited
            done.set_exception(exc)

    threading.Thread(target=run, name="rock-grader", daemon=True).start()
    return await asyncio.wrap_future(done)


async def grade_by_python(
    sandbox: Sandbox,
    grader: PythonGrader,
    *,
    task: Task,
    folder: Path,
    timeout_seconds: float | None = None,
) -> Grade:
    """What the function says of the work. Raises `SandboxDied`; all else is a `Grade`."""
    work = Work(sandbox, task, asyncio.get_running_loop())

    def call() -> Any:
        function = load_function(grader.python, folder)
        value = function(work, **grader.args)
        return asyncio.run(value) if inspect.iscoroutine(value) else value

    bound = asyncio.timeout(timeout_seconds or grader.timeout_seconds)
    try:
        async with bound:
            value = await in_own_thread(call)
    except SandboxDied:
        raise
    except Exception as exc:
        if work.died:
            raise SandboxDied(_DIED) from exc
        if isinstance(exc, SandboxFileError):
            return Grade(reward=0.0, detail=f"{grader.python}: {exc.message}")
        if not bound.expired():
            return broken(f"{grader.python}: {type(exc).__name__}: {exc}")
        if grader.timeout_reward is not None:
            return Grade(reward=grader.timeout_reward, detail="the grader ran into its time limit")
        return Grade(cls=OutcomeClass.GRADER_TIMEOUT, detail=f"{grader.python} took too long")
    finally:
        work.end()
    if work.died:
        raise SandboxDied(_DIED)
    return _grade_of(grader.python, value)


def _grade_of(name: str, value: Any) -> Grade:
    reward = float(value) if isinstance(value, bool) else number_of(value)
    if reward is None:
        return broken(
            f"{name}: expected a finite number, or an object with one as 'reward'; "
            f"given: {type(value).__name__}"
        )
    if not isinstance(value, Mapping):
        return Grade(reward=reward, detail=name)
    given = cast("Mapping[str, Any]", value)
    parts = {key: number for key in given if (number := number_of(given[key])) is not None}
    parts.pop("reward", None)
    return Grade(reward=reward, detail=str(given.get("detail") or name), parts=parts)
