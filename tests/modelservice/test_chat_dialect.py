"""Golden wire tests of the chat dialect: request to canonical form, answer to JSON and events."""

import json
from typing import Any

import msgspec
import pytest

from rock.errors import (
    BadRequest,
    CallFailed,
    ContextLengthExceeded,
    QueueFull,
    RockError,
    SessionClosed,
    Unauthorized,
)
from rock.modelservice.dialects.chat import ChatDialect
from rock.modelservice.dialects.sse import Decoder
from rock.modelservice.graph import tokens
from rock.modelservice.graph.answer import Answer, AnswerChoice
from rock.modelservice.graph.rows import CallTokens
from rock.modelservice.wire import (
    AssistantMessage,
    FinishReason,
    ToolCall,
    ToolFunction,
    Usage,
)
from rock.types import CallId

DIALECT = ChatDialect(now=lambda: 1700000000.9)
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any):
    return DIALECT.parse(json.dumps({**HELLO, **fields}).encode(), {})


def choice(
    content: str | None = "hello",
    *,
    tool_calls: list[ToolCall] | None = None,
    finish_reason: FinishReason = "stop",
    reasoning: str | None = None,
    ids: list[int] | None = None,
    logprobs: list[float] | None = None,
) -> AnswerChoice:
    message = AssistantMessage(content=content, tool_calls=tool_calls, reasoning_content=reasoning)
    return AnswerChoice(
        message=message,
        finish_reason=finish_reason,
        packed_ids=None if ids is None else tokens.pack_ids(ids),
        packed_logprobs=None if logprobs is None else tokens.pack_logprobs(logprobs),
    )


def answer(*choices: AnswerChoice, usage: Usage | None = None) -> Answer:
    return Answer(
        call_id=CallId("c1"),
        model="m",
        choices=choices or (choice(),),
        usage=usage,
        policy_version=3,
        untrainable=None,
        tokens=CallTokens(
            call_id=CallId("c1"),
            policy_version=3,
            samples=(),
            prompt=tokens.pack_ids([1, 2]),
        ),
    )


def frames(data: list[bytes]) -> list[Any]:
    events = Decoder().feed(b"".join(data))
    return [event.data if event.data == "[DONE]" else json.loads(event.data) for event in events]


def test_every_known_field_has_its_place_and_the_rest_is_kept_as_sent() -> None:
    body = b"""{"model": "m", "messages": [{"role": "developer", "content": "be  good"},
        {"role":"system","content":[{"type":"text","text":"x"}]}, {"role": "user", "content": "hi"}],
        "tools": [{"type": "function",  "function": {"name": "f"}}], "tool_choice": "auto",
        "parallel_tool_calls": false, "response_format": {"type": "json_object"},
        "temperature": 0, "top_p": 0.5, "max_tokens": 9, "max_completion_tokens": 7, "stop": "END",
        "seed": 4, "n": 2, "presence_penalty": 1, "frequency_penalty": -1, "reasoning_effort": "low",
        "stream": true, "stream_options": {"include_usage": true, "new_option": 1},
        "user": "u", "metadata": {"k":  [1, 2.50]}}"""
    parsed = DIALECT.parse(body, {})
    request = parsed.request
    assert parsed.stream is True
    assert [bytes(message) for message in request.messages][:2] == [
        b'{"role": "developer", "content": "be  good"}',
        b'{"role":"system","content":[{"type":"text","text":"x"}]}',
    ]
    assert [bytes(tool) for tool in request.tools or ()] == [
        b'{"type": "function",  "function": {"name": "f"}}'
    ]
    assert bytes(request.tool_choice or b"") == b'"auto"'
    assert bytes(request.response_format or b"") == b'{"type": "json_object"}'
    assert request.parallel_tool_calls is False
    assert (request.temperature, request.top_p, request.max_tokens) == (0.0, 0.5, 7)
    assert (request.stop, request.seed, request.n) == (["END"], 4, 2)
    assert (request.presence_penalty, request.frequency_penalty) == (1.0, -1.0)
    assert request.reasoning_effort == "low"
    assert {name: bytes(raw) for name, raw in request.extra.items()} == {
        "user": b'"u"',
        "metadata": b'{"k":  [1, 2.50]}',
    }


