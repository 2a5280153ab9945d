"""The Anthropic dialect through real sockets, with the real anthropic SDK as the judge."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from rock.errors import ContextLengthExceeded
from rock.modelservice.hosting.server import Running
from rock.modelservice.wire import AssistantMessage, SessionSpec, ToolCall, ToolFunction
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.golden import plain
from tests.modelservice.live import admin_of, answering, new_session, raw_agent

USER: MessageParam = {"role": "user", "content": "hi"}
BASH: ToolParam = {"name": "bash", "input_schema": {"type": "object"}}
TWO_CALLS = AssistantMessage(
    content="looking",
    reasoning_content="both at once",
    tool_calls=[
        ToolCall(function=ToolFunction(name="bash", arguments='{"command": "ls"}')),
        ToolCall(function=ToolFunction(name="bash", arguments='{"command": "pwd"}')),
    ],
)


def agent(service: Running, key: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=service.agent_url, api_key=key, max_retries=0, timeout=20.0)


@asynccontextmanager
async def asking(
    path: Path, policy: ScriptedPolicy, **settings: Any
) -> AsyncGenerator[AsyncAnthropic, None]:
    """The SDK, with a session of a service that this policy answers."""
    async with running_service(path, **settings) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(service, session.key) as client:
            yield client


async def test_a_session_in_the_path_needs_no_key(tmp_path: Path) -> None:
    policy = ScriptedPolicy(["hello"])
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        base_url = session.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=base_url, api_key="any", max_retries=0) as client:
            reply = await client.messages.create(model="m", max_tokens=9, messages=[USER])
    assert reply.content[0].type == "text"
    assert reply.content[0].text == "hello"
    assert reply.stop_reason == "end_turn"
    assert reply.usage.input_tokens > 0
    assert reply.usage.output_tokens > 0


async def test_parallel_tools_go_round(tmp_path: Path) -> None:
    policy = ScriptedPolicy([TWO_CALLS, "done"])
    async with asking(tmp_path, policy) as client:
        first = await client.messages.create(model="m", max_tokens=9, messages=[USER], tools=[BASH])
        uses = [block for block in first.content if block.type == "tool_use"]
        results: Any = [
            {"type": "tool_result", "tool_use_id": use.id, "content": use.name} for use in uses
        ]
        messages: Any = [USER, first.to_param(), {"role": "user", "content": results}]
        second = await client.beta.messages.create(  # asks with ?beta=true
            model="m",
            max_tokens=9,
            tools=[BASH],
            messages=messages,
            betas=["context-management-2025-06-27"],
        )
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [use.input for use in uses] == [{"command": "ls"}, {"command": "pwd"}]
    assert second.content[0].type == "text"
    assert second.content[0].text == "done"
    asked = policy.seen[1]
    assert asked.parent is not None, "the answer was recognised in its echo"
    assert asked.parent.messages == 2
    assert [m["role"] for m in plain(asked.request.messages)] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert plain(asked.request.messages)[1]["reasoning_content"] == "both at once"


async def test_a_stream_adds_up_to_the_same_message(tmp_path: Path) -> None:
    async with asking(tmp_path, ScriptedPolicy([TWO_CALLS])) as client:
        stream = client.messages.stream(model="m", max_tokens=9, messages=[USER], tools=[BASH])
        async with stream as events:
            names = [event.type async for event in events]
            whole = await events.get_final_message()
    assert whole.stop_reason == "tool_use"
    assert whole.usage.output_tokens > 0
    assert whole.content[0].type == "thinking"
    assert whole.content[0].thinking == "both at once"
    assert whole.content[0].signature
    assert whole.content[1].type == "text"
    assert whole.content[1].text == "looking"
    assert [block.input for block in whole.content[2:] if block.type == "tool_use"] == [
        {"command": "ls"},
        {"command": "pwd"},
    ]
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"


async def test_pings_keep_a_waiting_stream_alive(tmp_path: Path) -> None:
    settings: Any = {"stream_grace_seconds": 0.05, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service:
        session = await new_session(service)
        body = {"model": "m", "max_tokens": 9, "messages": [USER], "stream": True}
        async with (
            raw_agent(service, session.key) as http,
            http.stream("POST", "/v1/messages", json=body) as reply,
        ):
            lines = reply.aiter_lines()
            waiting = [await anext(lines) for _ in range(6)]
            assert waiting == ["event: ping", 'data: {"type":"ping"}', ""] * 2
            async with answering(service, ScriptedPolicy(["hello"])):
                rest = [line async for line in lines]
    assert 'data: {"type":"message_stop"}' in rest


async def test_tokens_are_counted_before_sending(tmp_path: Path) -> None:
    async with asking(tmp_path, ScriptedPolicy([])) as client:
        few = await client.messages.count_tokens(model="m", messages=[USER])
        many = await client.beta.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "word " * 2000}]
        )
    assert 0 < few.input_tokens < 100
    assert many.input_tokens > 2000


async def test_models_can_be_listed_and_looked_up(tmp_path: Path) -> None:
    async with asking(tmp_path, ScriptedPolicy([])) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("any/name")
    assert listed == ["policy"]
    assert (one.id, one.type) == ("any/name", "model")


async def test_errors_are_the_sdks_own_types(tmp_path: Path) -> None:
    too_long = ContextLengthExceeded("10 tokens, 5 fit")
    policy = ScriptedPolicy(lambda _: too_long)
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(service, "nobodys") as client:
            with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
                await client.messages.create(model="m", max_tokens=9, messages=[USER])
        async with agent(service, session.key) as client:
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await client.messages.create(model="m", max_tokens=9, messages=[USER])
            with pytest.raises(anthropic.BadRequestError, match="max_tokens: expected"):
                await client.messages.create(model="m", max_tokens=-1, messages=[USER])
            with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
                await client.messages.batches.retrieve("b1")
            async with admin_of(service) as admin:
                await admin.close_session(session.session_id)
            with pytest.raises(anthropic.APIStatusError, match="closed") as caught:
                await client.messages.create(model="m", max_tokens=9, messages=[USER])
            assert caught.value.status_code == 410


async def test_a_full_queue_is_a_rate_limit_with_a_time_to_come_back(tmp_path: Path) -> None:
    async with running_service(tmp_path, max_queued=1, stream_grace_seconds=0.05) as service:
        session = await new_session(service)
        body = {"model": "m", "max_tokens": 9, "messages": [USER], "stream": True}
        async with (
            raw_agent(service, session.key) as http,
            http.stream("POST", "/v1/messages", json=body) as waiting,
            agent(service, session.key) as client,
        ):
            assert waiting.status_code == 200
            with pytest.raises(anthropic.RateLimitError) as caught:
                await client.messages.create(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "other"}]
                )
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30


async def test_a_late_failure_ends_the_stream_with_the_sdks_error(tmp_path: Path) -> None:
    settings: Any = {"stream_grace_seconds": 0.05, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service:
        session = await new_session(service)
        async with agent(service, session.key) as client:
            stream = client.messages.stream(model="m", max_tokens=9, messages=[USER])
            failing = ScriptedPolicy(lambda _: ContextLengthExceeded("10 tokens"))
            async with stream as events, answering(service, failing):
                with pytest.raises(anthropic.APIStatusError, match="prompt is too long"):
                    await events.get_final_message()


async def test_a_pinned_session_answers_for_any_model(tmp_path: Path) -> None:
    policy = ScriptedPolicy(["hello"])
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service, SessionSpec(labels={"task": "t"}))
        async with agent(service, session.key) as client:
            reply = await client.messages.create(model="claude-x", max_tokens=9, messages=[USER])
    assert reply.model == "claude-x"
    assert policy.seen[0].labels == {"task": "t"}
