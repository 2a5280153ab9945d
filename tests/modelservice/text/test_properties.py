"""Whatever the text and however it is cut: nothing is lost, nothing depends on the cutting."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rock.modelservice.text import (
    FORMATS,
    ContentDelta,
    Event,
    Format,
    Markup,
    ReasoningDelta,
    TextParser,
    ToolCallArguments,
    ToolCallEnd,
    message_of,
    parse,
    source_of,
)
from tests.modelservice.text.written import FAMILIES, Family, Wanted, tool

EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)
EACH_FAMILY = pytest.mark.parametrize("name", FAMILIES)
MEGABYTE = 1_000_000
TOOLS = [tool("f", x={"type": "integer"}), tool("g")]
EXAMPLES: list[list[Wanted]] = [
    [("f", {"x": 1})],
    [("f", {"x": 1, "y": "</tool_call> \u2028 é"}), ("g", {})],
]


def events_of(pieces: Sequence[str], name: str, *, in_reasoning: bool = False) -> list[Event]:
    parser = TextParser(name, tools=TOOLS, in_reasoning=in_reasoning)
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


def joined(events: Sequence[Event]) -> list[Event]:
    """The events with neighbouring deltas of one kind made one."""
    merged: list[Event] = []
    for event in events:
        match merged[-1] if merged else None, event:
            case (ContentDelta(a), ContentDelta(b)) | (ReasoningDelta(a), ReasoningDelta(b)):
                merged[-1] = type(event)(a + b)
            case Markup(a), Markup(b):
                merged[-1] = Markup(a + b)
            case _:
                merged.append(event)
    return merged


def tags_of(entry: Format) -> list[str]:
    """What may come out as markup, apart from space."""
    reasoning = [entry.reasoning.opening, entry.reasoning.closing] if entry.reasoning else []
    return [*reasoning, *([entry.section.closing] if entry.section else []), *entry.stops]


def without(text: str, at: int, length: int) -> str:
    """`text` with some characters missing, in the middle or to its end."""
    return text[:at] + text[at + length :]


@st.composite
def texts(draw: st.DrawFn, name: str) -> str:
    """Tags, halves of tags, calls, broken calls and any other text, in any order."""
    entry = FORMATS[name]
    tags = [*tags_of(entry), "<tool_call>", "</tool_call>", '{"name": "f", ', "[", "]", '"', "\\"]
    tags += ["<parameter=x>", "</parameter>", "</function>", "```", "; ", "\n", " "]
    if entry.calls:
        tags += entry.calls.openers
    calls = [FAMILIES[name].write(wanted) for wanted in EXAMPLES] if name in FAMILIES else []
    whole = st.sampled_from([*tags, *calls])
    broken = st.builds(without, whole, st.integers(0, 60), st.sampled_from([1, 1000]))
    parts = st.lists(st.one_of(whole, broken, st.text(max_size=8)), max_size=12)
    return "".join(draw(parts))


@st.composite
def cuttings(draw: st.DrawFn, text: str) -> list[str]:
    places = draw(st.lists(st.integers(0, len(text)), max_size=20))
    return [text[start:end] for start, end in pairwise([0, *sorted(places), len(text)])]


@EACH_FORMAT
@settings(max_examples=50, deadline=None)
@given(data=st.data(), in_reasoning=st.booleans())
def test_any_cutting_says_the_same_and_no_text_is_lost(
    name: str, data: st.DataObject, in_reasoning: bool
) -> None:
    text = data.draw(texts(name))
    whole = events_of([text], name, in_reasoning=in_reasoning)
    for pieces in (data.draw(cuttings(text)), list(text)):
        cut = events_of(pieces, name, in_reasoning=in_reasoning)
        assert joined(cut) == joined(whole)
    assert source_of(whole) == text
    assert message_of(whole) == parse(text, name, tools=TOOLS, in_reasoning=in_reasoning)


@EACH_FORMAT
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_only_space_and_known_tags_are_markup_and_the_rest_is_said(
    name: str, data: st.DataObject
) -> None:
    text = data.draw(texts(name))
    events = events_of([text], name)
    known = re.compile("|".join([r"\s+", *map(re.escape, tags_of(FORMATS[name]))]))
    for event in events:
        if isinstance(event, Markup):
            assert known.sub("", event.text) == ""
    if not any(isinstance(event, (Markup, ToolCallEnd, ReasoningDelta)) for event in events):
        assert parse(text, name, tools=TOOLS).content == text


@EACH_FAMILY
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_call_read_anywhere_is_a_call_when_its_source_stands_alone(
    name: str, data: st.DataObject
) -> None:
    entry = FORMATS[name]
    events = events_of([data.draw(texts(name))], name)
    arguments = [event.delta for event in events if isinstance(event, ToolCallArguments)]
    sources = [event.source for event in events if isinstance(event, ToolCallEnd)]
    again: list[str] = []
    for source in filter(None, sources):
        opened = not entry.section or source.startswith(entry.section.opening)
        alone = source if opened or not entry.section else entry.section.opening + source
        message = parse(alone, name, tools=TOOLS)
        assert message.content is None
        again += [call.function.arguments for call in message.tool_calls or []]
    assert again == arguments
    assert all(isinstance(json.loads(each), dict) for each in arguments)


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,20}", fullmatch=True)
PLAIN_VALUES = st.text(st.characters(exclude_characters="<\r\n", exclude_categories=["Cs"]))


def wanted_calls(family: Family) -> st.SearchStrategy[list[Wanted]]:
    values = PLAIN_VALUES if family.free_text else JSON_VALUES
    keys = NAMES if family.free_text else st.text()
    arguments = st.dictionaries(keys, values, max_size=4)
    return st.lists(st.tuples(NAMES, arguments), min_size=1, max_size=3)


@EACH_FAMILY
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_call_written_as_published_is_read_back(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    wanted = data.draw(wanted_calls(family))
    message = parse(f"Now.\n{family.write(wanted)}{family.stop}", name)
    assert message.content == "Now."
    assert [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ] == wanted


SHAPES = [
    ("value never ends", list(FAMILIES)),
    ("value full of its own end", ["qwen3_coder", "glm45"]),
    ("opener again and again", ["hermes", "llama3_json", "kimi_k2"]),
    ("stops that end nothing", ["hermes"]),
    ("deep nesting", ["mistral"]),
    ("only space", ["minimax_m2"]),
]


def unclosed(name: str) -> dict[str, str]:
    """A megabyte each of what would be slow if anything were looked at twice."""
    call = FAMILIES[name].write([("f", {"x": "#"})])
    opener, _, _ = call.partition("#")
    return {
        "value never ends": opener + "y</ " * (MEGABYTE // 4),
        "value full of its own end": opener + "</parameter> </arg_value>" * (MEGABYTE // 25),
        "opener again and again": opener * (MEGABYTE // len(opener)),
        "stops that end nothing": FAMILIES[name].stop * (MEGABYTE // len(FAMILIES[name].stop))
        + "x",
        "deep nesting": opener.removesuffix('"') + "[" * MEGABYTE,
        "only space": " " * MEGABYTE,
    }


@pytest.mark.parametrize(("shape", "name"), [(s, name) for s, names in SHAPES for name in names])
def test_a_megabyte_without_an_end_takes_linear_time(shape: str, name: str) -> None:
    text = unclosed(name)[shape]
    started = time.process_time()
    events = events_of([text[at : at + 16] for at in range(0, len(text), 16)], name)
    # Linear is a fraction of a second; going back over the held text would take many minutes.
    assert time.process_time() - started < 10
    assert source_of(events) == text
    assert not any(isinstance(event, ToolCallEnd) for event in events)
