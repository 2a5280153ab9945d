"""What a call's chain is for, and why it is a chain of its own. Pure functions of what was said.

Two answers per call. Its *class* says whose work it is: the main agent's, a sub-agent's, or a side
job (compaction, title, probe, …) that training leaves out by default. Its *branch* says why it does
not go on in its parent's chain. Marks in the request decide first (`auxiliary.classify`); without
one, the place in the message graph does, and words that the program carried over: a sub-agent's
task is an argument of the call that started it, and a history that was compacted quotes its summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.wire import AssistantMessage, ChainClass

_CLASS_OF_KIND: dict[str, ChainClass] = {"subagent": "subagent", "compaction": "compaction"}
MIN_TASK_CHARS = 12
"""A shorter argument that comes again as a message may do so by chance."""
MIN_SUMMARY_CHARS = 60
"""The same for an answer that is quoted."""
REFINABLE = ("new_root", "edit")
LOOK_BACK = 32
"""Among how many of a session's last calls answers are searched."""


class Earlier(Struct, frozen=True):
    """An answered call of the session, for `refined`."""

    chain_class: ChainClass
    messages: Sequence[AssistantMessage]
    """One for each choice."""


class _Message(Struct):
    role: str = ""
    content: str | list[Raw] | None = None


class _Part(Struct):
    text: str = ""


def class_of_kind(kind: str | None) -> ChainClass | None:
    """The class that a mark decides; None without a mark."""
    return None if kind is None else _CLASS_OF_KIND.get(kind, "auxiliary")


def refined(branch: str | None, new: Iterable[bytes], earlier: Sequence[Earlier]) -> str | None:
    """A better reason than `new_root` or `edit` for an unmarked call, where one can be seen.

    `new` are the request's messages that the graph did not know, `earlier` the session's answers,
    oldest first.
    """
    if branch not in REFINABLE:
        return branch
    ordinary = [call for call in earlier if call.chain_class != "auxiliary"]
    if ordinary and ordinary[-1].chain_class == "compaction":
        return "compaction"
    texts = [text for message in new for text in _texts(message)]
    longest = max(map(len, texts), default=0)
    if branch == "new_root" and not tasks_given(earlier).isdisjoint(map(str.strip, texts)):
        return "subagent"
    if longest >= MIN_SUMMARY_CHARS and any(
        any(summary in text for text in texts) for summary in _summaries(earlier, longest)
    ):
        return "compaction"
    return branch


def _summaries(earlier: Iterable[Earlier], longest: int) -> Iterator[str]:
    """Answers' texts of up to `longest` characters that are long enough to be known again."""
    for call in earlier:
        for said in call.messages:
            text = said.content
            if text and len(text := text.strip()) >= MIN_SUMMARY_CHARS and len(text) <= longest:
                yield text


def tasks_given(earlier: Iterable[Earlier]) -> set[str]:
    """Every text that an answer's tool call gave as an argument."""
    found: set[str] = set()
    for call in earlier:
        for said in call.messages:
            for tool_call in said.tool_calls or ():
                found.update(_arguments(tool_call.function.arguments))
    return found


def _arguments(text: str) -> Iterable[str]:
    try:
        values = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return
    if isinstance(values, dict):
        for value in cast("dict[str, Any]", values).values():
            if isinstance(value, str) and len(value.strip()) >= MIN_TASK_CHARS:
                yield value.strip()


def _texts(raw: bytes) -> Iterable[str]:
    """The text blocks of a message that no model wrote."""
    try:
        message = msgspec.json.decode(raw, type=_Message)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    if message.role == "assistant" or message.content is None:
        return
    if isinstance(message.content, str):
        yield message.content
        return
    for part in message.content:
        try:
            yield msgspec.json.decode(part, type=_Part).text
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            continue
