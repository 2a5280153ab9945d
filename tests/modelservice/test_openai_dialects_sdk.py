"""Responses and completions through real sockets, with the real openai SDK as the judge."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from rock.errors import ContextLengthExceeded
from rock.modelservice.dialects.sse import Decoder
from rock.modelservice.wire import AssistantMessage, ToolCall, ToolFunction
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.golden import plain
from tests.modelservice.live import agent, answering, new_session, raw_agent

TOOLS: Any = [
    {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "apply_diff"},
]
TWO_CALLS = AssistantMessage(
    content="looking",
    reasoning_content="both at once",
    tool_calls=[
        ToolCall(function=ToolFunction(name="bash", arguments='{"command": "ls"}')),
        ToolCall(function=ToolFunction(name="apply_diff", arguments='{"input":"*** a"}')),
    ],
)


@asynccontextmanager
async def asking(
    path: Path, policy: ScriptedPolicy, **settings: Any
) -> AsyncGenerator[AsyncOpenAI, None]:
    """The SDK, with a session of a service that this policy answers."""
    async with running_service(path, **settings) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            yield client


async def test_a_response_is_read_by_the_sdk(tmp_path: Path) -> None:
    policy = ScriptedPolicy([TWO_CALLS])
    async with asking(tmp_path, policy) as client:
        reply = await client.responses.create(
            model="m", instructions="be brief", input="hi", tools=TOOLS, store=False
        )
    assert reply.status == "completed"
    assert reply.output_text == "looking"
    assert [item.type for item in reply.output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
    ]
    assert reply.output[2].type == "function_call"
    assert reply.output[2].arguments == '{"command": "ls"}'
    assert reply.output[3].type == "custom_tool_call"
    assert reply.output[3].input == "*** a"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens


async def test_output_items_sent_back_are_recognised_as_the_answer(tmp_path: Path) -> None:
    policy = ScriptedPolicy([TWO_CALLS, "done"])
    async with asking(tmp_path, policy) as client:
        first = await client.responses.create(model="m", input="hi", tools=TOOLS)
        history: Any = [{"role": "user", "content": "hi"}]
        history += [item.model_dump(exclude_unset=True) for item in first.output]
        history += _results(first)
        second = await client.responses.create(model="m", input=history, tools=TOOLS)
    assert second.output_text == "done"
    asked = policy.seen[1]
    assert asked.parent is not None
    assert asked.parent.messages == 2
    assert len(plain(asked.request.messages)) == 4


async def test_a_previous_response_is_gone_on_from(tmp_path: Path) -> None:
    policy = ScriptedPolicy([TWO_CALLS, "done", "and more"])
    async with asking(tmp_path, policy) as client:
        first = await client.responses.create(
            model="m", input="hi", tools=TOOLS, instructions="one"
        )
        second = await client.responses.create(
            model="m", previous_response_id=first.id, input=_results(first), tools=TOOLS
        )
        third = await client.responses.create(
            model="m", previous_response_id=second.id, input="go on", tools=TOOLS
        )
        with pytest.raises(openai.BadRequestError, match="has no response") as caught:
            await client.responses.create(model="m", previous_response_id="resp_x", input="hi")
    assert third.output_text == "and more"
    assert third.previous_response_id == second.id
    assert caught.value.param == "previous_response_id"
    roles = [message["role"] for message in plain(policy.seen[2].request.messages)]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]
    parent = policy.seen[2].parent
    assert parent is not None
    assert parent.messages == 5


def _results(response: Any) -> Any:
    return [
        {"type": f"{item.type}_output", "call_id": item.call_id, "output": "ok"}
        for item in response.output
        if item.type.endswith("_call")
    ]


async def test_another_sessions_response_is_not_there(tmp_path: Path) -> None:
    policy = ScriptedPolicy(["hello"])
    async with running_service(tmp_path) as service, answering(service, policy):
        mine, other = await new_session(service), await new_session(service)
        async with agent(mine.base_url) as client, agent(other.base_url) as stranger:
            first = await client.responses.create(model="m", input="hi")
            with pytest.raises(openai.BadRequestError, match="has no response"):
                await stranger.responses.create(
                    model="m", previous_response_id=first.id, input="what was said?"
                )


async def test_a_streamed_response_adds_up(tmp_path: Path) -> None:
    async with asking(tmp_path, ScriptedPolicy([TWO_CALLS])) as client:
        stream = client.responses.stream(model="m", input="hi", tools=TOOLS)
        async with stream as events:
            names = [event.type async for event in events]
            whole = await events.get_final_response()
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    assert whole.output_text == "looking"
    assert [item.type for item in whole.output][2:] == ["function_call", "custom_tool_call"]


async def test_a_waiting_stream_repeats_that_it_is_in_progress(tmp_path: Path) -> None:
    settings: Any = {"stream_grace_seconds": 0.05, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            events = aiter(stream)
            names = [(await anext(events)).type for _ in range(4)]
            async with answering(service, ScriptedPolicy(["hello"])):
                names += [event.type async for event in events]
    assert names[:4] == ["response.created", *["response.in_progress"] * 3]
    assert names.count("response.created") == 1
    assert names[-1] == "response.completed"


async def test_a_late_failure_is_a_failed_response(tmp_path: Path) -> None:
    settings: Any = {"stream_grace_seconds": 0.05, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            stream = await client.responses.create(model="m", input="hi", stream=True)
            failing = ScriptedPolicy(lambda _: ContextLengthExceeded("10 tokens, 5 fit"))
            async with answering(service, failing):
                *_, last = [event async for event in stream]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert str(last.response.error.code) == "context_length_exceeded"


async def test_errors_are_the_sdks_own_types(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: ContextLengthExceeded("10 tokens, 5 fit"))
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(f"{service.agent_url}/v1", "nobodys") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.responses.create(model="m", input="hi")
            with pytest.raises(openai.AuthenticationError):
                await client.completions.create(model="m", prompt="hi")
        async with agent(session.base_url) as client:
            for asked in (
                client.responses.create(model="m", input="hi"),
                client.completions.create(model="m", prompt="hi"),
            ):
                with pytest.raises(openai.BadRequestError) as caught:
                    await asked
                assert caught.value.code == "context_length_exceeded"
            with pytest.raises(openai.BadRequestError, match="input: missing"):
                await client.responses.create(model="m")
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve("resp_x")


async def test_input_tokens_are_counted_before_sending(tmp_path: Path) -> None:
    async with asking(tmp_path, ScriptedPolicy([])) as client:
        counted = await client.responses.input_tokens.count(model="m", input="word " * 2000)
    assert counted.input_tokens > 2000


async def test_a_websocket_is_refused_with_the_status_that_makes_clients_fall_back(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        async with raw_agent(service, session.key) as http:
            refused = await http.get("/v1/responses", headers=upgrade)
            plainly = await http.get("/v1/responses")
    assert refused.status_code == 426
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert plainly.status_code == 405


async def test_completions_go_through_plain_and_streamed(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "x): pass")
    async with asking(tmp_path, policy) as client:
        reply = await client.completions.create(model="m", prompt="def f(", n=2)
        stream = await client.completions.create(
            model="m",
            prompt="def g(",
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert [choice.text for choice in reply.choices] == ["x): pass", "x): pass"]
    assert reply.usage is not None
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "x): pass"
    assert chunks[-1].usage is not None
    asked = [plain(lease.request.messages) for lease in policy.seen]
    assert asked == [
        [{"role": "prompt", "content": "def f("}],
        [{"role": "prompt", "content": "def g("}],
    ]


async def test_events_carry_their_names_for_clients_that_need_them(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        async with (
            answering(service, ScriptedPolicy(["hello"])),
            raw_agent(service, session.key) as http,
        ):
            body = {"model": "m", "input": "hi", "stream": True}
            reply = await http.post("/v1/responses", json=body)
    events = Decoder().feed(reply.content)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert all(
        event.name is not None and f'"type":"{event.name}"' in event.data for event in events
    )
