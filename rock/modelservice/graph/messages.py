"""When are two messages the same? Clients do not send back what the model wrote, letter by letter.

`describe` reduces a raw JSON message to a digest that survives what real clients change on the way:
arguments parsed and written again, null for "" for a missing key, text as a block list, spaces
around an assistant's text, reasoning dropped, `cache_control` moved. Tool-call ids of an assistant
message are reported apart, because they come back unchanged and identify the answer best.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.wire import AssistantMessage

_EMPTY = (b"null", b'""', b"[]", b"{}")
_ASSISTANT_FIELDS = ("content", "tool_calls", "function_call")
"""What an assistant message is; clients drop and invent the other fields."""
_IGNORED_FIELDS = frozenset({"role", "content", "cache_control", "tool_calls"})


class _Plain(Struct, forbid_unknown_fields=True):
    """The shape that most messages have; reading it directly is four times as fast."""

    role: str
    content: str


_plain_message = msgspec.json.Decoder(_Plain)
_fields = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[dict[str, Raw]])
_text = msgspec.json.Decoder(str)


class Described(Struct, frozen=True):
    """What the graph needs to know about a message."""

    digest: int
    """Python's own hash, whose key only this process knows: compared among the messages of one session,
    and those that follow the same one, 64 bits are plenty. A third of what half a SHA-256 costs."""
    role: str
    call_ids: tuple[str, ...] = ()
    """Ids of an assistant message's tool calls."""


def describe(message: bytes) -> Described:
    """Never raises: a message that cannot be read is the same only as its own bytes."""
    try:
        plain = _plain_message.decode(message)
        text = plain.content.strip() if plain.role == "assistant" else plain.content
        role = sys.intern(plain.role)  # a handful of roles, in every message
        return Described(_digest_text(role, text), role)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        pass  # it has more to it, or cannot be read
    try:
        return _describe(_fields.decode(message))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        return Described(_digest([b"unreadable", message]), "")


def describe_answer(message: AssistantMessage) -> Described:
    """The same for what the model said, without a detour over JSON where it is only text."""
    if message.tool_calls:
        said = {**msgspec.structs.asdict(message), "role": "assistant"}
        return describe(msgspec.json.encode(said))
    text = (message.content or "").strip()
    return Described(_digest_text("assistant", text), "assistant")


def _describe(fields: dict[str, Raw]) -> Described:
    role = sys.intern(_text.decode(fields["role"])) if "role" in fields else ""
    assistant = role == "assistant"
    text, others = _content(bytes(fields.get("content", Raw(b"null"))))
    parts: list[str | bytes] = [role, text.strip() if assistant else text, *others]
    calls = bytes(fields.get("tool_calls", Raw(b"null")))
    call_ids: list[str] = []
    if calls not in _EMPTY:
        for call in _list.decode(calls):
            parts.extend(_tool_call(call))
            if bytes(call.get("id", Raw(b"null"))) not in _EMPTY:
                call_ids.append(_text.decode(call["id"]))
    for name in sorted(fields.keys() - _IGNORED_FIELDS):
        value = bytes(fields[name])
        if value not in _EMPTY and (not assistant or name in _ASSISTANT_FIELDS):
            parts += [name.encode(), value]
    return Described(_digest(parts), role, tuple(call_ids) if assistant else ())


def _content(raw: bytes) -> tuple[str, list[bytes]]:
    """(all text joined, the blocks that are not text)."""
    if raw in _EMPTY:
        return "", []
    if raw[:1] == b'"':
        return _text.decode(raw), []
    if raw[:1] != b"[":
        return "", [raw]
    texts: list[str] = []
    others: list[bytes] = []
    for block in _list.decode(raw):
        if bytes(block.get("type", Raw(b""))) == b'"text"' and "text" in block:
            texts.append(_text.decode(block["text"]))
        else:
            # Where the block stood among the text matters too.
            others.append(str(sum(map(len, texts))).encode())
            for name in sorted(block.keys() - {"cache_control"}):
                others += [name.encode(), bytes(block[name])]
    return "".join(texts), others


def _tool_call(call: dict[str, Raw]) -> list[bytes]:
    if "function" not in call:
        return [bytes(call[name]) for name in sorted(call.keys() - {"id", "index"})]
    function = _fields.decode(call["function"])
    raw = bytes(function.get("arguments", Raw(b"null")))
    arguments = _text.decode(raw) if raw[:1] == b'"' else raw.decode()
    return [bytes(function.get("name", Raw(b""))), _arguments(arguments)]


def _arguments(text: str) -> bytes:
    """JSON arguments in one spelling; anything else as it is."""
    if not text.strip() or text == "null":
        return b"{}"
    try:
        return msgspec.json.encode(_one_spelling(msgspec.json.decode(text)), order="sorted")
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError):
        return text.encode()


def _one_spelling(value: Any) -> Any:
    """1.0 and 1 are one number: some clients' languages cannot tell them apart."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_one_spelling(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _one_spelling(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _digest_text(role: str, text: str) -> int:
    """`_digest` of a role and a text, which nearly all messages are."""
    return hash((role, text))


def _digest(parts: list[str | bytes]) -> int:
    return hash(tuple(parts))
