"""Each family's published format, one answer by hand: reasoning, text and two calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.modelservice.text import (
    FORMATS,
    TextParser,
    finish_reason,
    format_named,
    message_of,
    parse,
    source_of,
)
from rock.modelservice.wire import AssistantMessage
from tests.modelservice.text.written import FAMILIES, Family, tool

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"path": "a b.txt", "lines": 2, "text": 'naïve "日本" 🎉\n\tend'}),
    ("list", {}),
]
TOOLS = [tool("write_file", path={"type": "string"}, lines={"type": "integer"}), tool("list")]
EACH_FAMILY = pytest.mark.parametrize("name", FAMILIES)


def calls_of(message: AssistantMessage) -> list[tuple[str, Any]]:
    return [
        (call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or []
    ]


def answer(family: Family) -> str:
    thought = "{}\nFirst I look.\n{}\n\n".format(*family.reasoning) if family.reasoning else ""
    return f"{thought}I will write it.\n\n{family.write(CALLS)}{family.stop}\n"


def test_every_format_with_calls_has_an_example_here() -> None:
    assert set(FAMILIES) == {name for name, entry in FORMATS.items() if entry.calls}


@EACH_FAMILY
def test_reasoning_text_and_two_calls_come_out(name: str) -> None:
    message = parse(answer(FAMILIES[name]), name, tools=TOOLS)
    assert message.reasoning_content == ("First I look." if FAMILIES[name].reasoning else None)
    assert message.content == "I will write it."
    assert calls_of(message) == CALLS


@EACH_FAMILY
def test_the_same_comes_out_character_by_character(name: str) -> None:
    text = answer(FAMILIES[name])
    parser = TextParser(name, tools=TOOLS)
    events = [event for character in text for event in parser.feed(character)]
    events += parser.finish()
    assert message_of(events) == parse(text, name, tools=TOOLS)
    assert source_of(events) == text


@EACH_FAMILY
def test_an_answer_of_calls_alone_has_no_content(name: str) -> None:
    message = parse(FAMILIES[name].write(CALLS), name, tools=TOOLS)
    assert message.content is None
    assert calls_of(message) == CALLS


@EACH_FAMILY
def test_space_after_the_calls_is_no_content(name: str) -> None:
    written = FAMILIES[name].write(CALLS)
    for end in ("\n", " \n\n", f"\n{FAMILIES[name].stop}", f"\n{FAMILIES[name].stop}\n"):
        message = parse(written + end, name, tools=TOOLS)
        assert message.content is None
        assert calls_of(message) == CALLS


@EACH_FAMILY
def test_text_after_the_calls_is_content_too(name: str) -> None:
    message = parse(f"Before {FAMILIES[name].write(CALLS[:1])}\nafter", name, tools=TOOLS)
    assert message.content == "Before\nafter"
    assert calls_of(message) == CALLS[:1]


@EACH_FAMILY
def test_an_answer_cut_off_anywhere_keeps_its_whole_calls_and_loses_no_text(name: str) -> None:
    text = answer(FAMILIES[name])
    whole = parse(text, name, tools=TOOLS)
    for length in range(len(text)):
        parser = TextParser(name, tools=TOOLS)
        events = [*parser.feed(text[:length]), *parser.finish()]
        message = message_of(events)
        assert source_of(events) == text[:length]
        assert (message.tool_calls or []) == (whole.tool_calls or [])[: len(calls_of(message))]


@EACH_FAMILY
def test_a_call_cut_off_by_the_token_limit_is_content_and_ends_for_length(name: str) -> None:
    cut = FAMILIES[name].write(CALLS[:1]).split("naïve")[0].split("na\\u00efve")[0]
    message = parse(f"Go.\n{cut}", name, tools=TOOLS)
    assert (message.content, message.tool_calls) == (f"Go.\n{cut}", None)
    assert finish_reason(message, truncated=True) == "length"


def test_the_finish_reason_follows_the_calls() -> None:
    assert finish_reason(parse("done", "hermes"), truncated=False) == "stop"
    called = parse(FAMILIES["hermes"].write(CALLS), "hermes")
    assert finish_reason(called, truncated=False) == "tool_calls"


def test_an_unknown_format_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'qwen'.*hermes, qwen3_coder") as caught:
        parse("x", "qwen")
    assert all(name in caught.value.message for name in FORMATS)


def test_a_format_can_be_given_as_a_value() -> None:
    assert parse("<think>a</think>b", format_named("plain")).reasoning_content == "a"


def test_mistral_writes_later_calls_with_the_name_first() -> None:
    text = '[TOOL_CALLS]f[CALL_ID]a1B2[ARGS]{"x": 1}[TOOL_CALLS]g{}</s>'
    message = parse(text, "mistral")
    parser = TextParser("mistral")
    events = [event for character in text for event in parser.feed(character)]
    assert message_of([*events, *parser.finish()]) == message
    assert calls_of(message) == [("f", {"x": 1}), ("g", {})]
    assert [call.id for call in message.tool_calls or []] == ["a1B2", None]


def test_mistral_lists_may_carry_ids() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc"}]'
    assert [call.id for call in parse(text, "mistral").tool_calls or []] == ["abc"]


def test_kimi_ids_name_the_function_and_are_kept() -> None:
    message = parse(FAMILIES["kimi_k2"].write(CALLS), "kimi_k2")
    assert [call.id for call in message.tool_calls or []] == [
        "functions.write_file:0",
        "functions.list:1",
    ]


def test_llama_calls_need_no_tag_at_the_start_of_the_answer() -> None:
    text = '{"type": "function", "name": "f", "parameters": {"x": 1}}<|eot_id|>'
    assert calls_of(parse(text, "llama3_json", tools=[tool("f")])) == [("f", {"x": 1})]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada", "parameters": {"x": 1}}',
        'Say {"name": "f", "parameters": {}}',
        '<|python_tag|>search.call(query="x")',
        '{"answer": 42}',
    ],
)
def test_llama_answers_that_call_no_tool_stay_text(text: str) -> None:
    message = parse(text, "llama3_json", tools=[tool("f")])
    assert (message.content, message.tool_calls) == (text, None)