def test_null_is_the_same_as_absent() -> None:
    fields = [
        "tools",
        "tool_choice",
        "stop",
        "n",
        "temperature",
        "stream",
        "stream_options",
        "seed",
    ]
    parsed = parse(**dict.fromkeys(fields))
    assert parsed.request == parse().request
    assert parsed.stream is False


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": 3}, "model", ["expected a string", "got 3"]),
        ({"messages": "hi"}, "messages", ["expected a list of messages", "got 'hi'"]),
        ({"messages": []}, "messages", ["empty"]),
        ({"messages": [{"role": "user"}, 5]}, "messages[1]", ["an object", "got 5"]),
        ({"messages": [{"content": "x"}]}, "messages[0]", ["role"]),
        ({"temperature": "hot"}, "temperature", ["expected a number", "got 'hot'"]),
        ({"temperature": -1}, "temperature", ["got -1"]),
        ({"top_p": 2}, "top_p", ["from 0.0 to 1.0"]),
        ({"n": 0}, "n", ["from 1 to 128", "got 0"]),
        ({"n": 10**9}, "n", ["from 1 to 128"]),
        ({"n": 1.5}, "n", ["an integer", "got 1.5"]),
        ({"max_tokens": 0}, "max_tokens", ["got 0"]),
        ({"stop": {"a": 1}}, "stop", ["a string or a list of strings", "got an object"]),
        ({"stop": [1]}, "stop", ["a list of strings", "got an array"]),
        ({"tools": {}}, "tools", ["a list of objects", "got an object"]),
        ({"tools": ["x"]}, "tools[0]", ["an object", "got 'x'"]),
        ({"tool_choice": 1}, "tool_choice", ["a string or an object", "got 1"]),
        ({"response_format": "json"}, "response_format", ["an object", "got 'json'"]),
        ({"stream": "yes"}, "stream", ["true or false", "got 'yes'"]),
        ({"stream_options": []}, "stream_options", ["an object", "got an array"]),
        ({"logprobs": 1}, "logprobs", ["true or false", "got 1"]),
        ({"seed": "s" * 100}, "seed", ["a string of 100 characters"]),
    ],
)
def test_a_wrong_field_is_named_with_what_was_given_and_expected(
    fields: dict[str, Any], param: str, words: list[str]
) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is empty"),
        (b"{", "not valid JSON"),
        (b"[1]", "must be a JSON object, got an array"),
        (b'"x"', "got 'x'"),
        (b'{"model": "\xff"}', "not UTF-8"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
        (b'{"messages": []}', "model: missing"),
        (b'{"model": "m"}', "messages: missing"),
    ],
)
def test_a_body_that_is_no_request_is_refused_with_the_reason(body: bytes, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        DIALECT.parse(body, {})


def test_a_plain_reply_is_a_chat_completion() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4)
    reply = json.loads(parse().renderer.reply(answer(usage=usage)))
    assert reply == {
        "id": "chatcmpl-c1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hello"},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 2,
            "total_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }


def test_unknown_usage_is_absent_and_never_zero() -> None:
    assert "usage" not in json.loads(parse().renderer.reply(answer()))
    encoder = parse(stream=True, stream_options={"include_usage": True}).renderer.stream("c1")
    chunks = frames(list(encoder.answer(answer())))
    assert all(chunk == "[DONE]" or chunk["usage"] is None for chunk in chunks)


def test_tool_calls_reasoning_and_several_choices_are_written() -> None:
    call = ToolCall(id="call_1", function=ToolFunction(name="f", arguments='{"a": 1'))
    one = choice(None, tool_calls=[call], reasoning="hmm")
    two = choice("cut", finish_reason="length")
    reply = json.loads(parse(n=2).renderer.reply(answer(one, two)))
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hmm",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"a": 1'},
                    }
                ],
            },
            "finish_reason": "tool_calls",
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": "cut"},
            "finish_reason": "length",
        },
    ]


