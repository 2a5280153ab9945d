"""An agent with one tool on pydantic-ai: `pydantic_ai_agent.py chat|responses|stream INSTRUCTION`."""

import asyncio
import subprocess
import sys

from pydantic_ai import Agent

mode, task = sys.argv[1:]
agent = Agent("openai-responses:policy" if mode == "responses" else "openai-chat:policy")


@agent.tool_plain
def bash(command: str) -> str:
    """Run a shell command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


async def stream() -> str:
    async with agent.run_stream(task) as result:
        return await result.get_output()


print(asyncio.run(stream()) if mode == "stream" else agent.run_sync(task).output)
