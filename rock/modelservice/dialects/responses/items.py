"""Responses input items to OpenAI-chat messages.

What a model said in one reply comes back as several items (reasoning, message, calls); they become
one assistant message again. Items that stand for state or work on OpenAI's servers are refused by
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.canonical import Assistant, Part
from rock.modelservice.dialects.responses.tools import full_name

SEALED = "rock-"
"""What encrypted reasoning made here begins with; any other is kept for whoever made it."""
_THOUGHT = re.compile(r"<think>\n(.*)\n</think>", re.DOTALL)
"""Reasoning that a client (pydantic-ai) sends back as a message of its own, before the answer's."""
NOT_HERE = "it stands for state or work on OpenAI's servers; send the conversation itself"


class _Head(Struct):
    type: str | None = None
    role: str | None = None
    id: str | None = None


class _Message(Struct):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Raw]


class _Text(Struct):
    text: str


class _Refusal(Struct):
    refusal: str


class _Image(Struct):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class _File(Struct):
    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None


class _Reasoning(Struct):
    summary: list[Raw] = msgspec.field(default_factory=list[Raw])
    content: list[Raw] | None = None
    encrypted_content: str | None = None


class _FunctionCall(Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class _CustomCall(Struct):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class _ActionCall(Struct):
    call_id: str
    action: Raw


class _PatchCall(Struct):
    call_id: str
    operation: Raw


class _Output(Struct):
    call_id: str
    output: str | list[Raw]


class _LocalShellOutput(Struct):
    output: str
    id: str | None = None
    call_id: str | None = None


class _ShellOutput(Struct):
    call_id: str
    output: Raw


class _PatchOutput(Struct):
    call_id: str
    status: str
    output: str | None = None


def messages(raw: Raw) -> list[Raw]:
    """The `input` field. Raises BadRequest."""
    if bytes(raw)[:1] == b'"':
        return [canonical.message("user", reading.read(raw, str, "input"))]
    reader = _Reader()
    for index, item in enumerate(reading.read(raw, list[Raw], "input")):
        reader.add(item, f"input[{index}]")
    return reader.done()


class _Reader:
    """Puts items together; `_said` is the assistant message that is still growing."""

    def __init__(self) -> None:
        self._made: list[Raw] = []
        self._said = Assistant()
        self._thought: re.Match[str] | None = None
        """Read, but only what follows says whether it was reasoning."""

    def add(self, item: Raw, name: str) -> None:
        head = reading.read(item, _Head, name)
        kind = head.type or ("message" if head.role is not None else "item_reference")
        if kind == "message":
            self._message(reading.read(item, _Message, name), name)
        elif kind == "reasoning":
            self._reasoning(reading.read(item, _Reasoning, name), name)
        elif kind in CALLS:
            self._said.calls.append(CALLS[kind](item, name))
        elif kind in OUTPUTS:
            self._put(OUTPUTS[kind](item, name))
        else:
            raise reading.refused(f"{name}.type", f"a {kind[:60]!r} item", NOT_HERE)

    def done(self) -> list[Raw]:
        self._end()
        return self._made

    def _put(self, message: Raw) -> None:
        self._end()
        self._made.append(message)

    def _end(self) -> None:
        thought, self._thought = self._thought, None
        if thought and (self._said.text or self._said.calls):
            self._said.reasoning.insert(0, thought[1])
        elif thought:
            self._said.text.append(thought[0])
        if self._said:
            self._made.append(self._said.raw())
            self._said = Assistant()

    def _message(self, sent: _Message, name: str) -> None:
        if sent.role != "assistant":
            content = sent.content
            if not isinstance(content, str):
                content = canonical.content(_parts(content, f"{name}.content"))
            self._put(canonical.message(sent.role, content))
            return
        if self._said.text or self._said.calls:
            self._end()  # a reply has one message, and it comes before the calls
        if isinstance(sent.content, str):
            if (thought := _THOUGHT.fullmatch(sent.content)) is not None:
                self._end()
                self._thought = thought
                return
            self._said.text.append(sent.content)
        else:
            self._said.text += _texts(sent.content, f"{name}.content")

    def _reasoning(self, sent: _Reasoning, name: str) -> None:
        if self._said.text or self._said.calls:
            self._end()  # a reply begins with its reasoning
        part = "content" if sent.content else "summary"
        self._said.reasoning += _texts(sent.content or sent.summary, f"{name}.{part}")
        sealed = sent.encrypted_content
        if sealed and not sealed.startswith(SEALED):
            self._said.more.setdefault("encrypted_reasoning", []).append(sealed)


def _texts(parts: list[Raw], name: str) -> Iterator[str]:
    """The texts of parts that can only be text."""
    for index, part in enumerate(parts):
        place = f"{name}[{index}]"
        kind = reading.tag(part, place)
        if kind == "refusal":
            yield reading.read(part, _Refusal, place).refusal
        elif kind in ("output_text", "input_text", "text", "summary_text", "reasoning_text"):
            yield reading.read(part, _Text, place).text
        else:
            raise reading.unknown(f"{place}.type", kind, part, "a text part")


def _parts(parts: list[Raw], name: str) -> list[Part]:
    return [_part(part, f"{name}[{index}]") for index, part in enumerate(parts)]


def _part(part: Raw, name: str) -> Part:
    kind = reading.tag(part, name)
    if kind in ("input_text", "output_text", "text"):
        return canonical.text_part(reading.read(part, _Text, name).text)
    if kind == "input_image":
        image = reading.read(part, _Image, name)
        if image.image_url is None:
            raise reading.refused(f"{name}.file_id", "an image by id", "send image_url")
        return canonical.image_part(image.image_url, image.detail)
    if kind == "input_file":
        file = reading.read(part, _File, name)
        if file.file_data is None and file.file_url is None:
            raise reading.refused(f"{name}.file_id", "a file by id", "send file_data or file_url")
        return canonical.file_part(
            file_data=file.file_data, file_url=file.file_url, filename=file.filename
        )
    raise reading.refused(f"{name}.type", f"a {kind[:60]!r} part", "send text, images or files")


def _function_call(item: Raw, name: str) -> canonical.Object:
    call = reading.read(item, _FunctionCall, name)
    return canonical.call(call.call_id, full_name(call.name, call.namespace), call.arguments)


def _custom_call(item: Raw, name: str) -> canonical.Object:
    call = reading.read(item, _CustomCall, name)
    arguments = msgspec.json.encode({"input": call.input}).decode()
    return canonical.call(call.call_id, full_name(call.name, call.namespace), arguments)


def _local_shell_call(item: Raw, name: str) -> canonical.Object:
    call = reading.read(item, _ActionCall, name)
    action = reading.fields(call.action, f"{name}.action")
    action.pop("type", None)  # always "exec"
    return canonical.call(call.call_id, "local_shell", msgspec.json.encode(action).decode())


def _shell_call(item: Raw, name: str) -> canonical.Object:
    call = reading.read(item, _ActionCall, name)
    reading.fields(call.action, f"{name}.action")
    return canonical.call(call.call_id, "shell", bytes(call.action).decode())


def _patch_call(item: Raw, name: str) -> canonical.Object:
    call = reading.read(item, _PatchCall, name)
    reading.fields(call.operation, f"{name}.operation")
    return canonical.call(call.call_id, "apply_patch", bytes(call.operation).decode())


def _output(item: Raw, name: str) -> Raw:
    sent = reading.read(item, _Output, name)
    content = sent.output
    if not isinstance(content, str):
        content = canonical.content(_parts(content, f"{name}.output"))
    return canonical.message("tool", content, tool_call_id=sent.call_id)


def _local_shell_output(item: Raw, name: str) -> Raw:
    sent = reading.read(item, _LocalShellOutput, name)
    call_id = sent.call_id or sent.id
    if call_id is None:
        raise reading.unknown(f"{name}.call_id", "", b"null", "the id of the call")
    return canonical.message("tool", sent.output, tool_call_id=call_id)


def _shell_output(item: Raw, name: str) -> Raw:
    """The structured result stays JSON, as text that a model can read."""
    sent = reading.read(item, _ShellOutput, name)
    reading.read(sent.output, list[Raw], f"{name}.output")
    return canonical.message("tool", bytes(sent.output).decode(), tool_call_id=sent.call_id)


def _patch_output(item: Raw, name: str) -> Raw:
    sent = reading.read(item, _PatchOutput, name)
    more: canonical.Object = {"is_error": True} if sent.status == "failed" else {}
    return canonical.message("tool", sent.output or sent.status, tool_call_id=sent.call_id, **more)


CALLS: dict[str, Callable[[Raw, str], canonical.Object]] = {
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "local_shell_call": _local_shell_call,
    "shell_call": _shell_call,
    "apply_patch_call": _patch_call,
}
OUTPUTS: dict[str, Callable[[Raw, str], Raw]] = {
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    "local_shell_call_output": _local_shell_output,
    "shell_call_output": _shell_output,
    "apply_patch_call_output": _patch_output,
}
