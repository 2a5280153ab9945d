"""An agent with one tool on the openai-agents SDK: `openai_agents.py responses|chat|stream INSTRUCTION`."""

import asyncio
import subprocess
import sys

from agents import (
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

set_tracing_disabled(True)  # traces would go to OpenAI


@function_tool
def bash(command: str) -> str:
    """Run a shell command."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


async def main(mode: str, task: str) -> None:
    set_default_openai_api("chat_completions" if mode == "chat" else "responses")
    agent = Agent(name="worker", model="policy", tools=[bash])
    if mode == "stream":
        result = Runner.run_streamed(agent, task)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, task)
    print(result.final_output)


asyncio.run(main(*sys.argv[1:]))
