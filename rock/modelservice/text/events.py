"""What a parser says about a model's text, piece by piece, and how the pieces become a message.

Events lose nothing: joined in order, the source text of all events is the model's text again,
character for character (`source_of`). What a message does not carry (tags, the space around a
call) is a `Markup` event or part of a call's `source`, so it can be looked at, counted, or mapped
back to tokens; it never just disappears.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from rock.modelservice.wire import AssistantMessage, FinishReason, ToolCall, ToolFunction


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer's text; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins. `index` counts the message's calls from 0; `id` only if the model wrote one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments: JSON text."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole. `source` is all the text it was written as, tags included.

    The calls that one opening tag introduces (a JSON array) share their text: the first has it,
    the others have "".
    """

    index: int
    source: str


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that only marks: a reasoning tag, the end of a turn, the space around a call."""

    text: str


Event: TypeAlias = (
    ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd | Markup
)


def source_of(events: Iterable[Event]) -> str:
    """The text that these events were read from."""
    parts: list[str] = []
    for event in events:
        match event:
            case ContentDelta(text) | ReasoningDelta(text) | Markup(text):
                parts.append(text)
            case ToolCallEnd(_, source):
                parts.append(source)
            case ToolCallStart() | ToolCallArguments():
                pass
    return "".join(parts)


def message_of(events: Iterable[Event]) -> AssistantMessage:
    """The message that these events spell.

    `content` is null only beside tool calls; an answer that says nothing has content "".
    """
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
            case ToolCallArguments(index, delta):
                arguments[index].append(delta)
            case ToolCallEnd() | Markup():
                pass
    calls = [
        ToolCall(function=ToolFunction(name=start.name, arguments="".join(parts)), id=start.id)
        for start, parts in zip(starts, arguments, strict=True)
    ]
    return AssistantMessage(
        content="".join(content) if content or not calls else None,
        reasoning_content="".join(reasoning) or None,
        tool_calls=calls or None,
    )


def finish_reason(message: AssistantMessage, *, truncated: bool) -> FinishReason:
    """`length` if sampling was cut off, else `tool_calls` if there are any, else `stop`."""
    if truncated:
        return "length"
    return "tool_calls" if message.tool_calls else "stop"
