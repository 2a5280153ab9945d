"""A small coding agent on the openai SDK. It knows nothing of rock: two variables and a task.

Usage: python agent.py "what to do" (reads OPENAI_BASE_URL and OPENAI_API_KEY, works in the current
directory, exits 0 when the model says that it is done and 3 when it runs out of turns).
"""

import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

MAX_TURNS = 12
BASH: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a shell command in the working directory; returns its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def run(command: str) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"[:8000]


def main(task: str) -> int:
    client = OpenAI()
    messages: list[Any] = [
        {"role": "system", "content": "You solve programming tasks with the bash tool."},
        {"role": "user", "content": task},
    ]
    for _ in range(MAX_TURNS):
        reply = client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            print(message.content)
            return 0
        for call in message.tool_calls:
            assert call.type == "function"
            try:
                output = run(json.loads(call.function.arguments)["command"])
            except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
                output = f"the call failed: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    print("out of turns", file=sys.stderr)
    return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
