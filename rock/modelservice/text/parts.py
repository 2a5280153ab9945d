"""Which tokens of an answer are its reasoning, its content and each of its tool calls. Pure.

A token belongs to what it begins in. Text is counted by a parser's events, which lose none of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from rock.modelservice.text.events import (
    ContentDelta,
    Event,
    Markup,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)
from rock.modelservice.wire import Part


def answer_parts(starts: Sequence[int], events: Iterable[Event]) -> list[Part]:
    """Runs of an answer's tokens, which begin at the characters `starts`, by what they spell."""
    runs: list[Part] = []
    at = position = 0
    opened: list[int] = []
    for event in events:
        match event:
            case ToolCallStart(index=index):
                opened.append(index)
                continue
            case ContentDelta(text=text):
                part = Part(tokens=0, kind="content")
            case ReasoningDelta(text=text):
                part = Part(tokens=0, kind="reasoning")
            case Markup(text=text):
                part = Part(tokens=0, kind="markup")
            case ToolCallEnd(source=text):
                part = Part(tokens=0, kind="tool_call", tool_calls=opened)
                opened = []
            case _:
                continue
        position += len(text)
        to = bisect_left(starts, position)
        _add(runs, part, to - at)
        at = to
    return runs


def _add(runs: list[Part], part: Part, count: int) -> None:
    before = runs[-1] if runs else None
    if before is not None and part.kind == "tool_call" == before.kind and not count:
        before.tool_calls += part.tool_calls  # calls in one list: the first has all of the text
    elif before is not None and part.kind == before.kind != "tool_call":
        before.tokens += count
    elif count:
        part.tokens = count
        runs.append(part)
