"""What the rules of an interceptor do to a request or to an answer. Pure: text in, text out.

A rule that changes nothing gives back the very object it got, so that "edited" means edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice.wire import AssistantMessage, CanonicalRequest, Choice
from rock.modelservice.wire.interceptors import (
    AddTool,
    AnyRule,
    Block,
    DropToolCalls,
    DropTools,
    Interceptor,
    KeepTools,
    RemoveField,
    ReplaceField,
    ReplaceText,
    SetField,
    System,
    When,
)

FIELDS = (
    "model",
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "reasoning_effort",
    "response_format",
    "tool_choice",
    "parallel_tool_calls",
)
"""What `set`, `replace` and `remove` know, besides `extra.NAME`."""
_ON_RESPONSE = (ReplaceText, DropToolCalls, Block)
_ONLY_ON_RESPONSE = (ReplaceText, DropToolCalls)
_SYSTEM_ROLES = ("system", "developer")


class Blocked(Exception):
    """A rule or a hook refused the call; the agent gets the error of `code` and the message."""

    def __init__(self, message: str, code: str = "forbidden") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a call is, besides what it says."""

    session_id: str
    labels: dict[str, str]
    dialect: str
    kind: str | None
    turn: int
    """Calls that its session made before."""


def check(spec: Interceptor) -> None:
    """Raises BadRequest naming what cannot work."""
    if (spec.rules is None) == (spec.hook is None):
        raise BadRequest("rules: expected exactly one of `rules` and `hook`", param="rules")
    for number, rule in enumerate(spec.rules or ()):
        name = f"rules[{number}]"
        wrong = _ONLY_ON_RESPONSE if spec.on == "request" else ()
        if isinstance(rule, wrong) or (
            spec.on == "response" and not isinstance(rule, _ON_RESPONSE)
        ):
            said = rule.__struct_config__.tag
            raise BadRequest(f"{name}.do: {said!r} is no rule for a {spec.on}", param=f"{name}.do")
        _check_rule(rule, name)


def _check_rule(rule: AnyRule, name: str) -> None:
    if isinstance(rule, AddTool):
        if _tool_name(bytes(rule.tool)) is None:
            message = 'expected a tool such as {"type": "function", "function": {"name": …}}'
            raise BadRequest(f"{name}.tool: {message}", param=f"{name}.tool")
        return
    if not isinstance(rule, SetField | ReplaceField | RemoveField):
        return
    known = rule.field in FIELDS or (rule.field.startswith("extra.") and len(rule.field) > 6)
    if not known:
        listed = ", ".join([*FIELDS, "extra.NAME"])
        raise BadRequest(
            f"{name}.field: expected one of {listed}, got {rule.field[:60]!r}",
            param=f"{name}.field",
        )
    if isinstance(rule, RemoveField):
        if rule.field == "model":
            raise BadRequest(f"{name}.field: a request has a model", param=f"{name}.field")
        return
    try:
        _with_field(CanonicalRequest(model="", messages=[]), rule.field, rule.value)
    except msgspec.ValidationError as exc:
        what = str(exc).partition(" - at ")[0]
        raise BadRequest(f"{name}.value: {what}", param=f"{name}.value") from exc


# --- requests ---


def on_request(
    rules: list[AnyRule], request: CanonicalRequest, seen: Circumstances
) -> CanonicalRequest:
    """The request after the rules; the very same object if none changed it. Raises Blocked."""
    for rule in rules:
        if rule.when is None or _holds(rule.when, request, None, seen):
            request = _step(rule, request)
    return request


def _step(rule: AnyRule, request: CanonicalRequest) -> CanonicalRequest:
    match rule:
        case SetField():
            return _with_field(request, rule.field, rule.value)
        case ReplaceField():
            given = _field(request, rule.field) is not None
            return _with_field(request, rule.field, rule.value) if given else request
        case RemoveField():
            given = _field(request, rule.field) is not None
            return _without_field(request, rule.field) if given else request
        case AddTool():
            name = _tool_name(bytes(rule.tool))
            kept = [tool for tool in request.tools or () if _tool_name(bytes(tool)) != name]
            return _with_tools(request, [*kept, rule.tool])
        case DropTools():
            kept = [
                tool for tool in request.tools or () if _tool_name(bytes(tool)) not in rule.names
            ]
            return _with_tools(request, kept)
        case KeepTools():
            kept = [tool for tool in request.tools or () if _tool_name(bytes(tool)) in rule.names]
            return _with_tools(request, kept)
        case System():
            return _with_system(request, rule)
        case Block():
            raise Blocked(rule.message, rule.code)
        case ReplaceText() | DropToolCalls():
            return request  # refused by `check`


def _field(request: CanonicalRequest, name: str) -> object:
    _, dot, extra = name.partition(".")
    return request.extra.get(extra) if dot else getattr(request, name)


def _with_field(request: CanonicalRequest, name: str, value: Raw) -> CanonicalRequest:
    """Raises msgspec.ValidationError for a value that does not fit."""
    _, dot, extra = name.partition(".")
    if dot:
        return replace(request, extra={**request.extra, extra: value})
    body = msgspec.json.encode({"model": request.model, "messages": [], name: value})
    given = getattr(msgspec.json.decode(body, type=CanonicalRequest), name)
    return request if given == getattr(request, name) else replace(request, **{name: given})


