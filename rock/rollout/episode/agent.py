"""Run the agent: any program, unmodified, that only gets a base URL and a key.

The model is a listening socket on 127.0.0.1 inside the sandbox's own network. Whoever connects to
it speaks in this episode's session, so the key in the environment opens nothing and is no secret.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from rock.errors import SandboxDied, SandboxError, TaskError
from rock.rollout.episode.progress import Handle, Watchdog, until_stuck
from rock.rollout.episode.python_agent import run_python_agent
from rock.rollout.inputs.sections import AgentConfig
from rock.rollout.inputs.task import LoadedTask, Task
from rock.rollout.placeholders import fill, fill_all, fill_values
from rock.rollout.staging import upload_files
from rock.sandbox.base import ExecResult, ExecStatus, Sandbox
from rock.sandbox.ending import to_the_end
from rock.types import Clock

LISTEN_PORT = 8765
API_KEY = "sk-rock-sandbox"


async def open_listener(sandbox: Sandbox) -> socket.socket:
    """The socket on which the agent finds the model, on the usual port where that is free."""
    try:
        return await sandbox.listen(LISTEN_PORT)
    except SandboxDied:
        raise
    except SandboxError:
        return await sandbox.listen(0)


def agent_values(task: Task, *, model_name: str, listener: socket.socket) -> Mapping[str, str]:
    """What the placeholders in the agent's command and environment stand for."""
    port: int = listener.getsockname()[1]
    return {
        "instruction": task.instruction,
        "workdir": task.workdir,
        "task_id": task.task_id,
        "model": model_name,
        "base_url": f"http://127.0.0.1:{port}/v1",
        "api_key": API_KEY,
    }


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How the agent's program ended. `stuck` says why it was stopped if it got nowhere, else empty."""

    result: ExecResult
    stuck: str = ""


async def run_agent(
    sandbox: Sandbox,
    agent: AgentConfig,
    values: Mapping[str, str],
    *,
    timeout_seconds: float,
) -> ExecResult:
    """Run the agent's program to its end; nothing that it started is left then."""
    env = {
        "OPENAI_BASE_URL": values["base_url"],
        "OPENAI_API_KEY": values["api_key"],
        # Anthropic's clients put the version into the path themselves.
        "ANTHROPIC_BASE_URL": values["base_url"].removesuffix("/v1"),
        "ANTHROPIC_API_KEY": values["api_key"],
    }
    return await sandbox.exec(
        fill_all(agent.command, values),
        timeout_seconds=timeout_seconds,
        cwd=fill(agent.cwd, values),
        env=env | fill_values(agent.env, values),
        user=agent.user,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an agent of any kind works: its sandbox, and its session by both ways to it."""

    sandbox: Sandbox
    values: Mapping[str, str]
    """Of the listener inside the sandbox."""
    base_url: str
    """The same session for who is not in the sandbox."""
    api_key: str


async def act(
    place: Place, agent: AgentConfig, loaded: LoadedTask, *, timeout_seconds: float
) -> ExecResult:
    """Run the agent, of whatever kind it is, to its end.

    Raises `TaskError` for a task without the solution that is asked for, and the sandbox's errors.
    """
    if agent.solution is not None:
        return await run_solution(
            place.sandbox, loaded, agent.solution, timeout_seconds=timeout_seconds
        )
    if agent.python is not None:
        return await run_python_agent(
            agent.python,
            task=loaded.task,
            sandbox=place.sandbox,
            base_url=place.base_url,
            api_key=place.api_key,
            model=place.values["model"],
            timeout_seconds=timeout_seconds,
        )
    return await run_agent(place.sandbox, agent, place.values, timeout_seconds=timeout_seconds)


async def run_solution(
    sandbox: Sandbox, loaded: LoadedTask, name: str, *, timeout_seconds: float
) -> ExecResult:
    """Run one of the task's own solutions in the agent's place. Raises `TaskError`."""
    task = loaded.task
    solution = task.solutions.get(name)
    if solution is None:
        known = ", ".join(task.solutions) or "none"
        raise TaskError(
            f"agent.solution: {task.task_id} has no solution {name!r} (it has: {known})"
        )
    at = solution.at or f"/tmp/rock-solution-{secrets.token_hex(8)}"
    if solution.files:
        await upload_files(sandbox, at, solution.files, folder=loaded.folder)
    values = {"solution": at, "workdir": task.workdir}
    return await sandbox.exec(
        fill_all(solution.command, values),
        timeout_seconds=timeout_seconds,
        cwd=task.workdir,
        env=fill_values(solution.env, values),
        user=solution.user,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks after the agent's progress; without a watchdog nobody does."""

    handle: Handle
    watchdog: Watchdog | None
    clock: Clock


async def watched(
    running: Coroutine[Any, Any, ExecResult], sandbox: Sandbox, watch: Watch
) -> AgentEnd:
    """`running`, which is the agent in `sandbox`, to its end, or until the watch says that it is
    stuck; nothing that it started is left then."""
    watchdog, clock = watch.watchdog, watch.clock
    if watchdog is None:
        return AgentEnd(await running)
    started = clock()
    agent = asyncio.ensure_future(running)
    stuck = asyncio.ensure_future(until_stuck(watch.handle, sandbox, watchdog, clock))
    try:
        await asyncio.wait({agent, stuck}, return_when=asyncio.FIRST_COMPLETED)
        if agent.done():
            return AgentEnd(agent.result())
        stuck.result()
    finally:
        for task in (agent, stuck):
            task.cancel()
        await to_the_end(_gathered(agent, stuck))
    limit = watchdog.limit_seconds
    return AgentEnd(_stopped(clock() - started), f"no sign of life for {limit:g} s")


async def _gathered(*tasks: asyncio.Future[Any]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _stopped(seconds: float) -> ExecResult:
    """The end of a command that was cancelled: its output is gone with it."""
    return ExecResult(
        status=ExecStatus.TIMED_OUT,
        exit_code=None,
        signal=None,
        stdout=b"",
        stderr=b"",
        stdout_bytes=0,
        stderr_bytes=0,
        duration_seconds=seconds,
    )
