"""Answers as they come: every dialect, what its events are, and what the real SDKs make of them."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import ToolParam, ToolUseBlock
from openai.types.responses import FunctionToolParam

from rock.errors import CallFailed
from rock.modelservice.client.speaking import StreamingPolicy, Voice
from rock.modelservice.client.worker import serve_streaming
from rock.modelservice.dialects.anthropic import AnthropicDialect
from rock.modelservice.dialects.base import Dialect, StreamEncoder
from rock.modelservice.dialects.chat import ChatDialect
from rock.modelservice.dialects.responses import ResponsesDialect
from rock.modelservice.graph.answer import Answer, Delta
from rock.modelservice.hosting.server import Running
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    SessionCreated,
    ToolCall,
    ToolFunction,
)
from rock.modelservice.wire.partial import ToolCallDelta
from rock.testing.service import running_service
from tests.modelservice.golden import answer, call, decoded
from tests.modelservice.live import agent, eventually, new_session, raw_agent
from tests.modelservice.test_dialect_fuzz import GOLDEN

LIVE: dict[str, Dialect] = {
    "chat": ChatDialect(now=lambda: 1.0),
    "responses": ResponsesDialect(now=lambda: 1.0),
    "anthropic": AnthropicDialect(),
}
ARGUMENTS = '{ "command" : "ls é", "n": [1, 2]}'
WHOLE = answer("hello", reasoning="hmm", calls=[call("t1", "f", ARGUMENTS), call("t2", "g", "{}")])


def deltas_of(rng: random.Random, whole: Answer) -> Iterator[Delta]:
    """The answer in random pieces, in order; the last piece is sometimes missing."""
    message = whole.choices[0].message
    for text in pieces(rng, message.reasoning_content or ""):
        yield Delta(reasoning=text)
    for text in pieces(rng, message.content or ""):
        yield Delta(content=text)
    for index, made in enumerate(message.tool_calls or ()):
        first = ToolCallDelta(index, "", made.function.name, made.id)
        yield Delta(calls=(first,))
        for text in pieces(rng, made.function.arguments):
            yield Delta(calls=(ToolCallDelta(index, text),))


def pieces(rng: random.Random, text: str) -> Iterator[str]:
    while text:
        size = rng.randint(1, len(text))
        yield text[:size]
        text = text[size:]


def encoder_of(dialect: Dialect) -> StreamEncoder:
    body = {**GOLDEN[dialect.name], "stream": True}
    body.pop("previous_response_id", None)
    return dialect.parse(json.dumps(body).encode(), {}).renderer.stream("c1")


def told(frames: bytes) -> list[Any]:
    """Events with neighbouring deltas of one thing joined, without numbers that count events."""
    joined: list[Any] = []
    for name, data in decoded(frames):
        fields(data).pop("sequence_number", None)
        last = joined[-1] if joined else None
        if last is not None and (both := together(last, (name, data))) is not None:
            joined[-1] = both
        else:
            joined.append((name, data))
    return joined


def together(last: Any, new: Any) -> Any:
    """Two deltas of the same thing as one; None if they are not."""
    paths = (
        ("delta",),
        ("delta", "text"),
        ("delta", "thinking"),
        ("delta", "partial_json"),
        ("choices", 0, "text"),
        ("choices", 0, "delta", "content"),
        ("choices", 0, "delta", "reasoning_content"),
        ("choices", 0, "delta", "tool_calls", 0, "function", "arguments"),
    )
    for path in paths:
        one, other = json.loads(json.dumps(last)), json.loads(json.dumps(new))
        text, more = cut_out(one[1], path), cut_out(other[1], path)
        if isinstance(text, str) and text and isinstance(more, str) and one == other:
            put_back(one[1], path, text + more)
            return (one[0], one[1])
    return None


def fields(data: Any) -> dict[str, Any]:
    """The fields of an event's data; none for `[DONE]`."""
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def cut_out(value: Any, path: Sequence[Any]) -> Any:
    *way, last = path
    try:
        for step in way:
            value = value[step]
        return fields(value).pop(last, None)
    except (KeyError, IndexError, TypeError):
        return None


def put_back(value: Any, path: Sequence[Any], text: str) -> None:
    *way, last = path
    for step in way:
        value = value[step]
    value[last] = text


