"""Which calls of an agent are not steps of its task: titles, summaries, probes, sub-agents.

Agents make them with the same key, so that only marks tell: a header, or words that the program
itself puts into its prompts. The marks are those of published clients; docs/dialects.md lists them.
A call without a mark is an ordinary one. A pure function of the request; never raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.wire import CanonicalRequest

Kind = Literal["subagent", "compaction", "title", "commit_message", "probe", "other"]

CLAUDE_SESSION_HEADER = "x-claude-code-session-id"
CLAUDE_AGENT_HEADER = "x-claude-code-agent-id"
CODEX_TURN_HEADER = "x-codex-turn-metadata"
HEAD_CHARS = 500
"""How far into a system prompt a mark is looked for; every known one is near the beginning."""

_SYSTEM_MARKS: tuple[tuple[str, Kind], ...] = (
    ("You are a title generator", "title"),
    ("Analyze if this message indicates a new conversation topic", "title"),
    ("Generate a concise, sentence-case title", "title"),
    ("context summarization assistant", "compaction"),
    ("context summarization agent", "compaction"),
    ("the component that summarizes internal chat history", "compaction"),
    ("helpful AI assistant tasked with summarizing conversations", "compaction"),
    ("generates concise, one-line Git commit messages", "commit_message"),
)
_USER_MARKS: tuple[tuple[str, Kind], ...] = (
    ("You are performing a CONTEXT CHECKPOINT COMPACTION", "compaction"),
    ("CRITICAL: Respond with TEXT ONLY", "compaction"),
    ("Please write a 5-10 word title for the following conversation", "title"),
)
_USER_HEADS = tuple(mark for mark, _ in _USER_MARKS)
MARKS = (*_SYSTEM_MARKS, *_USER_MARKS)
PROBE_TEXT = "quota"


class _Message(Struct):
    role: str = ""
    content: str | list[Raw] | None = None


_message = msgspec.json.Decoder(_Message)


class _Head(Struct):
    role: str = ""


_head = msgspec.json.Decoder(_Head)


class _Part(Struct):
    text: str = ""


class _Turn(Struct):
    request_kind: str | None = None


def classify(request: CanonicalRequest, headers: Mapping[str, str]) -> Kind | None:
    """What the call is for, or None for a step of the task."""
    if headers.get(CLAUDE_AGENT_HEADER):
        return "subagent"
    turn = headers.get(CODEX_TURN_HEADER)
    if turn and (kind := _codex_kind(turn)) is not None:
        return kind
    if not request.messages:
        return None
    last = _decoded(request.messages[-1])
    text = _text(last)
    if last.role == "user" and (kind := _opening(text)) is not None:
        return kind
    if request.max_tokens == 1 and len(request.messages) == 1 and text.strip() == PROBE_TEXT:
        return "probe"
    return _marked_system(request)


def never_asks_twice(kind: Kind | None, headers: Mapping[str, str]) -> bool:
    """Whether an equal request is a retry even where its client does not say so.

    Steps of claude-code and codex name their session in the body, and within one nothing is asked
    twice on purpose. Not so their other calls: two sub-agents may begin with the same words, and a
    summary that cannot be used is asked for again.
    """
    named = headers.get(CLAUDE_SESSION_HEADER) or headers.get(CODEX_TURN_HEADER)
    return kind is None and bool(named)


def _codex_kind(header: str) -> Kind | None:
    """Codex says it in a header; an ordinary turn is `turn`."""
    try:
        said = msgspec.json.decode(header, type=_Turn).request_kind
    except (msgspec.DecodeError, RecursionError):
        return None
    if said in (None, "turn"):
        return None
    return "compaction" if said == "compaction" else "other"


def _marked_system(request: CanonicalRequest) -> Kind | None:
    for raw in request.messages[:3]:
        if _role(raw) not in ("system", "developer"):
            return None
        head = _text(_decoded(raw))[:HEAD_CHARS]
        for mark, kind in _SYSTEM_MARKS:
            if mark in head:
                return kind
    return None


def _opening(text: str) -> Kind | None:
    """A user may quote a mark; the program's own text begins with it."""
    start = text.lstrip()
    if not start.startswith(_USER_HEADS):
        return None
    return next(kind for mark, kind in _USER_MARKS if start.startswith(mark))


def _role(raw: Raw) -> str:
    """Without reading the rest, which can be long."""
    try:
        return _head.decode(raw).role
    except (msgspec.DecodeError, RecursionError):
        return ""


def _decoded(raw: Raw) -> _Message:
    try:
        return _message.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return _Message()


def _text(message: _Message) -> str:
    """The last text of a message: programs put their own words after what they quote."""
    if not isinstance(message.content, list):
        return message.content or ""
    for part in reversed(message.content):
        try:
            if text := msgspec.json.decode(part, type=_Part).text:
                return text
        except (msgspec.DecodeError, RecursionError):
            continue
    return ""
