"""A request's messages as chat templates take them, and the same with the answers marked. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rock.errors import BadRequest
from rock.modelservice.wire import CanonicalRequest

Object = dict[str, Any]
_ROLES = {"developer": "system", "function": "tool"}


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation for a template."""

    messages: list[Object]
    tools: list[Object] | None
    more: Mapping[str, Any]
    """Further variables of the template, such as `enable_thinking`."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Texts that stand where an answer's own text begins and ends."""

    message: int
    texts: tuple[str, ...]
    """In the order in which a template writes them; it may leave one out."""

    def where(self, text: str, after: int = 0) -> tuple[int, int] | None:
        """Start and end of what is between the outermost marks; None without any."""
        found = [mark for mark in self.texts if text.find(mark, after) >= 0]
        if not found:
            return None
        return text.find(found[0], after), text.rfind(found[-1]) + len(found[-1])


def talk_of(request: CanonicalRequest, fixed: Mapping[str, Any]) -> Talk:
    """Raises `BadRequest` for content that is not text. `fixed` variables give way to the request's."""
    more = dict(fixed)
    if request.reasoning_effort is not None:
        more["reasoning_effort"] = request.reasoning_effort
    asked = request.extra.get("chat_template_kwargs")
    more |= json.loads(bytes(asked)) if asked is not None else {}
    names: dict[str, str] = {}
    tools = request.tools
    return Talk(
        messages=[_message(json.loads(bytes(raw)), names) for raw in request.messages],
        tools=None if tools is None else [json.loads(bytes(tool)) for tool in tools],
        more=more,
    )


def _message(given: Object, names: dict[str, str]) -> Object:
    """One message without nulls, its text in one piece, its arguments as values.

    `names` is what each tool-call id so far called.
    """
    message: Object = {name: value for name, value in given.items() if value is not None}
    role = str(message.get("role", ""))
    message["role"] = _ROLES.get(role, role)
    message["content"] = _text(message.get("content"))
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = [_tool_call(call, names) for call in calls]
    if message["role"] == "tool" and "name" not in message:
        name = names.get(str(message.get("tool_call_id")))
        message |= {"name": name} if name else {}
    return message


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = cast("list[Object]", content)
    for part in parts:
        if part.get("type") != "text":
            raise BadRequest(
                f"messages: content of type {part.get('type')!r}; this renderer has text only"
            )
    return "".join(part["text"] for part in parts)


def _tool_call(given: Object, names: dict[str, str]) -> Object:
    function: Object = dict(given.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = _object(arguments)
    names[str(given.get("id"))] = str(function.get("name"))
    return {**given, "function": function}


def _object(text: str) -> Any:
    """Templates iterate over arguments; what is no object stays the text it is."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return cast("Object", value) if isinstance(value, dict) else text


def marked(messages: Sequence[Object], until: int, avoid: str) -> tuple[list[Object], list[Mark]]:
    """The messages with marks in place of what the answers before `until` say.

    Whatever a template writes between two marks, it writes whatever the model said. `avoid` is text
    in which no mark may occur.
    """
    salt = 0
    while f"Zq{salt}mark" in avoid:
        salt += 1
    changed = list(messages)
    marks: list[Mark] = []
    for place, message in enumerate(messages[:until]):
        if message["role"] == "assistant":
            changed[place], mark = _marked(message, place, f"Zq{salt}mark{place}x")
            marks.append(mark)
    return changed, marks


def _marked(message: Object, place: int, base: str) -> tuple[Object, Mark]:
    text, argument = f"{base}t", f"{base}a"
    bare: Object = {"role": "assistant", "content": ""}
    calls = message.get("tool_calls")
    if not calls or message["content"].strip():
        bare["content"] = text
    if not calls:
        return bare, Mark(place, (text,))
    last: Object = {**calls[-1], "function": {**calls[-1]["function"]}}
    last["function"]["arguments"] = {argument: argument}
    bare["tool_calls"] = [*calls[:-1], last]
    return bare, Mark(place, (text, argument) if bare["content"] else (argument,))
