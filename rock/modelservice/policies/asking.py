"""A canonical request as an OpenAI-compatible engine or provider takes it.

`chat_body` and `completions_body` write JSON in which messages, tools and every object that the agent
sent stand byte for byte as it sent them. `arguments_of` gives the same as Python values, for libraries
that want those. What a dialect could not place (`extra["anthropic"]`, `extra["responses"]`) stays here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.wire import CanonicalRequest

Object = dict[str, Any]
INTERNAL = frozenset({"anthropic", "responses"})
"""Fields of `extra` that no engine knows: they are named after the dialect that put them there."""
_PLAIN = (
    "parallel_tool_calls",
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "reasoning_effort",
)
_RAW = ("tools", "tool_choice", "response_format")


class _Prompt(Struct):
    role: str
    content: Raw = Raw(b"null")


def is_prompt(request: CanonicalRequest) -> bool:
    """Whether this is no conversation, but a text (or token ids) to go on from."""
    return len(request.messages) == 1 and _prompt(request).role == "prompt"


def chat_body(request: CanonicalRequest, model: str, more: Mapping[str, object]) -> bytes:
    """The body for `/chat/completions`."""
    return _body(request, {"model": model, "messages": request.messages}, more)


def completions_body(request: CanonicalRequest, model: str, more: Mapping[str, object]) -> bytes:
    """The body for `/completions`, for a request that `is_prompt`."""
    return _body(request, {"model": model, "prompt": _prompt(request).content}, more)


def _body(request: CanonicalRequest, asked: Object, more: Mapping[str, object]) -> bytes:
    fields: Object = {**_extras(request), **asked}
    for name in (*_RAW, *_PLAIN):
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    if request.n != 1:
        fields["n"] = request.n
    return msgspec.json.encode({**fields, **more})


def _extras(request: CanonicalRequest) -> dict[str, Raw]:
    return {name: raw for name, raw in request.extra.items() if name not in INTERNAL}


def _prompt(request: CanonicalRequest) -> _Prompt:
    return msgspec.json.decode(request.messages[0], type=_Prompt)


def arguments_of(request: CanonicalRequest) -> Object:
    """The request as arguments of a chat completion; what was not given is left out."""
    arguments: Object = {
        "messages": [json.loads(bytes(message)) for message in request.messages],
        "tools": [json.loads(bytes(tool)) for tool in request.tools or ()] or None,
        "tool_choice": _loaded(request.tool_choice),
        "response_format": _loaded(request.response_format),
        "n": request.n if request.n != 1 else None,
    }
    for name in _PLAIN:
        arguments[name] = getattr(request, name)
    return {name: value for name, value in arguments.items() if value is not None}


def extras_of(request: CanonicalRequest) -> Object:
    return {name: json.loads(bytes(raw)) for name, raw in _extras(request).items()}


def _loaded(raw: Any) -> Any:
    return None if raw is None else json.loads(bytes(raw))