def _without_field(request: CanonicalRequest, name: str) -> CanonicalRequest:
    _, dot, extra = name.partition(".")
    if not dot:
        return replace(request, **{name: None})
    return replace(
        request, extra={key: value for key, value in request.extra.items() if key != extra}
    )


def _with_tools(request: CanonicalRequest, tools: list[Raw]) -> CanonicalRequest:
    if [bytes(tool) for tool in tools] == [bytes(tool) for tool in request.tools or ()]:
        return request
    if tools:
        return replace(request, tools=tools)
    # A choice among no tools is refused by engines.
    return replace(request, tools=None, tool_choice=None, parallel_tool_calls=None)


def _tool_name(tool: bytes) -> str | None:
    try:
        found: Any = msgspec.json.decode(tool)
        name = found["function"]["name"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _with_system(request: CanonicalRequest, rule: System) -> CanonicalRequest:
    count = 0
    while count < len(request.messages) and _role(request.messages[count]) in _SYSTEM_ROLES:
        count += 1
    rest = request.messages[count:]
    if count == 0 or rule.place == "replace":
        message = Raw(msgspec.json.encode({"role": "system", "content": rule.text}))
        return replace(request, messages=[message, *rest])
    at = 0 if rule.place == "prepend" else count - 1
    messages = list(request.messages)
    message = cast("dict[str, Any]", msgspec.json.decode(messages[at]))
    message["content"] = _joined(message.get("content"), rule)
    messages[at] = Raw(msgspec.json.encode(message))
    return replace(request, messages=messages)


def _joined(content: object, rule: System) -> object:
    if isinstance(content, list):
        part = {"type": "text", "text": rule.text}
        parts = cast("list[object]", content)
        return [part, *parts] if rule.place == "prepend" else [*parts, part]
    before = content if isinstance(content, str) else ""
    both = (rule.text, before) if rule.place == "prepend" else (before, rule.text)
    return "\n\n".join(text for text in both if text)


# --- answers ---


def on_response(
    rules: list[AnyRule], request: CanonicalRequest, choices: list[Choice], seen: Circumstances
) -> list[Choice]:
    """The choices after the rules; the very same list if none changed it. Raises Blocked."""
    for rule in rules:
        if rule.when is not None and not _holds(rule.when, request, choices, seen):
            continue
        match rule:
            case Block():
                raise Blocked(rule.message, rule.code)
            case ReplaceText() | DropToolCalls():
                edited = [_edited(rule, choice) for choice in choices]
                if any(new is not old for new, old in zip(edited, choices, strict=True)):
                    choices = edited
            case _:
                pass  # refused by `check`
    return choices


def _edited(rule: ReplaceText | DropToolCalls, choice: Choice) -> Choice:
    message = choice.message
    if isinstance(rule, ReplaceText):
        if message.content is None or rule.find not in message.content:
            return choice
        text = message.content.replace(rule.find, rule.put)
        return replace(choice, message=replace(message, content=text))
    calls = message.tool_calls or []
    kept = [call for call in calls if call.function.name not in rule.names]
    if len(kept) == len(calls):
        return choice
    content = message.content if kept or message.content is not None else ""
    reason = choice.finish_reason if kept or choice.finish_reason != "tool_calls" else "stop"
    changed = replace(message, content=content, tool_calls=kept or None)
    return replace(choice, message=changed, finish_reason=reason)


# --- conditions ---


def _holds(
    when: When, request: CanonicalRequest, choices: list[Choice] | None, seen: Circumstances
) -> bool:
    return (
        (when.kind is None or when.kind == seen.kind)
        and (when.dialect is None or when.dialect == seen.dialect)
        and (when.model is None or when.model == request.model)
        and (when.turn_at_least is None or seen.turn >= when.turn_at_least)
        and (when.tool is None or when.tool in _tools_of(request, choices))
        and (when.contains is None or when.contains in _last_text(request, choices))
        and (
            when.anywhere_contains is None
            or any(when.anywhere_contains in _text(message) for message in request.messages)
        )
    )


def _tools_of(request: CanonicalRequest, choices: list[Choice] | None) -> list[str | None]:
    if choices is None:
        return [_tool_name(bytes(tool)) for tool in request.tools or ()]
    return [call.function.name for one in choices for call in one.message.tool_calls or ()]


def _last_text(request: CanonicalRequest, choices: list[Choice] | None) -> str:
    if choices is not None:
        return "\n".join(_said(choice.message) for choice in choices)
    return _text(request.messages[-1]) if request.messages else ""


def _said(message: AssistantMessage) -> str:
    return "\n".join(
        [message.content or "", *(call.function.arguments for call in message.tool_calls or ())]
    )


def _text(message: Raw) -> str:
    """All text of a message: its content, and the arguments of its tool calls."""
    found = cast("dict[str, Any]", msgspec.json.decode(message))
    content: Any = found.get("content")
    pieces: list[str] = [content] if isinstance(content, str) else []
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    calls = found.get("tool_calls")
    for part in (*parts, *(cast("list[Any]", calls) if isinstance(calls, list) else [])):
        if not isinstance(part, dict):
            continue
        item = cast("dict[str, Any]", part)
        function = item.get("function")
        text = item.get("text")
        if isinstance(function, dict):
            text = cast("dict[str, Any]", function).get("arguments")
        if isinstance(text, str):
            pieces.append(text)
    return "\n".join(pieces)


def _role(message: Raw) -> object:
    return cast("dict[str, Any]", msgspec.json.decode(message)).get("role")
