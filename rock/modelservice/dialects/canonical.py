"""Building the canonical request: OpenAI-chat messages, parts and tools, as JSON bytes.

Dialects whose wire differs from chat write their messages through these functions, so that the same
content has the same spelling whatever dialect it came in. Text that came as one piece stays a
string; several pieces stay a list of parts.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

Object = dict[str, Any]
Part = dict[str, Any]


def message(role: str, content: str | list[Part] | Raw, **more: object) -> Raw:
    return Raw(msgspec.json.encode({"role": role, "content": content, **more}))


def text_part(text: str, **more: object) -> Part:
    return {"type": "text", "text": text, **more}


def image_part(url: str, detail: str | None = None) -> Part:
    image: Object = {"url": url}
    if detail is not None:
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def file_part(**file: object) -> Part:
    """A document; only what was given is written."""
    return {"type": "file", "file": {name: value for name, value in file.items() if value}}


def content(parts: list[Part]) -> str | list[Part]:
    """One plain text is a string, nothing is the empty string, all else stays a list."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts


def data_url(media_type: str, base64: str) -> str:
    return f"data:{media_type};base64,{base64}"


def call(id: str, name: str, arguments: str) -> Object:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def function(
    name: str, description: str | None, parameters: object, strict: bool | None = None
) -> Raw:
    """A tool as chat completions have it. `parameters` may be Raw."""
    body: Object = {"name": name}
    if description is not None:
        body["description"] = description
    if parameters is not None:
        body["parameters"] = parameters
    if strict is not None:
        body["strict"] = strict
    return Raw(msgspec.json.encode({"type": "function", "function": body}))


class Assistant(Struct):
    """An assistant message while its pieces come in."""

    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[Object] = field(default_factory=list[Object])
    more: Object = field(default_factory=Object)
    """Fields that only this dialect knows; they do not tell messages apart."""

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.more)

    def raw(self) -> Raw:
        body: Object = {"role": "assistant", "content": "".join(self.text) if self.text else None}
        if self.reasoning:
            body["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            body["tool_calls"] = self.calls
        if body["content"] is None and not self.calls:
            body["content"] = ""  # null alone is no message
        return Raw(msgspec.json.encode({**body, **self.more}))


def raw(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))
