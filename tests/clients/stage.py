"""One client on stage: a local sandbox without a network, the tap, ModelService, a scripted trainer.

The task is the same for all: copy `nonce.txt`, whose content only the sandbox knows, to `hello.txt`.
So whether the file is there says that the client really ran its tool, and whether the nonce is in the
next request says that it really reported what the tool printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rock.errors import SandboxFileError
from rock.modelservice.client.client import AdminClient
from rock.modelservice.client.speaking import StreamingPolicy, Voice
from rock.modelservice.client.worker import serve, serve_streaming
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import Line, tool_call
from rock.modelservice.wire import (
    AssistantMessage,
    Completion,
    Lease,
    SessionCreated,
    ToolCall,
    ToolFunction,
    Trajectory,
)
from rock.modelservice.wire.partial import ToolCallDelta
from rock.rollout.episode.agent import agent_values, open_listener, run_agent
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import Task
from rock.sandbox.base import ExecResult, SandboxSpec
from rock.sandbox.local import LocalProvider
from rock.testing import ScriptedPolicy
from tests.clients.catalog import CLIENTS, installed
from tests.clients.recipes import clients_of, recipes, run_file
from tests.clients.tap import Faults, Tap, no_fault

COPY = "cp nonce.txt hello.txt && ls"
INSTRUCTION = "Copy nonce.txt to hello.txt with your shell tool, and say when it is done. Grüße!"
_SHELLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "codex": ("exec_command", "cmd", {}),
    "claude-code": ("Bash", "command", {"description": "Look and copy"}),
    "openhands": ("terminal", "command", {}),
    "qwen-code": ("run_shell_command", "command", {"is_background": False}),
    "opencode": ("bash", "command", {"description": "Look and copy"}),
}
"""Each client's own shell tool: name, field of the command, whatever else it insists on."""


def shell(recipe: str, command: str) -> AssistantMessage:
    """A call of that client's shell tool."""
    name, field, more = _SHELLS.get(recipe, ("bash", "command", {}))
    return tool_call(name, **{field: command}, **more)


Say = Line | Callable[[Lease], Line]
"""What the model answers, perhaps by what it is told."""


def copy_and_slip(lease: Lease) -> Line:
    """The copy as aider takes it, whole files under their names, and a slip. It is shown the nonce."""
    seen = b"\n".join(bytes(message) for message in lease.request.messages).decode()
    found = re.search(r"nonce\.txt\\n```\w*\\n([0-9a-f]{32})", seen)
    copied = f"hello.txt\n```\n{found[1] if found else 'not shown'}\n```\n"
    return f"\n\n  Let me copy it.\n\n{copied}\nsay.py\n```python\nprint(\n```\n"


