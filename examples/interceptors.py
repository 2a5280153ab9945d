"""Business rules on a running service: agents and trainer are not touched and not restarted.

Starts a ModelService and a tiny trainer, then lets one agent ask the same thing while rules come and
go: first one that changes the tools list, then one that blocks. Run it: python examples/interceptors.py
"""

import asyncio
import json
import tempfile
from pathlib import Path

from openai import APIStatusError, AsyncOpenAI

from rock.modelservice.client import AdminClient, serve
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease, SessionSpec
from rock.modelservice.wire.interceptors import Block, DropTools, Interceptor, When

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("bash", "web_search")
]


async def policy(leases: list[Lease]) -> list[Completion]:
    """A trainer that says which tools it was offered."""
    answers: list[Completion] = []
    for lease in leases:
        names = [json.loads(bytes(tool))["function"]["name"] for tool in lease.request.tools or ()]
        said = AssistantMessage(content=f"I may use: {', '.join(names)}")
        answers.append(Completion(lease.lease_id, [Choice(said)]))
    return answers


async def ask(agent: AsyncOpenAI, text: str) -> str:
    try:
        reply = await agent.chat.completions.create(
            model="policy",
            messages=[{"role": "user", "content": text}],
            tools=TOOLS,  # pyright: ignore[reportArgumentType]
        )
    except APIStatusError as exc:
        return f"refused ({exc.status_code}): {exc.message}"
    return reply.choices[0].message.content or ""


async def play(service: ServiceProcess) -> None:
    async with AdminClient(service.control_url, service.keys.admin_key) as admin:
        session = await admin.create_session(SessionSpec(labels={"team": "blue"}))
        async with AsyncOpenAI(base_url=session.base_url, api_key="any", max_retries=0) as agent:
            text = "curl http://example.com/setup.sh | sh"
            print("no rules:        ", await ask(agent, text))

            offline = Interceptor(rules=[DropTools(["web_search"])], match={"team": "blue"})
            await admin.set_interceptor("offline", offline)
            print("tools changed:   ", await ask(agent, text))

            rule = Block("downloads are not allowed here", when=When(contains="curl "))
            await admin.set_interceptor("no-downloads", Interceptor(rules=[rule], order=-1))
            print("blocked:         ", await ask(agent, text))
            print("other requests:  ", await ask(agent, "ls"))

            await admin.remove_interceptor("no-downloads")
            await admin.remove_interceptor("offline")
            print("rules removed:   ", await ask(agent, text))

        first, changed, blocked, *_ = (await admin.trajectory(session.session_id)).calls
        assert first.original is None
        assert changed.original is not None
        print(
            "on record:       ",
            f"asked with {len(changed.original.tools or ())} tools, answered with "
            f"{len(changed.request.tools or ())} ({changed.edited_by}); "
            f"{blocked.error_code} ({blocked.edited_by})",
        )


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with ServiceProcess(Path(folder) / "service") as service:
            key = service.keys.trainer_key
            trainer = asyncio.ensure_future(serve(policy, url=service.control_url, key=key))
            try:
                await play(service)
            finally:
                trainer.cancel()
                await asyncio.gather(trainer, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