@pytest.mark.parametrize("dialect", LIVE.values(), ids=LIVE)
def test_an_answer_in_any_pieces_is_the_same_stream_as_the_whole(dialect: Dialect) -> None:
    rng = random.Random(5)
    whole = told(b"".join(encoder_of(dialect).answer(WHOLE)))
    for _ in range(50):
        encoder = encoder_of(dialect)
        parts = list(deltas_of(rng, WHOLE))
        said = parts[: rng.randint(1, len(parts))]
        frames = b"".join(encoder.delta(part) for part in said)
        live = told(frames + b"".join(encoder.answer(WHOLE)))
        assert without_usage_of_start(live) == without_usage_of_start(whole)


def without_usage_of_start(events: list[Any]) -> list[Any]:
    """The prompt's length is known at the start only if the worker said it; chat opens with null
    content only where it knows that calls come."""
    for _, data in events:
        fields(fields(data).get("message")).pop("usage", None)
        for choice in fields(data).get("choices", ()):
            if fields(fields(choice).get("delta")).get("role"):
                choice["delta"]["content"] = ""
    return events


def test_messages_opens_with_the_length_of_a_prompt_that_is_known() -> None:
    encoder = encoder_of(LIVE["anthropic"])
    frames = encoder.delta(Delta(content="h", prompt_tokens=7))
    names = [name for name, _ in decoded(frames)]
    assert names == ["message_start", "content_block_start", "content_block_delta"]
    assert decoded(frames)[0][1]["message"]["usage"] == {"input_tokens": 7, "output_tokens": 0}


def test_a_worker_that_goes_back_to_reasoning_opens_another_block() -> None:
    parts = [Delta(reasoning="a"), Delta(content="b"), Delta(reasoning="c")]
    whole = answer("b", reasoning="ac")
    messages = encoder_of(LIVE["anthropic"])
    frames = b"".join([*map(messages.delta, parts), *messages.answer(whole)])
    blocks = [data for name, data in decoded(frames) if name == "content_block_start"]
    assert [block["content_block"]["type"] for block in blocks] == ["thinking", "text", "thinking"]
    responses = encoder_of(LIVE["responses"])
    frames = b"".join([*map(responses.delta, parts), *responses.answer(whole)])
    output = decoded(frames)[-1][1]["response"]["output"]
    assert [item["id"] for item in output] == ["rs_c1", "msg_c1", "rs_c1_1"]


def test_arguments_that_turn_out_to_be_no_json_break_a_messages_stream_off() -> None:
    encoder = encoder_of(LIVE["anthropic"])
    opened = ToolCallDelta(0, '{"a": ', "f", "t1")
    assert encoder.delta(Delta(calls=(opened,)))
    with pytest.raises(CallFailed, match="no JSON object"):
        list(encoder.answer(answer(None, calls=[call("t1", "f", '{"a": oops')])))


def test_arguments_cut_off_at_the_limit_end_a_messages_stream_as_they_are() -> None:
    encoder = encoder_of(LIVE["anthropic"])
    encoder.delta(Delta(calls=(ToolCallDelta(0, '{"a": ', "f", "t1"),)))
    cut = answer(None, calls=[call("t1", "f", '{"a": [1')], finish="length")
    sent = decoded(b"".join(encoder.answer(cut)))
    assert sent[0][1]["delta"] == {"type": "input_json_delta", "partial_json": "[1"}
    assert sent[-2][1]["delta"]["stop_reason"] == "max_tokens"


def test_arguments_that_are_no_object_from_the_start_wait_and_are_wrapped() -> None:
    encoder = encoder_of(LIVE["anthropic"])
    frames = encoder.delta(Delta(calls=(ToolCallDelta(0, "[1", "f", "t1"),)))
    frames += b"".join(encoder.answer(answer(None, calls=[call("t1", "f", "[1]")])))
    (sent,) = [data for name, data in decoded(frames) if name == "content_block_delta"]
    assert json.loads(sent["delta"]["partial_json"]) == {"malformed_arguments": "[1]"}


# --- through the wire, with the SDKs' own readers of streams ---