def test_tokens_are_shown_to_a_client_that_asked() -> None:
    sampled = choice(ids=[7, 8], logprobs=[-0.5, -0.25])
    asked = json.loads(parse(logprobs=True, return_token_ids=True).renderer.reply(answer(sampled)))
    assert asked["prompt_token_ids"] == [1, 2]
    assert asked["choices"][0]["token_ids"] == [7, 8]
    content = asked["choices"][0]["logprobs"]["content"]
    assert [(item["token"], item["logprob"]) for item in content] == [
        ("token_id:7", -0.5),
        ("token_id:8", -0.25),
    ]
    silent = json.loads(parse().renderer.reply(answer(sampled)))
    assert "prompt_token_ids" not in silent
    assert set(silent["choices"][0]) == {"index", "message", "finish_reason"}


def test_a_stream_says_the_same_as_the_plain_reply_in_order() -> None:
    calls = [
        ToolCall(id="call_1", function=ToolFunction(name="f", arguments='{"a":1}')),
        ToolCall(id="call_2", function=ToolFunction(name="g", arguments="{}")),
    ]
    usage = Usage(prompt_tokens=5, completion_tokens=2)
    renderer = parse(stream=True, stream_options={"include_usage": True}).renderer
    encoder = renderer.stream("c1")
    whole = answer(choice("see", tool_calls=calls, reasoning="hmm"), usage=usage)
    chunks = frames([encoder.keepalive(), *encoder.answer(whole)])
    assert chunks[-1] == "[DONE]"
    assert {chunk["id"] for chunk in chunks[:-1]} == {"chatcmpl-c1"}
    assert {chunk["object"] for chunk in chunks[:-1]} == {"chat.completion.chunk"}
    assert [chunk["choices"][0]["delta"] for chunk in chunks[:-2]] == [
        {},
        {"role": "assistant", "content": None},
        {"reasoning_content": "hmm"},
        {"content": "see"},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":1}'}}]},
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "call_2",
                    "type": "function",
                    "function": {"name": "g", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
        {},
    ]
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-2]]
    assert finishes == [None] * 8 + ["tool_calls"]
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def test_a_stream_without_include_usage_has_none() -> None:
    encoder = parse(stream=True).renderer.stream("c1")
    usage = Usage(prompt_tokens=5, completion_tokens=2)
    chunks = frames(list(encoder.answer(answer(usage=usage))))
    assert not any("usage" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("exc", "status", "kind", "code", "headers"),
    [
        (BadRequest("x", param="n"), 400, "invalid_request_error", "invalid_request", {}),
        (
            ContextLengthExceeded("x"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            {},
        ),
        (Unauthorized("x"), 401, "authentication_error", "invalid_api_key", {}),
        (SessionClosed("x"), 410, "invalid_request_error", "session_closed", {}),
        (
            QueueFull("x", retry_after_seconds=600),
            429,
            "rate_limit_error",
            "queue_full",
            {"Retry-After": "30"},
        ),
        (CallFailed("x"), 502, "server_error", "call_failed", {"x-should-retry": "false"}),
    ],
)
def test_errors_have_the_shape_that_clients_read(
    exc: RockError, status: int, kind: str, code: str, headers: dict[str, str]
) -> None:
    reply = DIALECT.error(exc)
    assert (reply.status, dict(reply.headers)) == (status, headers)
    param = exc.param if isinstance(exc, BadRequest) else None
    assert msgspec.json.decode(reply.body) == {
        "error": {"message": "x", "type": kind, "param": param, "code": code}
    }
    encoder = parse(stream=True).renderer.stream("c1")
    assert frames([encoder.error(exc)]) == [msgspec.json.decode(reply.body)]


def test_every_choice_of_a_stream_has_its_own_index_from_its_first_word_to_its_end() -> None:
    parsed = parse(model="m", messages=[{"role": "user", "content": "hi"}], n=3, stream=True)
    words = [choice(content=f"word {number}") for number in range(3)]
    chunks = frames(list(parsed.renderer.stream("c1").answer(answer(*words))))
    said: dict[int, str] = {}
    ended: list[int] = []
    for part in (part for chunk in chunks if chunk != "[DONE]" for part in chunk["choices"]):
        said[part["index"]] = said.get(part["index"], "") + (part["delta"].get("content") or "")
        ended += [part["index"]] * (part["finish_reason"] is not None)
    assert said == {0: "word 0", 1: "word 1", 2: "word 2"}
    assert ended == [0, 1, 2]
