"""The output items of a response, and the events that each is streamed as.

One answer is at most one reasoning item, one message and its calls, in this order, unless a worker
that streams goes back to what it had ended. A call of a function that stood for another kind of tool
goes back as that kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.dialects.canonical import Object
from rock.modelservice.dialects.responses.items import SEALED
from rock.modelservice.dialects.responses.tools import Target, Targets
from rock.modelservice.graph.answer import AnswerChoice

Event = tuple[str, Object]
"""Name and fields; item id and output index are added by the stream."""


class Item(Protocol):
    """An output item while its content comes in."""

    @property
    def begun(self) -> Object:
        """The item before its content came."""
        ...

    def opening(self) -> list[Event]:
        """Events after the one that announces it."""
        ...

    def more(self, text: str) -> list[Event]:
        """More of its text. What is shown only as a whole gives no events."""
        ...

    def closing(self, status: str) -> list[Event]: ...

    def body(self, status: str) -> Object:
        """The finished item; `status` is how the answer ended, where the item has a say in it."""
        ...


class _Input(Struct, forbid_unknown_fields=True):
    input: str


def output_items(
    call_id: str, choice: AnswerChoice, targets: Targets, *, sealed: bool
) -> list[Object]:
    """The finished items of a whole answer."""
    message = choice.message
    status = status_of(choice)
    made: list[Item] = []
    if message.reasoning_content:
        made.append(ReasoningItem(call_id, 0, sealed=sealed))
        made[-1].more(message.reasoning_content)
    if message.content or not message.tool_calls:
        made.append(MessageItem(call_id, 0))
        made[-1].more(message.content or "")
    for index, call in enumerate(message.tool_calls or ()):
        name = call.function.name
        made.append(call_item(call.id or f"call_{call_id}_{index}", name, targets))
        made[-1].more(call.function.arguments)
    return [item.body(status) for item in made]


def status_of(choice: AnswerChoice) -> str:
    return "completed" if choice.finish_reason in ("stop", "tool_calls") else "incomplete"


def call_item(id: str, name: str, targets: Targets) -> Item:
    target = targets.get(name, Target("function", name))
    if target.kind == "custom":
        return CustomItem(id, target)
    if target.kind in _SPECIAL:
        return SpecialItem(id, target)
    return FunctionItem(id, target)


def _id(kind: str, call_id: str, number: int) -> str:
    """An answer has one item of a kind, unless its worker went back to that kind."""
    return f"{kind}_{call_id}" if number == 0 else f"{kind}_{call_id}_{number}"


class ReasoningItem:
    def __init__(self, call_id: str, number: int, *, sealed: bool) -> None:
        id = _id("rs", call_id, number)
        self.begun: Object = {"type": "reasoning", "id": id, "summary": []}
        # Not empty, so that clients send the item back; the text itself is in the summary.
        self._sealed = {"encrypted_content": f"{SEALED}{call_id}"} if sealed else {}
        self._text: list[str] = []

    def opening(self) -> list[Event]:
        return [("response.reasoning_summary_part.added", {"summary_index": 0, **self._part("")})]

    def more(self, text: str) -> list[Event]:
        self._text.append(text)
        return [("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text})]

    def closing(self, status: str) -> list[Event]:
        text = "".join(self._text)
        return [
            ("response.reasoning_summary_text.done", {"summary_index": 0, "text": text}),
            ("response.reasoning_summary_part.done", {"summary_index": 0, **self._part(text)}),
        ]

    def body(self, status: str) -> Object:
        part = self._part("".join(self._text))["part"]
        return {**self.begun, "summary": [part], **self._sealed}

    def _part(self, text: str) -> Object:
        return {"part": {"type": "summary_text", "text": text}}


class MessageItem:
    def __init__(self, call_id: str, number: int) -> None:
        self._head: Object = {
            "type": "message",
            "id": _id("msg", call_id, number),
            "role": "assistant",
        }
        self.begun: Object = {**self._head, "status": "in_progress", "content": []}
        self._text: list[str] = []

    def opening(self) -> list[Event]:
        return [("response.content_part.added", {"content_index": 0, "part": self._part("")})]

    def more(self, text: str) -> list[Event]:
        self._text.append(text)
        delta: Object = {"content_index": 0, "delta": text, "logprobs": []}
        return [("response.output_text.delta", delta)] if text else []

    def closing(self, status: str) -> list[Event]:
        text = "".join(self._text)
        at: Object = {"content_index": 0}
        return [
            ("response.output_text.done", {**at, "text": text, "logprobs": []}),
            ("response.content_part.done", {**at, "part": self._part(text)}),
        ]

    def body(self, status: str) -> Object:
        return {**self._head, "status": status, "content": [self._part("".join(self._text))]}

    def _part(self, text: str) -> Object:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_head(type: str, item_id: str, call_id: str, target: Target) -> Object:
    head: Object = {"type": type, "id": item_id, "call_id": call_id, "name": target.name}
    return {**head, **_namespace(target)}


class FunctionItem:
    """A function call. Arguments go as the model wrote them, valid JSON or not."""

    def __init__(self, id: str, target: Target) -> None:
        self._head = _call_head("function_call", f"fc_{id}", id, target)
        self.begun: Object = {**self._head, "arguments": "", "status": "in_progress"}
        self._text: list[str] = []

    def opening(self) -> list[Event]:
        return []

    def more(self, text: str) -> list[Event]:
        self._text.append(text)
        return [("response.function_call_arguments.delta", {"delta": text})] if text else []

    def closing(self, status: str) -> list[Event]:
        return [("response.function_call_arguments.done", {"arguments": "".join(self._text)})]

    def body(self, status: str) -> Object:
        return {**self._head, "arguments": "".join(self._text), "status": "completed"}


class CustomItem:
    """A call of a free-form tool: its text stands inside JSON, so that it is shown as a whole."""

    def __init__(self, id: str, target: Target) -> None:
        self._head = _call_head("custom_tool_call", f"ctc_{id}", id, target)
        self.begun: Object = {**self._head, "input": "", "status": "in_progress"}
        self._text: list[str] = []

    def opening(self) -> list[Event]:
        return []

    def more(self, text: str) -> list[Event]:
        self._text.append(text)
        return []

    def closing(self, status: str) -> list[Event]:
        text = self._input()
        return [
            ("response.custom_tool_call_input.delta", {"delta": text}),
            ("response.custom_tool_call_input.done", {"input": text}),
        ]

    def body(self, status: str) -> Object:
        return {**self._head, "input": self._input(), "status": "completed"}

    def _input(self) -> str:
        """The text inside `input`; if the model did not write that, all that it wrote."""
        arguments = "".join(self._text)
        try:
            return msgspec.json.decode(arguments, type=_Input).input
        except (msgspec.DecodeError, RecursionError):
            return arguments


class SpecialItem:
    """A call of a tool that has an item type of its own. Known only when it is whole: what the model
    wrote decides whether it is that, or a plain function call."""

    def __init__(self, id: str, target: Target) -> None:
        self._id = id
        self._target = target
        self._text: list[str] = []

    @property
    def begun(self) -> Object:
        return self._whole("in_progress") or self._function().begun

    def opening(self) -> list[Event]:
        return []

    def more(self, text: str) -> list[Event]:
        self._text.append(text)
        return []

    def closing(self, status: str) -> list[Event]:
        if self._whole(status) is not None:
            return []
        function = self._function()
        return [*function.more("".join(self._text)), *function.closing(status)]

    def body(self, status: str) -> Object:
        whole = self._whole("completed")
        if whole is not None:
            return whole
        function = self._function()
        function.more("".join(self._text))
        return function.body(status)

    def _function(self) -> FunctionItem:
        return FunctionItem(self._id, self._target)

    def _whole(self, status: str) -> Object | None:
        action = _object("".join(self._text))
        if action is None:
            return None
        return {**_SPECIAL[self._target.kind](self._id, action), "status": status}


def _namespace(target: Target) -> Object:
    return {} if target.namespace is None else {"namespace": target.namespace}


def _local_shell(id: str, action: Object) -> Object:
    full: Object = {"type": "exec", "env": {}, **action}
    return {"type": "local_shell_call", "id": f"lsh_{id}", "call_id": id, "action": full}


def _shell(id: str, action: Object) -> Object:
    return {"type": "shell_call", "id": f"sh_{id}", "call_id": id, "action": action}


def _patch(id: str, operation: Object) -> Object:
    head = {"type": "apply_patch_call", "id": f"apc_{id}", "call_id": id}
    return {**head, "operation": operation}


_SPECIAL: dict[str, Callable[[str, Object], Object]] = {
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