class Steps:
    """A policy that says the next piece only when the agent has read the one before."""

    def __init__(self) -> None:
        self.read = asyncio.Semaphore(0)
        self.leases: list[Lease] = []

    async def __call__(self, lease: Lease, voice: Voice) -> Completion:
        self.leases.append(lease)
        for piece in PIECES:
            await voice.say(**piece)
            async with asyncio.timeout(10):
                await self.read.acquire()
        calls = [ToolCall(ToolFunction("bash", ARGUMENTS)), ToolCall(ToolFunction("bash", "{}"))]
        message = AssistantMessage(content="hello", reasoning_content="hmm", tool_calls=calls)
        return Completion(lease.lease_id, [Choice(message, "tool_calls")])


PIECES: list[dict[str, Any]] = [
    {"reasoning_content": "hm"},
    {"reasoning_content": "m"},
    {"content": "hel"},
    {"content": "lo"},
    {"tool_calls": [ToolCallDelta(0, '{ "command" :', "bash")]},
    {"tool_calls": [ToolCallDelta(0, ARGUMENTS[13:])]},
    {"tool_calls": [ToolCallDelta(1, "{}", "bash")]},
]
SHOWN = "".join(["hmm", "hello", ARGUMENTS, "{}"])


@asynccontextmanager
async def speaking(service: Running, policy: StreamingPolicy) -> AsyncGenerator[None, None]:
    working = asyncio.ensure_future(
        serve_streaming(policy, url=service.control_url, key=service.keys.trainer_key)
    )
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


@asynccontextmanager
async def asked(tmp_path: Path, policy: StreamingPolicy) -> AsyncGenerator[SessionCreated, None]:
    async with running_service(tmp_path, stream_grace_seconds=0.1) as service:
        session = await new_session(service)
        async with speaking(service, policy):
            yield session


def claude(session: SessionCreated) -> AsyncAnthropic:
    url = session.base_url.removesuffix("/v1")
    return AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


