"""Which tokens are which message of a prompt, and which part of an answer, in each family's template."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.modelservice.render import ChatTokenizer, Prompt, TokenRenderer
from rock.modelservice.render.parts import MAX_CUTS
from rock.modelservice.text import TextParser, answer_parts
from tests.modelservice.render.families import FAMILIES
from tests.modelservice.render.leases import (
    TOOLS,
    Message,
    chat_of,
    lease,
    result,
    runs,
    says,
    user,
)

TURN_ENDS = {name: family.end or "<|observation|>" for name, family in FAMILIES.items()}
ALL = sorted(FAMILIES)
OPENED = [name for name in ALL if name != "mistral"]
"""Families in which something opens an answer."""


def texts(chat: ChatTokenizer, prompt: Prompt) -> dict[int | None, str]:
    """The text of each run of a prompt's new tokens, by message."""
    assert prompt.parts is not None
    at = len(prompt.ids) - sum(part.tokens for part in prompt.parts)
    found: dict[int | None, str] = {}
    for part in prompt.parts:
        found[part.message] = chat.decode(prompt.ids[at : at + part.tokens])
        at += part.tokens
    assert at == len(prompt.ids)
    return found


def known(prompt: Prompt) -> int:
    """How many tokens stand before the parts."""
    return len(prompt.ids) - sum(part.tokens for part in prompt.parts or ())


def check_contents(found: dict[int | None, str], messages: Sequence[Message], first: int) -> None:
    """Each message's own text is in its run and in no other."""
    for place in range(first, len(messages)):
        inside = [where for where, text in found.items() if messages[place]["content"] in text]
        assert inside == [place]


@pytest.mark.parametrize("family", ALL)
def test_every_token_of_a_first_prompt_belongs_to_a_message(family: str) -> None:
    renderer = TokenRenderer(chat_of(family))
    system = [] if family == "mistral" else [{"role": "system", "content": "Be brief."}]
    messages = [*system, user("What is there?")]
    prompt = renderer.prompt(lease(messages, tools=TOOLS))
    assert known(prompt) == 0
    found = texts(renderer.chat, prompt)
    check_contents(found, messages, 0)
    opening = {len(messages)} if family in OPENED else set[int]()
    assert set(found) == {*range(len(messages)), *opening}


@pytest.mark.parametrize("family", ALL)
def test_results_of_parallel_calls_are_told_apart(family: str) -> None:
    renderer = TokenRenderer(chat_of(family))
    asked = [user("What is there?")]
    before = renderer.prompt(lease(asked, tools=TOOLS))
    said = [*before.ids, *renderer.chat.encode(f"Let me look.{TURN_ENDS[family]}")]
    messages = [*asked, runs('{"command": "ls"}'), result("first out"), result("second out")]
    prompt = renderer.prompt(lease(messages, after=said, covers=2, tools=TOOLS))
    found = texts(renderer.chat, prompt)
    check_contents(found, messages, 2)
    if prompt.status != "fork":
        assert known(prompt) == len(said)
        assert not found.get(1, "").strip()  # at most a line break after the answer


def test_what_a_template_changes_afterwards_is_told_apart_by_what_opens_a_turn() -> None:
    """The template drops the reasoning of an answer once another user message follows."""
    renderer = TokenRenderer(chat_of("qwen3"))
    said = says("It is so.", reasoning_content="Why though?")
    messages = [user("first"), said, user("second"), says("yes"), user("third")]
    found = texts(renderer.chat, renderer.prompt(lease(messages)))
    check_contents(found, messages, 0)
    assert found[1] == "<|im_start|>assistant\nIt is so.<|im_end|>\n"
    assert found[5] == "<|im_start|>assistant\n"


def test_messages_that_cannot_be_told_apart_are_one_run() -> None:
    """Tools move to the last user message, so the ones before are never written like that again."""
    renderer = TokenRenderer(chat_of("mistral"))
    messages = [user("first"), says("one"), user("second")]
    found = texts(renderer.chat, renderer.prompt(lease(messages, tools=TOOLS)))
    assert set(found) == {None}


def test_a_long_history_that_is_new_costs_a_bounded_number_of_renderings() -> None:
    renderer = TokenRenderer(chat_of("chatml"))
    messages = [user(f"number {place},") for place in range(MAX_CUTS + 10)]
    found = texts(renderer.chat, renderer.prompt(lease(messages)))
    assert "number 0," in found[None]
    assert "number 9," in found[None]
    check_contents({k: v for k, v in found.items() if k is not None}, messages, 11)


ANSWER = (
    "<think>\nWhy\n</think>\n\nLook.\n"
    '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "run", "arguments": {"command": "pwd"}}\n</tool_call><|im_end|>'
)


def test_an_answer_is_told_apart_by_reasoning_content_and_calls() -> None:
    chat = chat_of("chatml")
    ids = chat.encode(ANSWER)
    parser = TextParser("hermes")
    parts = answer_parts(chat.starts(ids) or [], [*parser.feed(ANSWER), *parser.finish()])
    at = 0
    found: list[tuple[str, list[int], str]] = []
    for part in parts:
        text = chat.decode(ids[at : at + part.tokens])
        found.append((part.kind, part.tool_calls, text.strip()))
        at += part.tokens
    assert at == len(ids)
    assert [(kind, calls) for kind, calls, _ in found if kind != "markup"] == [
        ("reasoning", []),
        ("content", []),
        ("tool_call", [0]),
        ("tool_call", [1]),
    ]
    by_kind = {(kind, *calls): text for kind, calls, text in found}
    assert by_kind["reasoning",] == "Why"
    assert by_kind["content",] == "Look."
    assert '"ls"' in by_kind["tool_call", 0]
    assert '"pwd"' in by_kind["tool_call", 1]
    assert found[-1] == ("markup", [], "<|im_end|>")


def test_calls_in_one_list_share_its_tokens() -> None:
    text = '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'
    chat = chat_of("mistral")
    ids = chat.encode(text)
    parser = TextParser("mistral")
    events = [*parser.feed(chat.decode(ids)), *parser.finish()]
    parts = answer_parts(chat.starts(ids) or [], events)
    assert [(part.kind, part.tool_calls, part.tokens) for part in parts] == [
        ("tool_call", [0, 1], len(ids))
    ]


@given(st.text(max_size=30), st.sampled_from(ALL))
def test_ids_begin_at_characters_in_order(text: str, family: str) -> None:
    chat = chat_of(family)
    ids = chat.encode(text)
    starts = chat.starts(ids)
    if starts is not None:
        assert len(starts) == len(ids)
        assert starts == sorted(starts)
        assert all(0 <= start <= len(chat.decode(ids)) for start in starts)
