"""Golden wire tests of the Anthropic dialect: request to canonical form, answer to JSON and events."""

import json
from typing import Any

import pytest

from rock.errors import (
    BadRequest,
    CallFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    Forbidden,
    JournalError,
    NotFound,
    PayloadTooLarge,
    QueueFull,
    RockError,
    ServiceUnavailable,
    SessionClosed,
    Unauthorized,
    UpstreamError,
)
from rock.modelservice.dialects.anthropic import AnthropicDialect
from rock.modelservice.dialects.base import NO_HISTORY
from rock.modelservice.dialects.counting import estimate_tokens
from tests.modelservice.golden import answer, call, decoded, events, parsed, plain, reply

DIALECT = AnthropicDialect()
HELLO: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hi"}],
}
PNG: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"},
}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBOR"}}


def messages_of(*messages: dict[str, Any], **fields: Any) -> Any:
    return plain(parsed(DIALECT, {**HELLO, **fields, "messages": list(messages)}).messages)


def refusal(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parsed(DIALECT, {**HELLO, **fields})
    return caught.value


def test_an_agents_conversation_becomes_a_chat_conversation() -> None:
    messages = messages_of(
        {"role": "user", "content": [{"type": "text", "text": "list it"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "rock-c1"},
                {"type": "text", "text": "looking"},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "/é", "n": 1.0}},
                {"type": "tool_use", "id": "t2", "name": "ls", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "a b"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "denied"}, PNG],
                },
                {"type": "text", "text": "go on", "cache_control": {"type": "ephemeral"}},
            ],
        },
        system="be brief",
    )
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "list it"},
        {
            "role": "assistant",
            "content": "looking",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "ls", "arguments": '{"path":"/é","n":1.0}'},
                },
                {"id": "t2", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "a b", "tool_call_id": "t1"},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "denied"}, PNG_PART],
            "tool_call_id": "t2",
            "is_error": True,
        },
        {"role": "user", "content": "go on"},
    ]


def test_tool_arguments_keep_the_spelling_that_was_sent() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t",'
        b'"name":"f","input":{ "a" : 1.50 , "b":"\\u00e9" }}]}]}'
    )
    request = DIALECT.parse(body, {}).request
    [message] = plain(request.messages)
    assert message["tool_calls"][0]["function"]["arguments"] == '{ "a" : 1.50 , "b":"\\u00e9" }'


def test_the_billing_block_is_kept_out_of_the_prompt() -> None:
    billing = "x-anthropic-billing-header: cc_version=2; cch=1a2b"
    blocks = [
        {"type": "text", "text": billing},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Rules."},
    ]
    request = parsed(DIALECT, {**HELLO, "system": blocks})
    assert plain(request.messages)[0] == {
        "role": "system",
        "content": [
            {"type": "text", "text": "You are an agent."},
            {"type": "text", "text": "Rules."},
        ],
    }
    assert plain(request.extra)["anthropic"] == {"x-anthropic-billing-header": billing}


def test_a_system_message_may_stand_among_the_others() -> None:
    messages = messages_of(
        {"role": "user", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "new rule"}]},
    )
    assert messages[1] == {"role": "system", "content": "new rule"}


def test_documents_and_search_results_become_parts() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    text = {"type": "text", "media_type": "text/plain", "data": "plain"}
    blocks = [
        {"type": "document", "source": pdf, "title": "a.pdf"},
        {"type": "document", "source": text, "context": "notes"},
        {"type": "document", "source": {"type": "content", "content": [PNG]}},
        {"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}},
        {
            "type": "search_result",
            "source": "http://x",
            "title": "X",
            "content": [{"type": "text", "text": "found"}],
        },
        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
    ]
    [message] = messages_of({"role": "user", "content": blocks})
    assert message["content"] == [
        {
            "type": "file",
            "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "a.pdf"},
        },
        {"type": "text", "text": "plain", "context": "notes"},
        PNG_PART,
        {"type": "file", "file": {"file_url": "http://x/y.pdf"}},
        {"type": "text", "text": "found", "title": "X", "source": "http://x"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]


def test_thinking_that_another_service_signed_travels_with_its_message() -> None:
    foreign = {"type": "thinking", "thinking": "hm", "signature": "EqQB"}
    sealed = {"type": "redacted_thinking", "data": "abc"}
    [message] = messages_of({"role": "assistant", "content": [foreign, sealed]})
    assert message["reasoning_content"] == "hm"
    assert message["thinking_blocks"] == [foreign, sealed]


def test_a_found_tool_is_told_to_the_model() -> None:
    found = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "tool_reference", "tool_name": "WebFetch"}],
    }
    [message] = messages_of({"role": "user", "content": [found]})
    [part] = message["content"]
    assert part["tool_reference"] == "WebFetch"
    assert "WebFetch" in part["text"]