def script_for(recipe: str) -> list[Say]:
    """Look, copy, say so. The first line is written as no client would write it: odd spacing in
    the arguments, blank lines around the text, reasoning."""
    if recipe == "aider":
        # It has no tools, and only asks again about a mistake: here one that its linter sees.
        return [copy_and_slip, "Of course.\n\nsay.py\n```python\nprint('done')\n```\n"]
    look = shell(recipe, "cat nonce.txt; echo 'é\\u00fc'")
    call = (look.tool_calls or [])[0]
    name, text = call.function.name, call.function.arguments
    odd = text.replace('":', '" :').replace("{", "{ ", 1)
    last: Line = "Done: hello.txt is there."
    if recipe == "mini-swe-agent":
        last = shell(recipe, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    return [
        AssistantMessage(
            content="\n\n  Let me look — first. \n",
            reasoning_content="It asks for a copy.\nI should look at the nonce.",
            tool_calls=[ToolCall(function=ToolFunction(name=name, arguments=odd))],
        ),
        shell(recipe, COPY),
        last,
    ]


Hook = Callable[[int, Tap], Awaitable[None]]
"""Called with a call's place before it is answered, once for each time that it is handed out."""


async def no_hook(place: int, tap: Tap) -> None:
    """Answer at once."""


def by_call(script: Sequence[Say], tap: Tap, hook: Hook) -> Callable[[Lease], Awaitable[Line]]:
    """The script by the order of calls: a call handed out again gets the same line."""
    order: list[str] = []

    async def line(lease: Lease) -> Line:
        if lease.call_id not in order:
            order.append(lease.call_id)
        place = order.index(lease.call_id)
        await hook(place, tap)
        said = script[min(place, len(script) - 1)]
        return said(lease) if callable(said) else said

    return line


def in_pieces(policy: ScriptedPolicy) -> StreamingPolicy:
    """The policy's answers, said a few characters at a time, tokens included."""

    async def speak(lease: Lease, voice: Voice) -> Completion:
        [completion] = await policy([lease])
        choice = completion.choices[0]
        ids, logprobs = choice.token_ids or [], choice.logprobs or []
        for number, piece in enumerate(pieces_of(choice.message)):
            place = slice(number, number + 1)
            await voice.say(**piece, token_ids=ids[place], logprobs=logprobs[place])
        return completion

    return speak


def pieces_of(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    for name, text in (
        ("reasoning_content", message.reasoning_content or ""),
        ("content", message.content or ""),
    ):
        yield from ({name: text[at : at + 5]} for at in range(0, len(text), 5))
    for index, call in enumerate(message.tool_calls or ()):
        yield {"tool_calls": [ToolCallDelta(index, "", call.function.name)]}
        arguments = call.function.arguments
        for at in range(0, len(arguments), 5):
            yield {"tool_calls": [ToolCallDelta(index, arguments[at : at + 5])]}


@dataclass(frozen=True)
class Seen:
    """What one run of a client left behind."""

    result: ExecResult
    nonce: str
    written: str | None
    """Content of `hello.txt`."""
    tap: Tap
    leases: list[Lease]
    """In the order in which the policy sampled them."""
    trajectory: Trajectory

    @property
    def output(self) -> str:
        parts = (self.result.stdout, self.result.stderr)
        return "\n".join(part.decode(errors="replace")[-4000:] for part in parts)


class Stage:
    """A service and a provider; `perform` runs one client."""

    def __init__(self, service: ServiceProcess, provider: LocalProvider, folder: Path) -> None:
        self.service = service
        self._provider = provider
        self._folder = folder
        self.taps: list[Tap] = []
        """One for each performance, in the order in which they began."""

    async def perform(
        self,
        recipe: str,
        *,
        faults: Faults = no_fault,
        hook: Hook = no_hook,
        timeout_seconds: float = 240,
        live: bool = False,
    ) -> Seen:
        """Run the recipe's client to its end, or until the time is over. `live` answers are said in
        pieces."""
        require_installed(recipe)
        run = run_file(recipe, self._folder)
        nonce = secrets.token_hex(16)
        tap = Tap(self.service.agent_url, faults)
        self.taps.append(tap)
        policy = ScriptedPolicy(by_call(script_for(recipe), tap, hook), policy_version=1)
        async with AdminClient(self.service.control_url, self.service.keys.admin_key) as admin:
            session = await admin.create_session()
            async with self._answering(policy, live=live):
                result, written = await self._run(run, session, tap, nonce, timeout_seconds)
            await admin.close_session(session.session_id)
            trajectory = await admin.trajectory(session.session_id)
        return Seen(result, nonce, written, tap, policy.seen, trajectory)

    async def _run(
        self,
        run: RunFile,
        session: SessionCreated,
        tap: Tap,
        nonce: str,
        timeout_seconds: float,
    ) -> tuple[ExecResult, str | None]:
        task = Task(task_id="copy", instruction=INSTRUCTION)
        spec = SandboxSpec(mounts=run.mounts(), limits=run.sandbox_limits())
        async with await self._provider.create(spec) as sandbox:
            for target, source in run.agent.files.items():
                await sandbox.upload(source, target)
            await sandbox.write_file(f"{task.workdir}/nonce.txt", f"{nonce}\n".encode())
            listener = await open_listener(sandbox)
            values = dict(agent_values(task, model_name=run.model_name, listener=listener))
            # The tap is no session-bound listener, so the key in the address says who asks.
            values["base_url"] = values["base_url"].replace("/v1", f"/s/{session.key}/v1")
            async with tap.on(listener):
                result = await run_agent(
                    sandbox, run.agent, values, timeout_seconds=timeout_seconds
                )
            try:
                written = (await sandbox.read_file(f"{task.workdir}/hello.txt")).decode().strip()
            except SandboxFileError:
                written = None
        return result, written

    @asynccontextmanager
    async def _answering(self, policy: ScriptedPolicy, *, live: bool) -> AsyncGenerator[None, None]:
        url, key = self.service.control_url, self.service.keys.trainer_key
        serving = asyncio.ensure_future(
            serve_streaming(in_pieces(policy), url=url, key=key)
            if live
            else serve(policy, url=url, key=key)
        )
        try:
            yield
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


@asynccontextmanager
async def stage(folder: Path, **settings: Any) -> AsyncGenerator[Stage, None]:
    """`settings` are fields of ServiceConfig."""
    async with (
        ServiceProcess(folder / "state", settings=settings, exit_with_parent=True) as service,
        LocalProvider() as provider,
    ):
        yield Stage(service, provider, folder)


def require_installed(recipe: str) -> None:
    """Fails the test where a client is missing: who runs these tests asked for all of them."""
    missing = sorted(name for name in clients_of(recipes()[recipe]) if not installed(CLIENTS[name]))
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}; run `make test-clients`", pytrace=False)
