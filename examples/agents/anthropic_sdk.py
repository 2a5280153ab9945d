"""An agent with one tool on the anthropic SDK: `anthropic_sdk.py plain|stream INSTRUCTION`."""

import subprocess
import sys

from anthropic import Anthropic

BASH = {
    "name": "bash",
    "description": "Run a shell command.",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
client = Anthropic()  # ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
mode, task = sys.argv[1:]
messages = [{"role": "user", "content": task}]
while True:
    request = {"model": "policy", "max_tokens": 4096, "tools": [BASH], "messages": messages}
    if mode == "stream":
        with client.messages.stream(**request) as events:
            reply = events.get_final_message()
    else:
        reply = client.messages.create(**request)
    messages.append({"role": "assistant", "content": reply.content})
    results = []
    for block in reply.content:
        if block.type == "tool_use":
            argv = ["bash", "-c", block.input["command"]]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            output = done.stdout + done.stderr
            results.append({"type": "tool_result", "tool_use_id": block.id, "content": output})
    if not results:
        break
    messages.append({"role": "user", "content": results})
