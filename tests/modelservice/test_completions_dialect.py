"""Golden wire tests of the legacy completions dialect."""

import json
from typing import Any

import pytest

from rock.errors import BadRequest, CallFailed, RockError
from rock.modelservice.dialects.completions import CompletionsDialect
from rock.modelservice.wire import Usage
from tests.modelservice.golden import answer, decoded, events, parsed, plain, reply

DIALECT = CompletionsDialect(now=lambda: 1700000000.9)
HELLO: dict[str, Any] = {"model": "m", "prompt": "def f("}
USAGE = Usage(prompt_tokens=3, completion_tokens=2)
HEAD = {"id": "cmpl-c1", "object": "text_completion", "created": 1700000000, "model": "m"}


@pytest.mark.parametrize("prompt", ["def f(", ["def f("]])
def test_a_prompt_is_raw_text_and_no_message_of_a_chat(prompt: Any) -> None:
    request = parsed(DIALECT, {**HELLO, "prompt": prompt})
    assert plain(request.messages) == [{"role": "prompt", "content": "def f("}]
    assert request.extra == {}


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_may_be_token_ids(prompt: Any) -> None:
    messages = parsed(DIALECT, {**HELLO, "prompt": prompt}).messages
    assert plain(messages) == [{"role": "prompt", "content": [1, 2, 3]}]


def test_sampling_has_its_place_and_the_rest_is_kept() -> None:
    request = parsed(
        DIALECT,
        {
            **HELLO,
            "max_tokens": 7,
            "temperature": 0.5,
            "stop": "\n",
            "seed": 4,
            "n": 2,
            "best_of": 2,
            "presence_penalty": -1,
            "suffix": "end",
            "logit_bias": {"5": 1},
            "user": None,
            "logprobs": 0,
        },
    )
    assert (request.max_tokens, request.temperature, request.seed, request.n) == (7, 0.5, 4, 2)
    assert request.stop == ["\n"]
    assert request.presence_penalty == -1.0
    assert plain(request.extra) == {
        "suffix": "end",
        "logit_bias": {"5": 1},
        "logprobs": 0,
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"n": 0}, "n"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"model": None}, "model"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(DIALECT, {**HELLO, **fields})
    assert caught.value.param == param
    assert param in caught.value.message


def test_a_reply_is_text() -> None:
    assert reply(DIALECT, HELLO, answer("x):", usage=USAGE)) == {
        **HEAD,
        "choices": [{"index": 0, "text": "x):", "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_unknown_usage_is_absent() -> None:
    assert "usage" not in reply(DIALECT, HELLO, answer("x", usage=None))


def test_log_probabilities_are_shown_to_a_client_that_asked() -> None:
    given = answer("x", ids=[5, 6], logprobs=[-0.5, -0.25])
    [choice] = reply(DIALECT, {**HELLO, "logprobs": 1}, given)["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:5", "token_id:6"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.25]


def test_a_stream_is_chunks_and_usage_where_asked() -> None:
    body = {**HELLO, "stream": True, "stream_options": {"include_usage": True}}
    chunk, usage, done = events(DIALECT, body, answer("x):", finish="length", usage=USAGE))
    choice = {"index": 0, "text": "x):", "finish_reason": "length", "logprobs": None}
    assert chunk == (None, {**HEAD, "choices": [choice]})
    assert usage[1]["choices"] == []
    assert usage[1]["usage"]["total_tokens"] == 5
    assert done == (None, "[DONE]")


def test_the_keepalive_is_an_empty_chunk_and_a_late_failure_an_error() -> None:
    encoder = DIALECT.parse(json.dumps(HELLO).encode(), {}).renderer.stream("c1")
    [(_, data)] = decoded(encoder.keepalive())
    assert data["choices"][0]["text"] == ""
    assert data["choices"][0]["finish_reason"] is None
    [(_, data)] = decoded(encoder.error(CallFailed("no answer")))
    assert data["error"]["code"] == "call_failed"


def test_errors_have_openais_shape() -> None:
    given = DIALECT.error(RockError("x"))
    assert given.status == 500
    assert json.loads(given.body)["error"]["type"] == "server_error"
