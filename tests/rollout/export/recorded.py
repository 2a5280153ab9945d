"""One real run to export: the harness, local sandboxes, and an agent that does what clients do.

The agent uses tools, writes their arguments anew, drops reasoning, asks once for two choices, and
asks for a title on the side (a chain of its own).
"""

import asyncio
import json
from pathlib import Path

import msgspec

from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import tool_call, turn_of
from rock.modelservice.wire import AssistantMessage, Lease
from rock.rollout.run import run
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks

AGENT = r"""
import json, os, subprocess, sys, urllib.request

url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Run a command.",
          "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}]


def ask(messages, **more):
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        return json.load(reply)["choices"]


task = {"role": "user", "content": sys.argv[1]}
messages = [{"role": "system", "content": "You use tools."}, task]
choices = ask(messages, tools=TOOLS, n=2)
while True:
    said = choices[0]["message"]
    echo = {"role": "assistant", "content": said.get("content") or ""}
    if said.get("tool_calls"):
        echo["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["function"]["name"],
             "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1)}}
            for call in said["tool_calls"]]
    messages.append(echo)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
    choices = ask(messages, tools=TOOLS)
ask([{"role": "user", "content": "Name this session in three words."}])
"""


def policy(lease: Lease) -> AssistantMessage:
    """Members with an even index write the right answer."""
    last = msgspec.json.decode(lease.request.messages[-1])
    if "Name this" in str(last.get("content")):
        return AssistantMessage(content="Answers and questions")
    turn = turn_of(lease)
    if turn == 0:
        return AssistantMessage(
            reasoning_content="First I look.",
            tool_calls=[
                *(tool_call("bash", command="echo hello").tool_calls or ()),
                *(tool_call("bash", command="echo there").tool_calls or ()),
            ],
        )
    if turn == 1:
        answer = 42 if int(lease.labels["index"]) % 2 == 0 else 41
        return tool_call("bash", command=f"echo {answer} > answer.txt")
    return AssistantMessage(content="done")


async def _record(folder: Path) -> Path:
    write_tasks(folder, "first", "second/odd name")
    config = run_file(folder, episodes_per_task=4, concurrency=4, sampling={"temperature": 0.7})
    (folder / "agent.py").write_text(AGENT)
    async with (
        ServiceProcess(folder / "service", exit_with_parent=True) as service,
        new_provider() as provider,
        answering(service, policy),
    ):
        await run(config, directory=folder / "run", service=address(service), provider=provider)
    return folder / "run"


def record(folder: Path) -> Path:
    """The run directory. Two tasks of four episodes; rewards 1, 0, 1, 0."""
    return asyncio.run(_record(folder))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
