"""An agent that is an async function in the harness's own process.

    async def agent(seat: Seat) -> None:
        reply = await seat.client.chat.completions.create(model=seat.model, messages=[...])
        result = await seat.run("ls")

It asks through ModelService like any other agent, so its calls are journalled and its trajectory is
exact; the sandbox is its hands. It is trusted code and shares the harness's event loop, so it must not
block. What it returns is how it ended: nothing or text is success, a number is an exit code; what it
raises is a failure with code 1 and the traceback as its output.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rock.errors import SandboxDied, TaskError
from rock.rollout.inputs.functions import load_function
from rock.rollout.inputs.task import Task
from rock.sandbox.base import ExecResult, ExecStatus, Sandbox

if TYPE_CHECKING:
    import openai


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What such an agent has before it."""

    task: Task
    sandbox: Sandbox
    client: openai.AsyncOpenAI
    """Speaks in this episode's session."""
    model: str
    """The model's name, which ModelService does not mind."""

    @property
    def instruction(self) -> str:
        return self.task.instruction

    async def run(self, script: str, *, timeout_seconds: float = 60.0) -> ExecResult:
        """A shell script in the task's working directory. A failing one is a result."""
        return await self.sandbox.exec(
            ["sh", "-c", script], timeout_seconds=timeout_seconds, cwd=self.task.workdir
        )


async def run_python_agent(
    name: str,
    *,
    task: Task,
    sandbox: Sandbox,
    base_url: str,
    api_key: str,
    model: str,
    timeout_seconds: float,
) -> ExecResult:
    """Run the function to its end or its time limit. Raises `SandboxDied` and `TaskError`."""
    import openai  # takes half a second, which runs of other agents do without

    function = cast("Callable[[Seat], Awaitable[Any]]", load_function(name, Path.cwd()))
    started = time.monotonic()
    bound = asyncio.timeout(timeout_seconds)
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        seat = Seat(task=task, sandbox=sandbox, client=client, model=model)
        try:
            async with bound:
                value = await function(seat)
        except SandboxDied:
            raise
        except Exception:  # noqa: BLE001 - an agent may fail in any way; that is its outcome
            status = ExecStatus.TIMED_OUT if bound.expired() else ExecStatus.EXITED
            return _ended(status, 1, "", traceback.format_exc(), time.monotonic() - started)
    if not (value is None or isinstance(value, (int, str))):
        raise TaskError(f"{name}: expected None, a text or an exit code: {type(value).__name__}")
    code = int(value) if isinstance(value, int) else 0
    text = value if isinstance(value, str) else ""
    return _ended(ExecStatus.EXITED, code, text, "", time.monotonic() - started)


def _ended(status: ExecStatus, code: int, stdout: str, stderr: str, seconds: float) -> ExecResult:
    out, err = stdout.encode(), stderr.encode()
    return ExecResult(
        status=status,
        exit_code=code if status is ExecStatus.EXITED else None,
        signal=None,
        stdout=out,
        stderr=err,
        stdout_bytes=len(out),
        stderr_bytes=len(err),
        duration_seconds=seconds,
    )
