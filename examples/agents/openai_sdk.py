"""An agent with one tool on the openai SDK: `openai_sdk.py chat|stream|responses INSTRUCTION`."""

import json
import subprocess
import sys

from openai import OpenAI

BASH = {
    "name": "bash",
    "description": "Run a shell command.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}
client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY


def bash(arguments):
    command = json.loads(arguments)["command"]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def chat(instruction, *, stream):
    messages = [{"role": "user", "content": instruction}]
    request = {"model": "policy", "tools": [{"type": "function", "function": BASH}]}
    while True:
        if stream:
            with client.chat.completions.stream(messages=messages, **request) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(messages=messages, **request)
            message = message.choices[0].message
        messages.append(message.to_dict(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            output = bash(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def responses(instruction):
    items = [{"role": "user", "content": instruction}]
    while True:
        reply = client.responses.create(
            model="policy", input=items, tools=[{"type": "function", **BASH}], store=False
        )
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            return reply.output_text
        items += reply.output
        for call in calls:
            output = bash(call.arguments)
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )


mode, task = sys.argv[1:]
print(responses(task) if mode == "responses" else chat(task, stream=mode == "stream"))
