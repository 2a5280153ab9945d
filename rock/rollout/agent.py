"""Run the agent: any program, unmodified, that only gets a base URL and a key.

The model is a listening socket on 127.0.0.1 inside the sandbox's own network. Whoever connects to
it speaks in this episode's session, so the key in the environment opens nothing and is no secret.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from rock.errors import SandboxDied, SandboxError
from rock.rollout.placeholders import fill, fill_all, fill_values
from rock.rollout.runfile import AgentConfig
from rock.rollout.task import Task
from rock.sandbox.base import ExecResult, Sandbox

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


async def run_agent(
    sandbox: Sandbox, agent: AgentConfig, values: Mapping[str, str], *, timeout_seconds: float
) -> ExecResult:
    """Run the agent to its end; nothing that it started is left then."""
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
