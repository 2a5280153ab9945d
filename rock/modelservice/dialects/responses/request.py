"""A Responses body as a canonical request.

`previous_response_id` is answered from the session's own journal: the conversation of that call and
its answer stand before the new input, its instructions do not. Fields without a place are kept as
sent in `extra["responses"]`; docs/dialects.md lists every field.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Raw, Struct

from rock.errors import BadRequest
from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.base import Exchange, History, take
from rock.modelservice.dialects.canonical import Assistant
from rock.modelservice.dialects.responses import items
from rock.modelservice.dialects.responses.tools import Targets, tool_choice, tools
from rock.modelservice.wire import AssistantMessage, CanonicalRequest

T = TypeVar("T")
RESPONSE_ID = "resp_"
INSTRUCTIONS = "instructions"
"""`name` of the system message that the field of that name became."""
REFUSED = {
    "background": "replies are given on the connection that asked",
    "conversation": "no conversations are kept; send `input`, or `previous_response_id`",
    "prompt": "no prompt templates are kept; send `instructions` and `input`",
}


class Asked(Struct):
    """A request, and what its reply needs besides."""

    request: CanonicalRequest
    targets: Targets
    previous_response_id: str | None
    sealed: bool
    """The client wants encrypted reasoning, to send it back."""


class _Format(Struct):
    type: str
    name: str | None = None
    schema: Raw = Raw(b"null")
    description: str | None = None
    strict: bool | None = None


class _Text(Struct):
    format: _Format | None = None


class _Reasoning(Struct):
    effort: str | None = None


class _Named(Struct):
    role: str
    name: str | None = None


def asked(fields: dict[str, Raw], history: History) -> Asked:
    """Takes `fields` apart. Raises BadRequest."""
    model = reading.model_name(fields)
    for name, why in REFUSED.items():
        if bytes(fields.pop(name, Raw(b"null"))) not in (b"null", b"false"):
            raise reading.refused(name, "it", why)
    previous: str | None = take(fields, "previous_response_id", str, "a string: a response's id")
    made = tools(take(fields, "tools", list[Raw], "a list of tools") or [])
    choice = fields.pop("tool_choice", Raw(b"null"))
    include = _peek(fields, "include", list[str]) or []
    reasoning = _peek(fields, "reasoning", _Reasoning) or _Reasoning()
    text = _peek(fields, "text", _Text) or _Text()
    request = CanonicalRequest(
        model=model,
        messages=_messages(fields, previous, history),
        tools=made.functions or None,
        tool_choice=None if bytes(choice) == b"null" else tool_choice(choice),
        parallel_tool_calls=take(fields, "parallel_tool_calls", bool, "true or false"),
        response_format=_response_format(text.format),
        reasoning_effort=reasoning.effort,
        temperature=reading.number(fields, "temperature", 0.0, 2.0),
        top_p=reading.number(fields, "top_p", 0.0, 1.0),
        max_tokens=reading.integer(fields, "max_output_tokens"),
    )
    kept: dict[str, object] = {**fields}
    metadata = bytes(fields.get("client_metadata", Raw(b"null")))
    if metadata.startswith(b"{"):
        kept["client_metadata"] = _in_order(metadata)
    if previous is not None:
        kept["previous_response_id"] = previous
    if made.withheld:
        kept["withheld_tools"] = made.withheld
    if made.besides:
        kept["tools"] = made.besides
    if kept:
        request.extra["responses"] = canonical.raw(kept)
    return Asked(request, made.targets, previous, "reasoning.encrypted_content" in include)


def _peek(fields: dict[str, Raw], name: str, kind: type[T]) -> T | None:
    """Read a field that also stays in `extra`, because this takes only a part of it."""
    raw = fields.get(name, Raw(b"null"))
    return None if bytes(raw) == b"null" else reading.read(raw, kind, name)


def _in_order(metadata: bytes) -> Raw:
    """Its fields sorted: codex writes them in another order at every try, and a retry must not look
    like another request."""
    return canonical.raw(dict(sorted(reading.fields(metadata, "client_metadata").items())))


def _messages(fields: dict[str, Raw], previous: str | None, history: History) -> list[Raw]:
    made: list[Raw] = []
    instructions: str | None = take(fields, "instructions", str, "a string")
    if instructions:
        made.append(canonical.message("system", instructions, name=INSTRUCTIONS))
    if previous is not None:
        made += _conversation(previous, history)
    sent = fields.pop("input", Raw(b"null"))
    if bytes(sent) == b"null":
        if previous is None:
            expected = "a string or a list of items"
            raise BadRequest(f"input: missing; expected {expected}", param="input")
    else:
        made += items.messages(sent)
    if not made:
        raise BadRequest("input: empty; expected at least one item", param="input")
    return made


def _conversation(previous: str, history: History) -> list[Raw]:
    """What was said up to and including the response of that id."""
    exchange = None
    if previous.startswith(RESPONSE_ID):
        exchange = history.exchange(previous.removeprefix(RESPONSE_ID))
    if exchange is None:
        raise BadRequest(
            f"previous_response_id: this session has no response {previous[:100]!r}",
            param="previous_response_id",
        )
    return [*_without_instructions(exchange), _answered(exchange.message)]


def _without_instructions(exchange: Exchange) -> list[Raw]:
    messages = exchange.request.messages
    if messages:
        first = reading.read(messages[0], _Named, "messages[0]")
        if first.role == "system" and first.name == INSTRUCTIONS:
            return messages[1:]
    return messages


def _answered(message: AssistantMessage) -> Raw:
    said = Assistant()
    if message.content:
        said.text.append(message.content)
    if message.reasoning_content:
        said.reasoning.append(message.reasoning_content)
    for call in message.tool_calls or ():
        said.calls.append(
            canonical.call(call.id or "", call.function.name, call.function.arguments)
        )
    return said.raw()


def _response_format(sent: _Format | None) -> Raw | None:
    if sent is None or sent.type == "text":
        return None
    if sent.type == "json_object":
        return canonical.raw({"type": "json_object"})
    if sent.type != "json_schema":
        expected = "text, json_object or json_schema"
        raise reading.unknown("text.format.type", sent.type, b"null", expected)
    reading.fields(sent.schema, "text.format.schema")
    schema: dict[str, object] = {"name": sent.name or "output", "schema": sent.schema}
    if sent.description is not None:
        schema["description"] = sent.description
    if sent.strict is not None:
        schema["strict"] = sent.strict
    return canonical.raw({"type": "json_schema", "json_schema": schema})
