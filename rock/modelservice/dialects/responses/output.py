"""The output items of a response, and the events that each is streamed as.

One answer is at most one reasoning item, one message and its calls, in this order. A call of a
function that stood for another kind of tool goes back as that kind.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.dialects.canonical import Object
from rock.modelservice.dialects.responses.items import SEALED
from rock.modelservice.dialects.responses.tools import Target, Targets
from rock.modelservice.graph.answer import AnswerChoice
from rock.modelservice.wire import ToolCall

Event = tuple[str, Object]
"""Name and fields; item id and output index are added by the stream."""


class Item(Struct, frozen=True):
    body: Object
    """The finished item."""
    begun: Object
    """The same before its content came."""
    events: list[Event]


class _Input(Struct, forbid_unknown_fields=True):
    input: str


def output_items(
    call_id: str, choice: AnswerChoice, targets: Targets, *, sealed: bool
) -> list[Item]:
    message = choice.message
    items: list[Item] = []
    if message.reasoning_content:
        items.append(_reasoning(call_id, message.reasoning_content, sealed=sealed))
    status = "completed" if choice.finish_reason in ("stop", "tool_calls") else "incomplete"
    if message.content or not message.tool_calls:
        items.append(_message(call_id, message.content or "", status))
    for index, call in enumerate(message.tool_calls or ()):
        name = call.function.name
        target = targets.get(name, Target("function", name))
        items.append(_call(call, call.id or f"call_{call_id}_{index}", target))
    return items


def _reasoning(call_id: str, text: str, *, sealed: bool) -> Item:
    part = {"type": "summary_text", "text": text}
    begun: Object = {"type": "reasoning", "id": f"rs_{call_id}", "summary": []}
    body: Object = {**begun, "summary": [part]}
    if sealed:
        # Not empty, so that clients send the item back; the text itself is in the summary.
        body["encrypted_content"] = f"{SEALED}{call_id}"
    at: Object = {"summary_index": 0}
    empty = {"type": "summary_text", "text": ""}
    events: list[Event] = [
        ("response.reasoning_summary_part.added", {**at, "part": empty}),
        ("response.reasoning_summary_text.delta", {**at, "delta": text}),
        ("response.reasoning_summary_text.done", {**at, "text": text}),
        ("response.reasoning_summary_part.done", {**at, "part": part}),
    ]
    return Item(body, begun, events)


def _message(call_id: str, text: str, status: str) -> Item:
    def part(text: str) -> Object:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    head: Object = {"type": "message", "id": f"msg_{call_id}", "role": "assistant"}
    at: Object = {"content_index": 0}
    events: list[Event] = [("response.content_part.added", {**at, "part": part("")})]
    if text:
        delta: Object = {**at, "delta": text, "logprobs": []}
        events.append(("response.output_text.delta", delta))
    events += [
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": part(text)}),
    ]
    body: Object = {**head, "status": status, "content": [part(text)]}
    return Item(body, {**head, "status": "in_progress", "content": []}, events)


def _call(call: ToolCall, id: str, target: Target) -> Item:
    arguments = call.function.arguments
    if target.kind == "custom":
        return _custom(id, target, arguments)
    if target.kind in _SPECIAL and (action := _object(arguments)) is not None:
        return _SPECIAL[target.kind](id, action)
    return _function(id, target, arguments)


def _function(id: str, target: Target, arguments: str) -> Item:
    """Arguments go as the model wrote them, valid JSON or not."""
    head: Object = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": target.name}
    if target.namespace is not None:
        head["namespace"] = target.namespace
    events: list[Event] = [
        ("response.function_call_arguments.delta", {"delta": arguments}),
        ("response.function_call_arguments.done", {"arguments": arguments}),
    ]
    body: Object = {**head, "arguments": arguments, "status": "completed"}
    return Item(body, {**head, "arguments": "", "status": "in_progress"}, events)


def _custom(id: str, target: Target, arguments: str) -> Item:
    """The text inside `input`; if the model did not write that, all that it wrote."""
    try:
        text = msgspec.json.decode(arguments, type=_Input).input
    except (msgspec.DecodeError, RecursionError):
        text = arguments
    head: Object = {
        "type": "custom_tool_call",
        "id": f"ctc_{id}",
        "call_id": id,
        "name": target.name,
    }
    if target.namespace is not None:
        head["namespace"] = target.namespace
    events: list[Event] = [
        ("response.custom_tool_call_input.delta", {"delta": text}),
        ("response.custom_tool_call_input.done", {"input": text}),
    ]
    body: Object = {**head, "input": text, "status": "completed"}
    return Item(body, {**head, "input": "", "status": "in_progress"}, events)


def _local_shell(id: str, action: Object) -> Item:
    full: Object = {"type": "exec", "env": {}, **action}
    return _whole({"type": "local_shell_call", "id": f"lsh_{id}", "call_id": id, "action": full})


def _shell(id: str, action: Object) -> Item:
    return _whole({"type": "shell_call", "id": f"sh_{id}", "call_id": id, "action": action})


def _patch(id: str, operation: Object) -> Item:
    head = {"type": "apply_patch_call", "id": f"apc_{id}", "call_id": id}
    return _whole({**head, "operation": operation})


def _whole(head: Object) -> Item:
    """An item whose content is not streamed."""
    return Item({**head, "status": "completed"}, {**head, "status": "in_progress"}, [])


_SPECIAL: dict[str, Callable[[str, Object], Item]] = {
    "local_shell": _local_shell,
    "shell": _shell,
    "apply_patch": _patch,
}


def _object(text: str) -> Object | None:
    """The fields of a JSON object as they were written; None if it is none."""
    try:
        return {**msgspec.json.decode(text, type=dict[str, Raw])}
    except (msgspec.DecodeError, RecursionError):
        return None
