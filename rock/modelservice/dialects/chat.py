"""OpenAI chat completions: `POST /v1/chat/completions`, plain and streamed.

Messages, tools and everything this file does not need stay the bytes that were sent. What clients
are known to need is kept: `index` and `finish_reason` always, `usage` true or absent, tool calls
streamed as id and name first and arguments after, `[DONE]` at the end, errors as
`{"error": {message, type, param, code}}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from rock.errors import BadRequest, RockError
from rock.modelservice.dialects import sse
from rock.modelservice.dialects.base import (
    NO_HISTORY,
    CountRoute,
    ErrorReply,
    Headers,
    History,
    Parsed,
    Spoken,
    fields_of,
    take,
    wrong,
)
from rock.modelservice.dialects.openai_errors import error_body, error_reply
from rock.modelservice.graph.answer import Answer, AnswerChoice, Delta
from rock.modelservice.timers import epoch_seconds
from rock.modelservice.wire import CanonicalRequest, ToolCall, Usage

MAX_CHOICES = 128
Object = dict[str, Any]


class ChatDialect:
    name = "chat"
    routes = ("/chat/completions",)

    def __init__(self, now: Callable[[], float] = epoch_seconds) -> None:
        self._now = now
        self.count_routes: Mapping[str, CountRoute] = {}

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        del headers, history  # this dialect says everything in the body
        fields = fields_of(body)
        # What is not there is not asked for by a call: most requests name a handful of fields.
        stream = "stream" in fields and take(fields, "stream", bool, "true or false")
        include_usage = "stream_options" in fields and _include_usage(fields)
        request = _canonical(fields)
        extra = request.extra
        renderer = ChatRenderer(
            model=request.model,
            now=self._now,
            include_usage=bool(include_usage),
            logprobs="logprobs" in extra and _flag(extra, "logprobs"),
            token_ids="return_token_ids" in extra and _flag(extra, "return_token_ids"),
        )
        return Parsed(request, bool(stream), renderer)

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)


def _canonical(fields: dict[str, Raw]) -> CanonicalRequest:
    """Take every field that has a place in the canonical request; the rest becomes `extra`."""
    model = take(fields, "model", str, "a string: the model's name")
    if model is None:
        raise BadRequest("model: missing; expected a string: the model's name", param="model")
    messages = _messages(fields)
    request = CanonicalRequest(model=model, messages=messages)
    if not fields:
        return request
    given = {name: _OPTIONAL[name](fields) for name in list(fields) if name in _OPTIONAL}
    limit = given.pop("max_completion_tokens", None)
    if limit is not None:
        given["max_tokens"] = limit
    if given.get("n", 1) is None:
        del given["n"]
    request = replace(
        request, extra={name: Raw(bytes(raw)) for name, raw in fields.items()}, **given
    )
    _within("n", request.n, 1, MAX_CHOICES)
    _within("max_tokens", request.max_tokens, 1, 2**31 - 1)
    _within("temperature", request.temperature, 0.0, 100.0)
    _within("top_p", request.top_p, 0.0, 1.0)
    return request


def _include_usage(fields: dict[str, Raw]) -> bool:
    options: dict[str, Raw] = take(fields, "stream_options", dict[str, Raw], "an object") or {}
    return bool(take(options, "include_usage", bool, "true or false"))


def _within(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise BadRequest(f"{name}: expected a number from {low} to {high}, got {value}", param=name)


class _Head(Struct):
    role: str


_heads = msgspec.json.Decoder(list[_Head])


def _messages(fields: dict[str, Raw]) -> list[Raw]:
    expected = "a list of messages"
    sent = fields.get("messages", b"")
    messages: list[Raw] | None = take(fields, "messages", list[Raw], expected)
    if not messages:
        given = "missing" if messages is None else "empty"
        raise BadRequest(f"messages: {given}; expected {expected}", param="messages")
    try:
        _heads.decode(sent)
    except (msgspec.DecodeError, RecursionError):
        _complain(messages)
    return messages


def _complain(messages: list[Raw]) -> None:
    """Raises BadRequest naming the message that is none."""
    for index, message in enumerate(messages):
        try:
            msgspec.json.decode(message, type=_Head)
        except (msgspec.DecodeError, RecursionError) as exc:
            name = f"messages[{index}]"
            raise wrong(name, message, 'an object with a "role" string') from exc


def _objects(fields: dict[str, Raw], name: str) -> list[Raw] | None:
    items: list[Raw] | None = take(fields, name, list[Raw], "a list of objects")
    for index, item in enumerate(items or ()):
        if bytes(item)[:1] != b"{":
            raise wrong(f"{name}[{index}]", item, "an object")
    return [Raw(bytes(item)) for item in items] if items else None


def _kind(fields: dict[str, Raw], name: str, heads: bytes, expected: str) -> Raw | None:
    """A field that is passed on as sent, if it is null or begins with one of `heads`."""
    raw = bytes(fields.pop(name))
    if raw == b"null":
        return None
    if raw[:1] not in [bytes([head]) for head in heads]:
        raise wrong(name, raw, expected)
    return Raw(raw)


def _stop(fields: dict[str, Raw]) -> list[str] | None:
    stop: str | list[str] | None = take(
        fields, "stop", str | list[str], "a string or a list of strings"
    )
    return [stop] if isinstance(stop, str) else (stop or None)


def _flag(extra: dict[str, Raw], name: str) -> bool:
    """Read a field that stays in `extra`, because whoever answers wants to see it too."""
    return bool(take({name: extra[name]}, name, bool, "true or false"))


def _plain(name: str, kind: type, expected: str) -> Callable[[dict[str, Raw]], Any]:
    return lambda fields: take(fields, name, kind, expected)


_OPTIONAL: dict[str, Callable[[dict[str, Raw]], Any]] = {
    "tools": lambda fields: _objects(fields, "tools"),
    "tool_choice": lambda fields: _kind(fields, "tool_choice", b'"{', "a string or an object"),
    "response_format": lambda fields: _kind(fields, "response_format", b"{", "an object"),
    "stop": _stop,
    "max_completion_tokens": _plain("max_completion_tokens", int, "an integer of at least 1"),
    "max_tokens": _plain("max_tokens", int, "an integer of at least 1"),
    "n": _plain("n", int, f"an integer from 1 to {MAX_CHOICES}"),
    "parallel_tool_calls": _plain("parallel_tool_calls", bool, "true or false"),
    "temperature": _plain("temperature", float, "a number"),
    "top_p": _plain("top_p", float, "a number"),
    "seed": _plain("seed", int, "an integer"),
    "presence_penalty": _plain("presence_penalty", float, "a number"),
    "frequency_penalty": _plain("frequency_penalty", float, "a number"),
    "reasoning_effort": _plain("reasoning_effort", str, "a string"),
}
"""How each field that has a place in the canonical request is taken out of those that were sent."""


class ChatRenderer(Struct, frozen=True):
    """Writes answers to one request, in both forms."""

    model: str
    now: Callable[[], float]
    include_usage: bool
    logprobs: bool
    token_ids: bool

    def reply(self, answer: Answer) -> bytes:
        body: Object = {
            "id": completion_id(answer.call_id),
            "object": "chat.completion",
            "created": int(self.now()),
            "model": self.model,
            "choices": [self._choice(*item) for item in enumerate(answer.choices)],
        }
        if answer.usage is not None:
            body["usage"] = usage_body(answer.usage)
        if self.token_ids:
            body.update(self.prompt(answer))
        return msgspec.json.encode(body)

    def stream(self, call_id: str) -> ChatStream:
        return ChatStream(self, completion_id(call_id))

    def _choice(self, index: int, choice: AnswerChoice) -> Object:
        message: Object = {"role": "assistant", "content": choice.message.content}
        if choice.message.reasoning_content is not None:
            message["reasoning_content"] = choice.message.reasoning_content
        if choice.message.tool_calls:
            message["tool_calls"] = [_tool_call(call) for call in choice.message.tool_calls]
        said: Object = {
            "index": index,
            "message": message,
            "finish_reason": finish_reason(choice),
        }
        if self.logprobs or self.token_ids:
            said.update(self.tokens(choice))
        return said

    def prompt(self, answer: Answer) -> Object:
        """The prompt's ids, for a client that asked and while they are known."""
        ids = answer.prompt_token_ids if self.token_ids else None
        return {} if ids is None else {"prompt_token_ids": ids}

    def tokens(self, choice: AnswerChoice) -> Object:
        """What the client asked to see of the tokens, if the worker gave them."""
        seen: Object = {}
        if self.logprobs:
            seen["logprobs"] = _logprobs(choice)
        if self.token_ids and choice.token_ids is not None:
            seen["token_ids"] = choice.token_ids
        return seen


