"""What the live tests share: a tiny agent, a run file for it, a provider, a service and a trainer."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rock.modelservice.client.worker import serve
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.wire import Lease
from rock.rollout.inputs.runfile import RunFile, resolve
from rock.rollout.run import ServiceAddress
from rock.sandbox.local import LocalProvider
from rock.testing import ScriptedPolicy

AGENT = r"""
import json, os, subprocess, sys, time, urllib.request

url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as reply:
        message = json.load(reply)["choices"][0]["message"]
    messages.append(message)
    word, _, rest = message["content"].partition(" ")
    if word == "write":
        with open("answer.txt", "w") as file:
            file.write(rest)
    if word == "exit":
        sys.exit(int(rest))
    if word == "hang":
        time.sleep(600)
    if word == "sleep":
        time.sleep(float(rest))
    if word == "spin":
        end = time.monotonic() + float(rest)
        while time.monotonic() < end:
            pass
    if word == "done":
        break
    messages.append({"role": "user", "content": "next"})
"""
"""Does what the model says: write WORD, exit CODE, hang, sleep SECONDS, spin SECONDS, done."""

GRADER = {"command": ["sh", "-c", 'test "$(cat "$0/answer.txt")" = 42', "{workdir}"]}


def new_provider() -> LocalProvider:
    return LocalProvider()


def write_tasks(folder: Path, *task_ids: str, **fields: Any) -> Path:
    import json

    path = folder / "tasks.jsonl"
    rows = [{"task_id": name, "instruction": f"solve {name}", **fields} for name in task_ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_file(folder: Path, **fields: Any) -> RunFile:
    """A run of the tiny agent over `tasks.jsonl` in `folder`."""
    (folder / "agent.py").write_text(AGENT)
    agent = {
        "command": ["python3", "/opt/agent.py", "{instruction}"],
        "files": {"/opt/agent.py": "agent.py"},
        "timeout_seconds": 60,
        **fields.pop("agent", {}),
    }
    data: dict[str, Any] = {"tasks": "tasks.jsonl", "agent": agent, "grader": GRADER, **fields}
    data.setdefault("infra", {"backoff_seconds": 0.01})
    data.setdefault("consume_timeout_seconds", 0)
    return resolve(RunFile.model_validate(data), folder / "run.yaml")


def address(service: ServiceProcess) -> ServiceAddress:
    return ServiceAddress(
        control_url=service.control_url,
        admin_key=service.keys.admin_key,
        attach_path=service.attach_path,
    )


@asynccontextmanager
async def answering(
    service: ServiceProcess, answer: Callable[[Lease], Any]
) -> AsyncGenerator[ScriptedPolicy, None]:
    """A trainer in this process that answers calls for as long as the block runs."""
    policy = ScriptedPolicy(answer, policy_version=1)
    serving = asyncio.ensure_future(
        serve(policy, url=service.control_url, key=service.keys.trainer_key)
    )
    try:
        yield policy
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 30
) -> None:
    """Poll until true; a bound, not a pause."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.02)
