"""An agent with one tool on pydantic-ai: `pydantic_ai_agent.py chat|responses|stream INSTRUCTION`."""

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


async def look(context, events):
    """With a handler for events, replies are streamed. `run_stream` would end at the first text."""
    async for _ in events:
        pass


handler = look if mode == "stream" else None
print(agent.run_sync(task, event_stream_handler=handler).output)
