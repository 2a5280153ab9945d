"""An agent with one tool on litellm: `litellm_sdk.py MODEL plain|stream INSTRUCTION`.

MODEL picks the dialect: `openai/policy` speaks chat, `anthropic/policy` speaks Messages.
"""

import json
import subprocess
import sys

import litellm

BASH = {
    "name": "bash",
    "description": "Run a shell command.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
model, mode, task = sys.argv[1:]
messages = [{"role": "user", "content": task}]
while True:
    request = {"model": model, "tools": [{"type": "function", "function": BASH}]}
    reply = litellm.completion(messages=messages, stream=mode == "stream", **request)
    if mode == "stream":
        reply = litellm.stream_chunk_builder(list(reply), messages=messages)
    message = reply.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        argv = ["bash", "-c", json.loads(call.function.arguments)["command"]]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        output = done.stdout + done.stderr
        messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
