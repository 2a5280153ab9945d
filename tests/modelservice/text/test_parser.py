"""Reasoning, malformed calls, what is held back, and bad use of the parser."""

from __future__ import annotations

import pytest
from msgspec import Raw

from rock.errors import BadRequest, InvalidTransition
from rock.modelservice.text import (
    ContentDelta,
    Markup,
    ReasoningDelta,
    TextParser,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    parse,
)

GOOD = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def test_an_empty_answer_is_an_empty_string() -> None:
    message = parse("", "hermes")
    assert (message.content, message.reasoning_content, message.tool_calls) == ("", None, None)


@pytest.mark.parametrize("text", ["a\n</think>\n\nb", "\n<think>\na</think>b"])
def test_reasoning_may_have_been_opened_by_the_prompt(text: str) -> None:
    message = parse(text, "hermes", in_reasoning=True)
    assert (message.reasoning_content, message.content) == ("a", "b")


def test_reasoning_that_was_cut_off_is_reasoning() -> None:
    message = parse("<think>\nlet me\n", "hermes")
    assert (message.reasoning_content, message.content) == ("let me\n", "")


def test_empty_reasoning_is_none() -> None:
    message = parse("<think>\n\n</think>\n\nb", "hermes")
    assert (message.reasoning_content, message.content) == (None, "b")


def test_a_call_inside_the_reasoning_is_only_a_thought() -> None:
    message = parse(f"<think>maybe {GOOD}</think>no", "hermes")
    assert (message.reasoning_content, message.content) == (f"maybe {GOOD}", "no")
    assert message.tool_calls is None


def test_think_tags_after_the_answer_began_are_text() -> None:
    text = "The tag <think>x</think> is special"
    message = parse(text, "hermes")
    assert (message.content, message.reasoning_content) == (text, None)


def test_the_end_of_turn_is_dropped_from_reasoning_that_it_cuts_off() -> None:
    message = parse("<think>hm<|im_end|>\n", "hermes")
    assert (message.reasoning_content, message.content) == ("hm", "")


def test_end_markers_inside_the_text_are_text() -> None:
    assert parse("a<|im_end|> b<|im_end|><|endoftext|>", "hermes").content == "a<|im_end|> b"


def test_leading_indentation_of_the_answer_is_kept() -> None:
    assert parse("<think>a</think>\n    x = 1\n", "hermes").content == "    x = 1\n"


@pytest.mark.parametrize(
    "bad",
    [
        '{"name": "f", "arguments": {}}}',
        '{"name": "f", "arguments": {}',
        '{"name": "f", "arguments": {"a": 1,}}',
        '{"name": "f", "arguments": {"a": "raw\nnewline"}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 01}}',
        '{"name": "f", "arguments": {"a": "\\x"}}',
        '{"name": "f", "arguments": {"a": "\\u12"}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "a\\nb", "arguments": {}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "f", "arguments": {}, "more": 1}',
        '{"name": "f", "name": "g", "arguments": {}}',
        '{"name": "f", "arguments": {}, "id": 7}',
        "{}",
        "[]",
        "null",
        "",
        "call f please",
    ],
)
def test_a_malformed_call_is_verbatim_content_and_the_next_call_counts(bad: str) -> None:
    text = f"a\n<tool_call>\n{bad}\n</tool_call>\n"
    message = parse(text, "hermes")
    assert (message.content, message.tool_calls) == (text, None)
    message = parse(f"{text}{GOOD}", "hermes")
    assert message.content == text[:-1]
    assert [call.function.name for call in message.tool_calls or []] == ["f"]


def test_arguments_stay_as_the_model_wrote_them() -> None:
    arguments = '{ "b" :1e+2,\n\t"a": ["\\u00e9é\\/", [ ], {}, -0.5,null ], "</tool_call>":"{" }'
    text = f'<tool_call>{{"arguments": {arguments}, "name": "f"}}</tool_call>'
    [call] = parse(text, "hermes").tool_calls or []
    assert call.function.arguments == arguments


def test_a_bad_call_inside_a_section_leaves_the_other_calls() -> None:
    def call(name: str, arguments: str) -> str:
        head = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        return f"{head}{arguments}<|tool_call_end|>"

    bad = call("g", "{oops}")
    section = f"{call('f', '{}')}{bad}{call('h', '{}')}"
    text = f"<|tool_calls_section_begin|>{section}<|tool_calls_section_end|>"
    message = parse(text, "kimi_k2")
    assert [each.function.name for each in message.tool_calls or []] == ["f", "h"]
    assert message.content == bad


def test_text_goes_out_at_once_and_what_may_be_markup_is_held_back() -> None:
    parser = TextParser("hermes")
    assert parser.feed("<thi") == []
    assert parser.feed("s") == [ContentDelta("<this")]
    assert parser.feed(" is \n") == [ContentDelta(" is")]
    assert parser.feed("<tool_c") == []
    assert parser.feed("old") == [ContentDelta(" \n<tool_cold")]
    assert parser.feed('\n<tool_call>{"name": "f", "arguments": {"a"') == []
    source = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    assert parser.feed(": 1}}</tool_call>") == [
        Markup("\n"),
        ToolCallStart(0, "f"),
        ToolCallArguments(0, '{"a": 1}'),
        ToolCallEnd(0, source),
    ]
    assert parser.feed("<|im_end|>") == []
    assert parser.finish() == [Markup("<|im_end|>")]


def test_reasoning_goes_out_as_it_comes() -> None:
    parser = TextParser("hermes", in_reasoning=True)
    assert parser.feed("one") == [ReasoningDelta("one")]
    assert parser.feed(" two\n</th") == [ReasoningDelta(" two")]
    assert parser.feed("ink>") == [Markup("\n</think>")]


def test_finishing_twice_gives_nothing_more() -> None:
    parser = TextParser("plain")
    assert parser.feed("a ") == [ContentDelta("a")]
    assert parser.finish() == [ContentDelta(" ")]
    assert parser.finish() == []


def test_feeding_a_finished_parser_is_refused() -> None:
    parser = TextParser("plain")
    parser.finish()
    with pytest.raises(InvalidTransition, match="finished"):
        parser.feed("a")


def test_a_tool_that_is_not_json_is_named() -> None:
    with pytest.raises(BadRequest, match=r"tools\[1\]") as caught:
        TextParser("qwen3_coder", tools=[Raw(b"{}"), Raw(b"{")])
    assert caught.value.param == "tools[1]"