class ChatStream:
    """One streamed reply. A whole answer becomes the events of a model that spoke quickly."""

    def __init__(self, renderer: ChatRenderer, completion: str) -> None:
        self._renderer = renderer
        self._head: Object = {
            "id": completion,
            "object": "chat.completion.chunk",
            "created": int(renderer.now()),
            "model": renderer.model,
        }
        self._said = Spoken()

    def keepalive(self) -> bytes:
        return self._chunk(0, {})

    def delta(self, delta: Delta) -> bytes:
        return b"".join(self._say(0, self._said, delta)) if delta else b""

    def answer(self, answer: Answer) -> Iterator[bytes]:
        self._head.update(self._renderer.prompt(answer))
        for index, choice in enumerate(answer.choices):
            said = self._said if index == 0 else Spoken()
            yield from self._say(index, said, said.rest(choice.message))
            yield self._chunk(index, {}, finish_reason(choice), self._renderer.tokens(choice))
            self._head.pop("prompt_token_ids", None)
        if self._renderer.include_usage and answer.usage is not None:
            usage = usage_body(answer.usage)
            yield sse.encode(msgspec.json.encode({**self._head, "choices": [], "usage": usage}))
        yield sse.DONE

    def error(self, exc: RockError) -> bytes:
        return sse.encode(error_body(exc))

    def _say(self, index: int, said: Spoken, delta: Delta) -> Iterator[bytes]:
        """A call is its id and name first, then its arguments."""
        if not said.begun:
            yield self._chunk(index, {"role": "assistant", "content": None if delta.calls else ""})
        said.add(delta)
        if delta.reasoning:
            yield self._chunk(index, {"reasoning_content": delta.reasoning})
        if delta.content:
            yield self._chunk(index, {"content": delta.content})
        for call in delta.calls:
            if call.name is not None:
                function = {"name": call.name, "arguments": ""}
                opened = {"index": call.index, "id": call.id, "type": "function"}
                yield self._chunk(index, {"tool_calls": [{**opened, "function": function}]})
            if call.arguments:
                more = {"index": call.index, "function": {"arguments": call.arguments}}
                yield self._chunk(index, {"tool_calls": [more]})

    def _chunk(
        self, index: int, delta: Object, finish: str | None = None, tokens: Object | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, **(tokens or {})}
        chunk: Object = {**self._head, "choices": [choice]}
        if self._renderer.include_usage:
            chunk["usage"] = None
        return sse.encode(msgspec.json.encode(chunk))


def completion_id(call_id: str) -> str:
    return f"chatcmpl-{call_id}"


def finish_reason(choice: AnswerChoice) -> str:
    """Clients run tools only on `tool_calls`, which workers that match end tokens do not know."""
    if choice.finish_reason == "stop" and choice.message.tool_calls:
        return "tool_calls"
    return choice.finish_reason


def usage_body(usage: Usage) -> Object:
    body: Object = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        body["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return body


def _tool_call(call: ToolCall) -> Object:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _logprobs(choice: AnswerChoice) -> Object | None:
    """Token texts are unknown here, so each token is named by its id, as inference engines do."""
    if (ids := choice.token_ids) is None or (values := choice.logprobs) is None:
        return None
    pairs = zip(ids, values, strict=True)
    return {
        "content": [
            {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
            for token, value in pairs
        ]
    }
