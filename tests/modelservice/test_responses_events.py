"""Golden wire tests of what the Responses dialect replies: the object, its events, its errors."""

import json
from typing import Any

import pytest

from rock.errors import (
    CallFailed,
    ContextLengthExceeded,
    QueueFull,
    RockError,
    ServiceUnavailable,
    SessionClosed,
)
from rock.modelservice.dialects.base import NO_HISTORY, StreamEncoder
from rock.modelservice.dialects.responses import ResponsesDialect
from tests.modelservice.golden import answer, call, decoded, events, reply

DIALECT = ResponsesDialect(now=lambda: 1700000000.9)
HELLO: dict[str, Any] = {"model": "m", "input": "hi"}
BEGUN: dict[str, Any] = {
    "id": "resp_c1",
    "object": "response",
    "created_at": 1700000000,
    "status": "in_progress",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "model": "m",
    "output": [],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "tool_choice": "auto",
    "tools": [],
    "usage": None,
}
USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 17,
}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def encoder() -> StreamEncoder:
    return DIALECT.parse(json.dumps({**HELLO, "stream": True}).encode(), {}).renderer.stream("c1")


def test_a_reply_is_a_finished_response() -> None:
    body = {**HELLO, "include": ["reasoning.encrypted_content"], "parallel_tool_calls": False}
    summary = [{"type": "summary_text", "text": "hm"}]
    assert reply(DIALECT, body, answer("hello", reasoning="hm")) == {
        **BEGUN,
        "status": "completed",
        "parallel_tool_calls": False,
        "output": [
            {
                "type": "reasoning",
                "id": "rs_c1",
                "summary": summary,
                "encrypted_content": "rock-c1",
            },
            {
                "type": "message",
                "id": "msg_c1",
                "role": "assistant",
                "status": "completed",
                "content": [text_part("hello")],
            },
        ],
        "usage": USAGE,
    }


def test_a_cut_answer_is_incomplete() -> None:
    given = reply(DIALECT, HELLO, answer("hel", finish="length"))
    assert given["status"] == "incomplete"
    assert given["incomplete_details"] == {"reason": "max_output_tokens"}
    assert given["output"][0]["status"] == "incomplete"
    names = [name for name, _ in events(DIALECT, HELLO, answer("hel", finish="length"))]
    assert names[-1] == "response.incomplete"


def test_unknown_usage_is_null() -> None:
    assert reply(DIALECT, HELLO, answer(usage=None))["usage"] is None


def test_a_stream_is_the_full_sequence_of_events() -> None:
    given = answer("hello", reasoning="hm", calls=[call("t1", "ls", "{}")])
    sent = events(DIALECT, {**HELLO, "stream": True}, given)
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))
    assert all(name == data["type"] for name, data in sent)
    seen = [{k: v for k, v in data.items() if k != "sequence_number"} for _, data in sent]
    reasoning: dict[str, Any] = {"type": "reasoning", "id": "rs_c1", "summary": []}
    message = {"type": "message", "id": "msg_c1", "role": "assistant"}
    function = {"type": "function_call", "id": "fc_t1", "call_id": "t1", "name": "ls"}
    summary = {"type": "summary_text", "text": "hm"}
    done = [
        {**reasoning, "summary": [summary]},
        {**message, "status": "completed", "content": [text_part("hello")]},
        {**function, "arguments": "{}", "status": "completed"},
    ]
    first: dict[str, Any] = {"item_id": "rs_c1", "output_index": 0, "summary_index": 0}
    second: dict[str, Any] = {"item_id": "msg_c1", "output_index": 1, "content_index": 0}
    third: dict[str, Any] = {"item_id": "fc_t1", "output_index": 2}
    added = "response.output_item.added"
    assert seen == [
        {"type": "response.created", "response": BEGUN},
        {"type": "response.in_progress", "response": BEGUN},
        {"type": added, "output_index": 0, "item": reasoning},
        {
            "type": "response.reasoning_summary_part.added",
            **first,
            "part": {"type": "summary_text", "text": ""},
        },
        {"type": "response.reasoning_summary_text.delta", **first, "delta": "hm"},
        {"type": "response.reasoning_summary_text.done", **first, "text": "hm"},
        {"type": "response.reasoning_summary_part.done", **first, "part": summary},
        {"type": "response.output_item.done", "output_index": 0, "item": done[0]},
        {
            "type": added,
            "output_index": 1,
            "item": {**message, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **second, "part": text_part("")},
        {"type": "response.output_text.delta", **second, "delta": "hello", "logprobs": []},
        {"type": "response.output_text.done", **second, "text": "hello", "logprobs": []},
        {"type": "response.content_part.done", **second, "part": text_part("hello")},
        {"type": "response.output_item.done", "output_index": 1, "item": done[1]},
        {
            "type": added,
            "output_index": 2,
            "item": {**function, "arguments": "", "status": "in_progress"},
        },
        {"type": "response.function_call_arguments.delta", **third, "delta": "{}"},
        {
            "type": "response.function_call_arguments.done",
            **third,
            "arguments": "{}",
        },
        {"type": "response.output_item.done", "output_index": 2, "item": done[2]},
        {
            "type": "response.completed",
            "response": {**BEGUN, "status": "completed", "output": done, "usage": USAGE},
        },
    ]


def test_keepalives_open_the_stream_once_and_numbers_go_on() -> None:
    stream = encoder()
    frames = [stream.keepalive(), stream.keepalive(), *stream.answer(answer("hello"))]
    sent = decoded(b"".join(frames))
    names = [name for name, _ in sent]
    assert names[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert names.count("response.created") == 1
    assert [data["sequence_number"] for _, data in sent] == list(range(len(sent)))


@pytest.mark.parametrize(
    ("exc", "code"),
    [
        (ContextLengthExceeded("too long"), "context_length_exceeded"),
        (QueueFull("full", retry_after_seconds=3), "rate_limit_exceeded"),
        (SessionClosed("closed"), "invalid_prompt"),
        (CallFailed("no answer"), "call_failed"),
        (ServiceUnavailable("stopping"), "service_unavailable"),
    ],
)
def test_a_late_failure_is_a_failed_response(exc: RockError, code: str) -> None:
    *opening, (name, data) = decoded(encoder().error(exc))
    assert [name for name, _ in opening] == ["response.created", "response.in_progress"]
    assert name == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"]["code"] == code
    assert exc.message in data["response"]["error"]["message"]


def test_a_late_rate_limit_says_the_wait_in_its_text() -> None:
    frames = encoder().error(QueueFull("full", retry_after_seconds=3))
    assert "try again in 3s" in decoded(frames)[-1][1]["response"]["error"]["message"]


def test_counting_tokens_takes_the_same_body() -> None:
    route = DIALECT.count_routes["/responses/input_tokens"]
    request = route.parse(json.dumps(HELLO).encode(), NO_HISTORY)
    assert [json.loads(bytes(message)) for message in request.messages] == [
        {"role": "user", "content": "hi"}
    ]
    counted = json.loads(route.render(7))
    assert counted == {"object": "response.input_tokens", "input_tokens": 7}
