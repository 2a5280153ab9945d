"""Run the agent: any program, unmodified, that only gets a base URL and a key.

The model is a listening socket on 127.0.0.1 inside the sandbox's own network. Whoever connects to
it speaks in this episode's session, so the key in the environment opens nothing and is no secret.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from rock.errors import SandboxDied, SandboxError
from rock.rollout.placeholders import fill, fill_all, fill_values
from rock.rollout.progress import Handle, Watchdog, until_stuck
from rock.rollout.runfile import AgentConfig
from rock.rollout.task import Task
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


Watch: TypeAlias = tuple[Handle, Watchdog | None, Clock]


async def run_agent(
    sandbox: Sandbox,
    agent: AgentConfig,
    values: Mapping[str, str],
    *,
    timeout_seconds: float,
    watch: Watch,
) -> AgentEnd:
    """Run the agent to its end, or until the watch says that it is stuck; nothing that it started
    is left then."""
    env = {
        "OPENAI_BASE_URL": values["base_url"],
        "OPENAI_API_KEY": values["api_key"],
        # Anthropic's clients put the version into the path themselves.
        "ANTHROPIC_BASE_URL": values["base_url"].removesuffix("/v1"),
        "ANTHROPIC_API_KEY": values["api_key"],
    }
    running = sandbox.exec(
        fill_all(agent.command, values),
        timeout_seconds=timeout_seconds,
        cwd=fill(agent.cwd, values),
        env=env | fill_values(agent.env, values),
        user=agent.user,
    )
    return await _watched(running, sandbox, watch)


async def _watched(
    running: Coroutine[Any, Any, ExecResult], sandbox: Sandbox, watch: Watch
) -> AgentEnd:
    handle, watchdog, clock = watch
    if watchdog is None:
        return AgentEnd(await running)
    started = clock()
    agent = asyncio.ensure_future(running)
    stuck = asyncio.ensure_future(until_stuck(handle, sandbox, watchdog, clock))
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
