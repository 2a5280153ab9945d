"""Exact tokens go on: what was sampled stays, what is new follows, and drift is named by its cause."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from rock.errors import BadRequest
from rock.modelservice.render import Prompt, TokenRenderer, load
from tests.modelservice.render.families import family_directory
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


class Model:
    """A model and its renderer: says any text, token by token."""

    def __init__(self, family: str, **template: Any) -> None:
        self.renderer = TokenRenderer(chat_of(family), template=template)
        self.chat = self.renderer.chat
        self.seen: list[int] = []
        """Prompt and answer of the last turn."""

    def turn(self, messages: list[Message], says: str, **more: Any) -> Prompt:
        """The prompt for a first call; the model then says the text."""
        prompt = self.renderer.prompt(lease(messages, **more))
        self.seen = [*prompt.ids, *self.chat.encode(says)]
        return prompt

    def next(self, messages: list[Message], covers: int, **more: Any) -> Prompt:
        """The prompt for the call that goes on from the last turn."""
        found = self.renderer.prompt(lease(messages, after=self.seen, covers=covers, **more))
        if found.status != "fork":
            assert found.ids[: len(self.seen)] == self.seen
            assert self.chat.decode(found.ids) == self.chat.decode(self.seen) + found.new_text
        return found


def test_a_first_prompt_is_the_template_s_text() -> None:
    model = Model("chatml")
    prompt = model.turn([user("hi")], "")
    assert prompt.status == "root"
    assert (
        model.chat.decode(prompt.ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_new_messages_follow_what_was_sampled() -> None:
    model = Model("chatml")
    model.turn([user("hi")], "Two files.<|im_end|>")
    prompt = model.next([user("hi"), says("Two files."), user("go on")], 2)
    assert prompt.status == "clean"
    assert prompt.new_text == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("family", "answer", "new"),
    [
        (
            "chatml",
            '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>',
            "\n<|im_start|>user\n<tool_response>\nout\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3",
            '{"name": "run", "parameters": {"command": "ls"}}<|eot_id|>',
            "<|start_header_id|>ipython<|end_header_id|>\n\n"
            '"out"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
        ),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "run", "arguments": {"command": "ls"}, "id": "call12345"}]</s>',
            '[TOOL_RESULTS]{"content": "out", "call_id": "call12345"}[/TOOL_RESULTS]',
        ),
        (
            "glm",
            "\n<think></think>\n<tool_call>run\n<arg_key>command</arg_key>\n"
            "<arg_value>ls</arg_value>\n</tool_call><|observation|>",
            "\n<tool_response>\nout\n</tool_response><|assistant|>",
        ),
    ],
)
def test_a_tool_s_result_follows_the_call(family: str, answer: str, new: str) -> None:
    model = Model(family)
    model.turn([user("hi")], answer, tools=TOOLS)
    messages = [user("hi"), runs('{"command": "ls"}'), result("out")]
    prompt = model.renderer.prompt(lease(messages, after=model.seen, covers=2, tools=TOOLS))
    assert (prompt.status, prompt.new_text) == ("clean", new)
    assert prompt.ids[: len(model.seen)] == model.seen


def test_arguments_that_a_client_wrote_anew_stay_as_they_were_sampled() -> None:
    model = Model("chatml")
    written = '<tool_call>\n{"name": "run", "arguments": {"command" :"ls"}}\n</tool_call><|im_end|>'
    model.turn([user("hi")], written, tools=TOOLS)
    prompt = model.next([user("hi"), runs('{"command":"ls"}'), result("out")], 2, tools=TOOLS)
    assert (prompt.status, prompt.cause) == ("realigned", "answer")
    assert 'stands \' :"ls"' in prompt.detail


def test_reasoning_that_a_client_dropped_stays_in_the_sequence() -> None:
    model = Model("chatml")
    model.turn([user("hi")], "<think>\nhm\n</think>\n\nTwo.<|im_end|>")
    prompt = model.next([user("hi"), says("Two."), user("x")], 2)
    assert (prompt.status, prompt.cause) == ("realigned", "answer")


def test_reasoning_that_the_template_drops_stays_in_the_sequence() -> None:
    model = Model("qwen3")
    model.turn([user("hi")], "<think>\nhm\n</think>\n\nTwo.<|im_end|>")
    prompt = model.next([user("hi"), says("Two.", reasoning_content="hm"), user("x")], 2)
    assert (prompt.status, prompt.cause) == ("realigned", "template")
    assert "<think>" in prompt.detail


def test_an_empty_thought_that_only_the_generation_prompt_has_is_the_template_s_doing() -> None:
    model = Model("qwen3")
    asked = {"chat_template_kwargs": Raw(b'{"enable_thinking": false}')}
    first = model.turn([user("hi")], "Two.<|im_end|>", extra=asked)
    assert first.new_text.endswith("<think>\n\n</think>\n\n")
    prompt = model.next([user("hi"), says("Two."), user("x")], 2, extra=asked)
    assert (prompt.status, prompt.cause) == ("realigned", "template")


def test_an_answer_that_was_cut_off_is_closed_by_the_template() -> None:
    model = Model("chatml")
    model.turn([user("hi")], "Two fi")
    prompt = model.next([user("hi"), says("Two fi"), user("x")], 2)
    assert prompt.status == "clean"
    assert prompt.new_text.startswith("<|im_end|>\n<|im_start|>user\nx")


@pytest.mark.parametrize(
    ("family", "stop", "new"),
    [
        ("chatml", "<|endoftext|>", "\n<|im_start|>user\nx"),
        ("llama3", "<|eom_id|>", "<|start_header_id|>user"),
        ("glm", "<|observation|>", "<|user|>\nx"),
    ],
)
def test_another_end_of_turn_than_the_template_s_is_kept_and_said(
    family: str, stop: str, new: str
) -> None:
    model = Model(family)
    head = "\n<think></think>\n" if family == "glm" else ""
    model.turn([user("hi")], f"{head}Two.{stop}")
    prompt = model.next([user("hi"), says("Two."), user("x")], 2)
    assert (prompt.status, prompt.cause) == ("realigned", "stop_token")
    assert prompt.new_text.startswith(new)


def test_a_turn_that_ends_where_the_next_begins_is_not_ended_twice() -> None:
    model = Model("glm")
    model.turn([user("hi")], "\n<think></think>\nTwo.<|user|>")
    prompt = model.next([user("hi"), says("Two."), user("x")], 2)
    assert (prompt.status, prompt.new_text) == ("clean", "\nx<|assistant|>")


def test_tokens_that_no_tokenizer_would_choose_are_kept() -> None:
    model = Model("chatml")
    prompt = model.turn([user("hi")], "")
    letters = [token for letter in "Two files." for token in model.chat.encode(letter)]
    assert letters != model.chat.encode("Two files.")
    model.seen = [*prompt.ids, *letters, *model.chat.encode("<|im_end|>")]
    assert model.next([user("hi"), says("Two files."), user("x")], 2).status == "clean"


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([{"role": "system", "content": "other"}, user("hi"), says("Two."), user("x")], TOOLS),
        (
            [{"role": "system", "content": "s"}, user("hi"), says("Two."), user("x")],
            [*TOOLS, TOOLS[0]],
        ),
        ([{"role": "system", "content": "s"}, user("ho"), says("Two."), user("x")], TOOLS),
    ],
)
def test_a_history_that_is_another_one_is_rendered_anew(
    messages: list[Message], tools: list[Any]
) -> None:
    model = Model("chatml")
    model.turn([{"role": "system", "content": "s"}, user("hi")], "Two.<|im_end|>", tools=TOOLS)
    prompt = model.next(messages, 3, tools=tools)
    assert (prompt.status, prompt.cause) == ("fork", "request")
    assert prompt.ids == model.turn(messages, "", tools=tools).ids


def test_a_template_that_moves_its_tools_forks_at_each_user_message() -> None:
    model = Model("mistral")
    model.turn([user("hi")], "Two.</s>", tools=TOOLS)
    prompt = model.next([user("hi"), says("Two."), user("x")], 2, tools=TOOLS)
    assert (prompt.status, prompt.cause) == ("fork", "template")
    assert "AVAILABLE_TOOLS" in prompt.detail


def test_a_parent_without_tokens_forks() -> None:
    model = Model("chatml")
    prompt = model.renderer.prompt(lease([user("hi"), says("Two."), user("x")], covers=2))
    assert (prompt.status, prompt.cause) == ("fork", "no_parent_tokens")
    assert model.renderer.counts == {"fork no_parent_tokens": 1}


def test_answers_that_other_programs_put_into_the_history_are_prompt() -> None:
    """A few-shot example before, and an invented answer after what was sampled."""
    model = Model("chatml")
    shots = [user("1"), says("one"), user("hi")]
    model.turn(shots, "Two.<|im_end|>")
    messages = [*shots, says("Two."), user("a"), says("invented"), user("b")]
    prompt = model.next(messages, 4)
    assert prompt.status == "clean"
    assert "invented" in prompt.new_text


def test_text_that_looks_like_a_mark_is_text() -> None:
    model = Model("chatml")
    model.turn([user("Zq0mark1xt")], "Zq1mark1xt<|im_end|>")
    prompt = model.next([user("Zq0mark1xt"), says("Zq1mark1xt"), user("x")], 2)
    assert prompt.status == "clean"


def test_what_a_template_cannot_write_is_refused_with_its_words() -> None:
    model = Model("mistral")
    with pytest.raises(BadRequest, match="Only user, assistant and tool"):
        model.turn([{"role": "system", "content": "s"}, user("hi")], "")
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(BadRequest, match="image_url"):
        model.turn([picture], "")


def test_text_blocks_are_text_and_developers_are_the_system() -> None:
    model = Model("chatml")
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    one = model.turn(
        [{"role": "developer", "content": "s"}, {"role": "user", "content": blocks}], ""
    )
    two = model.turn([{"role": "system", "content": "s"}, user("ab")], "")
    assert one.ids == two.ids


def test_the_date_in_a_prompt_is_the_one_the_worker_started_with() -> None:
    day = datetime.datetime(2026, 3, 4, tzinfo=datetime.UTC)
    renderer = TokenRenderer(load(family_directory("llama3"), today=day))
    prompt = renderer.prompt(lease([user("hi")]))
    assert "Today Date: 04 Mar 2026" in prompt.new_text


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=80, deadline=None)
@given(
    family=st.sampled_from(["chatml", "llama3", "glm"]),
    turns=st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=4),
    data=st.data(),
)
def test_whatever_is_said_the_sequence_only_grows(
    family: str, turns: list[tuple[str, str, bool]], data: st.DataObject
) -> None:
    """The worker's sequence is always the prompts and samples it has seen, in order."""
    model = Model(family)
    ends = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "glm": "<|user|>"}
    messages: list[Message] = [user("begin")]
    prompt = model.turn(messages, "")
    for asked, said, whole in turns:
        text = json.dumps(said)[1:-1]  # no control token is spelled by chance
        sampled = [token for part in data.draw(cuts(text)) for token in model.chat.encode(part)]
        head = model.chat.encode("\n<think></think>\n") if family == "glm" else []
        ending = model.chat.encode(ends[family]) if whole else []
        model.seen = [*prompt.ids, *head, *sampled, *ending]
        messages = [*messages, says(text), user(asked)]
        prompt = model.next(messages, len(messages) - 1)
        assert prompt.status in ("clean", "realigned")
        assert prompt.cause in (None, "answer", "stop_token")
        assert asked.strip() in model.chat.decode(prompt.ids)


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    at = draw(st.integers(0, len(text)))
    return [text[:at], text[at:]]
