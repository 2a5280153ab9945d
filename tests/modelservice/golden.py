"""What the golden tests of the dialects share: answers to render, and canonical parts to compare."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from rock.modelservice.dialects.base import Dialect
from rock.modelservice.dialects.sse import Decoder
from rock.modelservice.graph import tokens
from rock.modelservice.graph.answer import Answer, AnswerChoice
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    FinishReason,
    ToolCall,
    ToolFunction,
    Usage,
)
from rock.types import CallId

USAGE = Usage(prompt_tokens=12, completion_tokens=5, cached_tokens=4)


def answer(
    content: str | None = "hello",
    *,
    reasoning: str | None = None,
    calls: list[ToolCall] | None = None,
    finish: FinishReason = "stop",
    usage: Usage | None = USAGE,
    ids: list[int] | None = None,
    logprobs: list[float] | None = None,
) -> Answer:
    choice = AnswerChoice(
        message=AssistantMessage(content=content, reasoning_content=reasoning, tool_calls=calls),
        finish_reason=finish,
        packed_ids=None if ids is None else tokens.pack_ids(ids),
        packed_logprobs=None if logprobs is None else tokens.pack_logprobs(logprobs),
    )
    return Answer(
        call_id=CallId("c1"),
        model="m",
        choices=(choice,),
        usage=usage,
        policy_version=3,
        untrainable=None,
    )


def call(id: str, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=id, function=ToolFunction(name=name, arguments=arguments))


def parsed(dialect: Dialect, body: dict[str, Any]) -> CanonicalRequest:
    return dialect.parse(msgspec.json.encode(body), {}).request


def plain(value: object) -> Any:
    """A value with raw JSON in it, as Python objects."""
    return msgspec.json.decode(msgspec.json.encode(value))


def reply(dialect: Dialect, body: dict[str, Any], given: Answer) -> Any:
    renderer = dialect.parse(msgspec.json.encode(body), {}).renderer
    return msgspec.json.decode(renderer.reply(given))


def events(dialect: Dialect, body: dict[str, Any], given: Answer) -> list[tuple[str | None, Any]]:
    """(name, data) of a stream's events; data that is no JSON stays text."""
    encoder = dialect.parse(msgspec.json.encode(body), {}).renderer.stream(given.call_id)
    return decoded(b"".join(encoder.answer(given)))


def decoded(frames: bytes) -> list[tuple[str | None, Any]]:
    return [(event.name, _data(event.data)) for event in Decoder().feed(frames)]


def _data(text: str) -> Any:
    return cast(Any, text if text == "[DONE]" else msgspec.json.decode(text))
