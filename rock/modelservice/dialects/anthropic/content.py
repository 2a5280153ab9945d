"""Anthropic content blocks to OpenAI-chat messages.

One Anthropic message can become several: each `tool_result` is a `tool` message of its own, in its
place. Order inside an assistant message is text, then calls, as chat completions have it.
Blocks that stand for work done on Anthropic's servers are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.canonical import Assistant, Object, Part

SIGNATURE = "rock-"
"""What a signature made here begins with; any other is kept for whoever made it."""
MALFORMED = "malformed_arguments"
"""Sole key of a tool input whose JSON the model got wrong; the value is what it wrote."""
BILLING = "x-anthropic-billing-header:"
"""Begins a system block that changes with every turn and is meant for no model."""


class _Message(Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Raw]


class _Text(Struct):
    text: str


class _Thinking(Struct):
    thinking: str
    signature: str | None = None


class _ToolUse(Struct):
    id: str
    name: str
    input: Raw


class _ToolResult(Struct):
    tool_use_id: str
    content: str | list[Raw] | None = None
    is_error: bool | None = None


class _Source(Struct):
    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""
    content: str | list[Raw] | None = None


class _Image(Struct):
    source: _Source


class _Document(Struct):
    source: _Source
    title: str | None = None
    context: str | None = None


class _SearchResult(Struct):
    content: list[Raw]
    title: str | None = None
    source: str | None = None


class _ToolReference(Struct):
    tool_name: str


def messages(raw: Raw, name: str) -> Iterator[Raw]:
    """The canonical messages of one Anthropic message. Raises BadRequest."""
    sent = reading.read(raw, _Message, name)
    if sent.role == "assistant":
        yield _assistant(sent.content, f"{name}.content")
    elif isinstance(sent.content, str):
        yield canonical.message(sent.role, sent.content)
    else:
        yield from _asked(sent.role, sent.content, f"{name}.content")


def system(raw: Raw) -> tuple[Raw | None, str | None]:
    """(the system message, the billing block). The second is kept apart from the prompt."""
    head = bytes(raw)[:1]
    if head == b"n":
        return None, None
    if head == b'"':
        text = reading.read(raw, str, "system")
        return (canonical.message("system", text) if text else None), None
    sent = reading.read(raw, list[Raw], "system")
    parts: list[Part] = []
    billing: str | None = None
    for index, block in enumerate(sent):
        for part in _parts(block, f"system[{index}]"):
            if part["type"] == "text" and str(part["text"]).startswith(BILLING):
                billing = part["text"]
            else:
                parts.append(part)
    return (canonical.message("system", canonical.content(parts)) if parts else None), billing


def _asked(role: str, blocks: list[Raw], name: str) -> Iterator[Raw]:
    parts: list[Part] = []
    told = False
    for index, block in enumerate(blocks):
        place = f"{name}[{index}]"
        if reading.tag(block, place) != "tool_result":
            parts += _parts(block, place)
            continue
        if parts:
            yield canonical.message(role, canonical.content(parts))
            parts = []
        yield _tool_result(block, place)
        told = True
    if parts or not told:
        yield canonical.message(role, canonical.content(parts))


def _tool_result(block: Raw, name: str) -> Raw:
    sent = reading.read(block, _ToolResult, name)
    if isinstance(sent.content, list):
        content = canonical.content(_all_parts(sent.content, f"{name}.content"))
    else:
        content = sent.content or ""
    more: Object = {"is_error": True} if sent.is_error else {}
    return canonical.message("tool", content, tool_call_id=sent.tool_use_id, **more)


def _all_parts(blocks: list[Raw], name: str) -> list[Part]:
    return [
        part for index, block in enumerate(blocks) for part in _parts(block, f"{name}[{index}]")
    ]


def _parts(block: Raw, name: str) -> list[Part]:
    """The content parts of a block that is not part of the conversation's machinery."""
    kind = reading.tag(block, name)
    if kind == "text":
        return [canonical.text_part(reading.read(block, _Text, name).text)]
    if kind == "image":
        return [_image(reading.read(block, _Image, name).source, f"{name}.source")]
    if kind == "document":
        return _document(reading.read(block, _Document, name), f"{name}.source")
    if kind == "search_result":
        found = reading.read(block, _SearchResult, name)
        parts = _all_parts(found.content, f"{name}.content")
        return [{**part, "title": found.title, "source": found.source} for part in parts]
    if kind == "tool_reference":
        tool = reading.read(block, _ToolReference, name).tool_name
        return [canonical.text_part(f"Tool available: {tool}", tool_reference=tool)]
    raise reading.refused(
        name, f"a {kind[:60]!r} block", "it does not belong here, or is run by Anthropic"
    )


def _image(source: _Source, name: str) -> Part:
    if source.type == "base64":
        return canonical.image_part(canonical.data_url(source.media_type, source.data))
    if source.type == "url":
        return canonical.image_part(source.url)
    raise reading.refused(name, f"source type {source.type[:60]!r}", "send base64 or url")


def _document(sent: _Document, name: str) -> list[Part]:
    """Text stays text; a PDF is a file part. Title and context stay with it."""
    source = sent.source
    about = {
        key: value for key, value in (("title", sent.title), ("context", sent.context)) if value
    }
    if source.type == "text":
        return [canonical.text_part(source.data, **about)]
    if source.type == "content":
        blocks = source.content
        if not isinstance(blocks, list):
            return [canonical.text_part(blocks or "", **about)]
        return [{**part, **about} for part in _all_parts(blocks, f"{name}.content")]
    if source.type == "base64":
        data = canonical.data_url(source.media_type, source.data)
        return [canonical.file_part(file_data=data, filename=sent.title, context=sent.context)]
    if source.type == "url":
        return [canonical.file_part(file_url=source.url, filename=sent.title, context=sent.context)]
    raise reading.refused(
        name, f"source type {source.type[:60]!r}", "send text, content, base64 or url"
    )


def _assistant(content: str | list[Raw], name: str) -> Raw:
    said = Assistant()
    if isinstance(content, str):
        said.text.append(content)
        return said.raw()
    for index, block in enumerate(content):
        _said(said, block, f"{name}[{index}]")
    return said.raw()


def _said(said: Assistant, block: Raw, name: str) -> None:
    kind = reading.tag(block, name)
    if kind == "text":
        said.text.append(reading.read(block, _Text, name).text)
    elif kind == "tool_use":
        use = reading.read(block, _ToolUse, name)
        said.calls.append(canonical.call(use.id, use.name, _arguments(use.input, f"{name}.input")))
    elif kind == "thinking":
        thought = reading.read(block, _Thinking, name)
        if thought.thinking:
            said.reasoning.append(thought.thinking)
        if thought.signature and not thought.signature.startswith(SIGNATURE):
            _keep(said, block)
    elif kind == "redacted_thinking":
        _keep(said, block)
    else:
        raise reading.refused(
            name, f"a {kind[:60]!r} block", "it is no part of what a model says here"
        )


def _keep(said: Assistant, block: Raw) -> None:
    """Thinking that another service signed or sealed travels with its message, unread."""
    said.more.setdefault("thinking_blocks", []).append(block)


def _arguments(sent: Raw, name: str) -> str:
    """The JSON text of a tool input; what was wrapped because it was malformed is unwrapped."""
    fields = reading.fields(sent, name)
    if fields.keys() == {MALFORMED}:
        try:
            return msgspec.json.decode(fields[MALFORMED], type=str)
        except msgspec.DecodeError:
            pass  # an agent's own field of that name
    return bytes(sent).decode()