class Reader:
    """Counts what was shown, and lets the policy go on as soon as a piece is there."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._ends = [len("hm"), 3, 6, 8, 21, 8 + len(ARGUMENTS), len(SHOWN)]
        self.shown = ""

    def __call__(self, text: str) -> None:
        self.shown += text
        while self._ends and len(self.shown) >= self._ends[0]:
            self._ends.pop(0)
            self._steps.read.release()


async def test_the_anthropic_sdk_sees_thinking_text_and_arguments_while_they_are_sampled(
    tmp_path: Path,
) -> None:
    steps = Steps()
    read = Reader(steps)
    tool: ToolParam = {"name": "bash", "input_schema": {"type": "object"}}
    async with (
        asked(tmp_path, steps) as session,
        claude(session) as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], tools=[tool]
        ) as stream,
    ):
        async for event in stream:
            if event.type == "thinking":
                read(event.thinking)
            elif event.type == "text":
                read(event.text)
            elif event.type == "input_json":
                read(event.partial_json)
        message = await stream.get_final_message()
    assert read.shown == SHOWN
    assert message.stop_reason == "tool_use"
    thinking, text, first, second = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "hmm"
    assert thinking.signature.startswith("rock-")
    assert text.type == "text"
    assert text.text == "hello"
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert first.input == json.loads(ARGUMENTS)
    assert second.input == {}
    assert first.id != second.id
    assert steps.leases[0].streams


async def test_the_openai_sdk_sees_a_response_while_it_is_sampled(tmp_path: Path) -> None:
    steps = Steps()
    read = Reader(steps)
    tool: FunctionToolParam = {
        "type": "function",
        "name": "bash",
        "parameters": {"type": "object"},
        "strict": False,
    }
    async with (
        asked(tmp_path, steps) as session,
        agent(session.base_url) as client,
        client.responses.stream(model="m", input="hi", tools=[tool]) as stream,
    ):
        numbers: list[int] = []
        async for event in stream:
            numbers.append(event.sequence_number)
            if event.type in (
                "response.reasoning_summary_text.delta",
                "response.output_text.delta",
                "response.function_call_arguments.delta",
            ):
                read(getattr(event, "delta", ""))
        final = await stream.get_final_response()
    assert read.shown == SHOWN
    assert numbers == sorted(set(numbers))
    assert final.output_text == "hello"
    assert [item.type for item in final.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    calls = [item for item in final.output if item.type == "function_call"]
    assert [item.arguments for item in calls] == [ARGUMENTS, "{}"]


async def test_the_openai_sdk_sees_a_chat_completion_while_it_is_sampled(tmp_path: Path) -> None:
    steps = Steps()
    read = Reader(steps)
    async with (
        asked(tmp_path, steps) as session,
        agent(session.base_url) as client,
        client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        async for event in stream:
            if event.type == "chunk":
                for choice in event.chunk.choices:
                    delta = choice.delta
                    read(getattr(delta, "reasoning_content", None) or "")
                    read(delta.content or "")
                    for part in delta.tool_calls or ():
                        read((part.function and part.function.arguments) or "")
        final = await stream.get_final_completion()
    assert read.shown == SHOWN
    message = final.choices[0].message
    assert message.content == "hello"
    calls = [item for item in message.tool_calls or () if item.type == "function"]
    assert [item.function.arguments for item in calls] == [ARGUMENTS, "{}"]
    assert len({item.id for item in calls}) == 2


async def test_ids_of_calls_are_the_same_live_in_the_journal_and_in_a_later_reply(
    tmp_path: Path,
) -> None:
    steps = Steps()
    for _ in PIECES:
        steps.read.release()
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    key = {"Idempotency-Key": "one"}
    async with running_service(tmp_path) as service, speaking(service, steps):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            streamed = await http.post(
                "/v1/chat/completions", json={**body, "stream": True}, headers=key
            )
            plain = await http.post("/v1/chat/completions", json=body, headers=key)
        (kept,) = service.service.trajectory(session.session_id).calls  # pyright: ignore[reportArgumentType]
    live = [
        part["id"]
        for _, data in decoded(streamed.content)
        for choice in fields(data).get("choices", ())
        for part in choice["delta"].get("tool_calls", ())
        if "id" in part
    ]
    assert len(live) == 2
    assert live == [made["id"] for made in plain.json()["choices"][0]["message"]["tool_calls"]]
    assert live == [made.id for made in kept.choices[0].message.tool_calls or ()]


async def broken(lease: Lease, voice: Voice) -> Completion:
    """Says arguments that begin well and end badly."""
    await voice.say(tool_calls=[ToolCallDelta(0, '{"a": ', "f")])
    calls = [ToolCall(ToolFunction("f", '{"a": oops'))]
    return Completion(lease.lease_id, [Choice(AssistantMessage(tool_calls=calls), "tool_calls")])


async def test_arguments_that_cannot_be_finished_are_whole_in_the_retry_and_sampled_once(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as service, speaking(service, broken):
        session = await new_session(service)
        body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
        async with raw_agent(service, session.key) as http:
            streamed = await http.post("/v1/messages", json={**body, "stream": True})
            assert decoded(streamed.content)[-1][0] == "error"

            async def kept() -> bool:
                calls = service.service.trajectory(session.session_id).calls  # pyright: ignore[reportArgumentType]
                return calls[0].state == "undelivered"

            await eventually(kept)
            again = await http.post("/v1/messages", json=body)
        (made,) = service.service.trajectory(session.session_id).calls  # pyright: ignore[reportArgumentType]
    assert again.json()["content"][0]["input"] == {"malformed_arguments": '{"a": oops'}
    assert made.deliveries == 1


async def failing(lease: Lease, voice: Voice) -> Completion:
    del lease
    await voice.say("half")
    raise CallFailed("the engine died")


async def test_a_failure_after_the_first_byte_is_the_dialects_error_event(tmp_path: Path) -> None:
    async with asked(tmp_path, failing) as session:
        async with agent(session.base_url) as client:
            with pytest.raises(openai.APIError, match="the engine died"):
                async with client.chat.completions.stream(
                    model="m", messages=[{"role": "user", "content": "chat"}]
                ) as stream:
                    await stream.get_final_completion()
            events = await client.responses.create(model="m", input="responses", stream=True)
            last = [event async for event in events][-1]
            assert last.type == "response.failed"
            assert last.response.error is not None
            assert "the engine died" in last.response.error.message
        async with claude(session) as client:
            with pytest.raises(anthropic.APIStatusError, match="the engine died"):
                async with client.messages.stream(
                    model="m", max_tokens=5, messages=[{"role": "user", "content": "messages"}]
                ) as messages:
                    await messages.get_final_message()
