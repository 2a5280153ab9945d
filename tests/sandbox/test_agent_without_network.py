"""A real agent, in a sandbox without a network, reaches a model that the host serves on one socket."""

import json
from typing import Any

import pytest
from aiohttp import web

from rock.config import read_environment
from rock.sandbox.base import SandboxSpec
from rock.sandbox.docker import DockerProvider
from tests.conftest import TEST_IMAGE

AGENT_ENV = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "any",
}
COMMANDS = [
    "mkdir -p src && printf 'def add(a, b):\\n    return a - b\\n' >src/sums.py",
    "sed -i 's/a - b/a + b/' src/sums.py && git init -q . && git add . && git status --short",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
]


class ScriptedModel:
    """Answers each chat request with the next command, as a call of the agent's `bash` tool."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(await request.json())
        command = COMMANDS[len(self.requests) - 1]
        call = {
            "id": f"call_{len(self.requests)}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        message = {"role": "assistant", "content": "Next step.", "tool_calls": [call]}
        return web.json_response(
            {
                "id": f"chatcmpl-{len(self.requests)}",
                "object": "chat.completion",
                "created": 1,
                "model": "scripted",
                "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            }
        )


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_mini_swe_agent_works_through_the_only_socket_it_can_reach() -> None:
    model = ScriptedModel()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        async with (
            DockerProvider(host=read_environment().docker_host) as provider,
            await provider.create(SandboxSpec(image=TEST_IMAGE, env=AGENT_ENV)) as box,
        ):
            listener = await box.listen()
            port = listener.getsockname()[1]
            await web.SockSite(runner, listener).start()
            done = await box.exec(
                [
                    *("/opt/agent/bin/mini", "-y", "--exit-immediately"),
                    *("-m", "openai/scripted", "-t", "Make add() add.", "-o", "/tmp/traj.json"),
                ],
                env={"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"},
                timeout_seconds=120,
            )
            fixed = await box.read_file("/workspace/src/sums.py")
            trajectory = json.loads(await box.read_file("/tmp/traj.json"))
            outside = await box.exec(
                ["python3", "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 3)"],
                timeout_seconds=20,
            )
    finally:
        await runner.cleanup()
    assert done.ok, done.stdout.decode(errors="replace")[-2000:] + done.stderr.decode()[-2000:]
    assert fixed == b"def add(a, b):\n    return a + b\n"
    assert len(model.requests) == len(COMMANDS)
    assert "src/sums.py" in json.dumps(model.requests[2]["messages"][-1])
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert b"Network is unreachable" in outside.stderr