def test_sampling_and_tools_have_their_place() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    request = parsed(
        DIALECT,
        {
            **HELLO,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "stop_sequences": ["END"],
            "tools": [
                {
                    "name": "f",
                    "description": "does f",
                    "input_schema": schema,
                    "strict": True,
                    "defer_loading": True,
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "bash_20250124", "name": "bash"},
            ],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {
                "effort": "high",
                "format": {"type": "json_schema", "schema": schema},
            },
        },
    )
    assert (request.temperature, request.top_p, request.max_tokens) == (0.5, 0.9, 64)
    assert request.stop == ["END"]
    assert request.reasoning_effort == "high"
    assert plain(request.tool_choice) == "required"
    assert request.parallel_tool_calls is False
    function, bash = plain(request.tools)
    assert function == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "does f",
            "parameters": schema,
            "strict": True,
        },
    }
    assert bash["function"]["name"] == "bash"
    assert "command" in bash["function"]["parameters"]["properties"]
    assert plain(request.response_format) == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": schema, "strict": True},
    }
    extra = plain(request.extra)
    assert extra == {"top_k": 40, "anthropic": {"tools": {"f": {"defer_loading": True}}}}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice_is_said_in_chats_words(given: Any, wanted: Any) -> None:
    assert plain(parsed(DIALECT, {**HELLO, "tool_choice": given}).tool_choice) == wanted


def test_what_has_no_place_is_kept_as_sent() -> None:
    thinking = {"type": "adaptive", "display": "omitted"}
    request = parsed(
        DIALECT,
        {
            **HELLO,
            "thinking": thinking,
            "metadata": {"user_id": '{"session_id":"s"}'},
            "context_management": {"edits": []},
            "service_tier": "auto",
            "cache_control": {"type": "ephemeral"},
            "new_field": [1],
        },
    )
    assert plain(request.extra)["anthropic"] == {
        "thinking": thinking,
        "metadata": {"user_id": '{"session_id":"s"}'},
        "context_management": {"edits": []},
        "service_tier": "auto",
        "new_field": [1],
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]}]},
            "messages[0].content[0]",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"system": 4}, "system"),
        ({"system": [{"type": "text"}]}, "system[0]"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    exc = refusal(**fields)
    assert exc.param == param
    assert param in exc.message
    assert json.loads(DIALECT.error(exc).body) == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": exc.message},
    }


def test_a_reply_has_thinking_text_and_tools_as_blocks() -> None:
    given = answer(
        "on it", reasoning="hm", calls=[call("t1", "ls", '{ "p":1.0}'), call("t2", "pwd", "")]
    )
    assert reply(DIALECT, HELLO, given) == {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "rock-c1"},
            {"type": "text", "text": "on it"},
            {"type": "tool_use", "id": "t1", "name": "ls", "input": {"p": 1.0}},
            {"type": "tool_use", "id": "t2", "name": "pwd", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 5},
    }


def test_malformed_arguments_are_wrapped_and_come_back_as_the_model_wrote_them() -> None:
    for written in ('{"p": ', "[1]", "7", '{"a":1}}'):
        [block] = reply(DIALECT, HELLO, answer(None, calls=[call("t1", "f", written)]))["content"]
        assert block["input"] == {"malformed_arguments": written}
        [message] = messages_of({"role": "assistant", "content": [block]})
        assert message["tool_calls"][0]["function"]["arguments"] == written


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")],
)
def test_the_stop_reason_is_translated(finish: Any, reason: str) -> None:
    assert reply(DIALECT, HELLO, answer(finish=finish))["stop_reason"] == reason


def test_unknown_usage_has_no_numbers() -> None:
    assert reply(DIALECT, HELLO, answer(usage=None))["usage"] == {}


def test_a_stream_is_the_whole_sequence_of_named_events() -> None:
    given = answer("hello", reasoning="hm", calls=[call("t1", "ls", '{"p": 1}')])
    start: dict[str, Any] = {
        "id": "msg_c1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 0},
    }
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    use: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}

    def start_of(index: int, block: Any) -> Any:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def delta(index: int, **fields: Any) -> Any:
        return {"type": "content_block_delta", "index": index, "delta": fields}

    def stop(index: int) -> Any:
        return {"type": "content_block_stop", "index": index}

    wanted: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        start_of(0, thinking),
        delta(0, type="thinking_delta", thinking="hm"),
        delta(0, type="signature_delta", signature="rock-c1"),
        stop(0),
        start_of(1, {"type": "text", "text": ""}),
        delta(1, type="text_delta", text="hello"),
        stop(1),
        start_of(2, use),
        delta(2, type="input_json_delta", partial_json='{"p": 1}'),
        stop(2),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
    assert events(DIALECT, {**HELLO, "stream": True}, given) == [(e["type"], e) for e in wanted]


def test_the_keepalive_is_a_ping_and_a_late_failure_an_error_event() -> None:
    encoder = DIALECT.parse(json.dumps(HELLO).encode(), {}).renderer.stream("c1")
    assert decoded(encoder.keepalive()) == [("ping", {"type": "ping"})]
    [(name, data)] = decoded(encoder.error(ServiceUnavailable("stopping")))
    assert name == "error"
    assert data == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "stopping"},
    }


@pytest.mark.parametrize(
    ("exc", "status", "kind"),
    [
        (BadRequest("x"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (Forbidden("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (SessionClosed("x"), 410, "invalid_request_error"),
        (PayloadTooLarge("x"), 413, "request_too_large"),
        (QueueFull("x"), 429, "rate_limit_error"),
        (RockError("x"), 500, "api_error"),
        (CallFailed("x"), 502, "api_error"),
        (UpstreamError("x"), 502, "api_error"),
        (JournalError("x"), 503, "api_error"),
        (DeadlineExceeded("x"), 504, "timeout_error"),
        (ServiceUnavailable("x"), 529, "overloaded_error"),
    ],
)
def test_an_error_has_the_status_and_type_that_clients_act_on(
    exc: RockError, status: int, kind: str
) -> None:
    given = DIALECT.error(exc)
    assert given.status == status
    assert json.loads(given.body) == {"type": "error", "error": {"type": kind, "message": "x"}}


def test_a_full_queue_says_when_to_come_back() -> None:
    assert DIALECT.error(QueueFull("x", retry_after_seconds=90)).headers == {"Retry-After": "30"}
    assert DIALECT.error(CallFailed("x")).headers == {"x-should-retry": "false"}


def test_an_overflow_has_the_words_that_make_clients_compact() -> None:
    given = DIALECT.error(ContextLengthExceeded("maximum context length is 10 tokens"))
    error = json.loads(given.body)["error"]
    assert given.status == 400
    assert error["type"] == "invalid_request_error"
    assert error["message"] == "prompt is too long: maximum context length is 10 tokens"


def test_counting_tokens_takes_the_same_body_and_an_estimate_grows_with_it() -> None:
    route = DIALECT.count_routes["/messages/count_tokens"]

    def counted(**fields: Any) -> int:
        body = {**HELLO, **fields}
        del body["max_tokens"]
        return estimate_tokens(route.parse(json.dumps(body).encode(), NO_HISTORY))

    few = counted()
    many = counted(messages=[{"role": "user", "content": "word " * 1000}])
    image = counted(messages=[{"role": "user", "content": [PNG]}])
    assert 1 <= few < 50
    assert 1000 <= many < 2500
    assert 1000 <= image < 3000
    assert route.render(7) == b'{"input_tokens":7}'
