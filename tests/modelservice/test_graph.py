"""The message graph: what a request adds, whom it goes on from, and why not."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw, convert

from rock.modelservice.graph.graph import MessageGraph
from rock.modelservice.graph.places import AnswerRef, Extension, Placement
from rock.modelservice.wire import AssistantMessage

SYSTEM = {"role": "system", "content": "be good"}
TOOLS = Raw(b'[{"type":"function","function":{"name":"bash"}}]')


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, *call_ids: str) -> dict[str, Any]:
    calls = [{"id": id, "function": {"name": "f", "arguments": "{}"}} for id in call_ids]
    return {"role": "assistant", "content": text, "tool_calls": calls or None}


class Dialogue:
    """A graph, used as the service does."""

    def __init__(self) -> None:
        self.graph = MessageGraph()
        self.leaves: list[int] = []
        self.last: Extension | None = None

    def ask(self, *messages: dict[str, Any], tools: Raw | None = None) -> Placement:
        raw = [Raw(json.dumps(message).encode()) for message in messages]
        self.last = self.graph.extend(self.graph.locate(raw, tools))
        self.leaves.append(self.last.leaf)
        assert [bytes(m) for m in self.graph.messages(self.last.leaf)] == [bytes(m) for m in raw]
        placed = self.graph.place(self.last)
        if placed.parent is not None:
            self.graph.go_on(placed.parent)
        return placed

    def answer(self, call: int, message: dict[str, Any], choice: int = 0) -> None:
        ref = AnswerRef(call, choice)
        self.graph.add_answer(self.leaves[call], ref, convert(message, AssistantMessage))


def test_the_first_call_has_no_parent_and_is_no_branch() -> None:
    assert Dialogue().ask(SYSTEM, user("hi")) == Placement(None, 0, None)


def test_a_call_goes_on_from_the_deepest_answer_it_carries() -> None:
    talk = Dialogue()
    talk.ask(SYSTEM, user("hi"))
    talk.answer(0, says("hello"))
    assert talk.ask(SYSTEM, user("hi"), says("hello"), user("a")) == Placement(
        AnswerRef(0, 0), 3, None
    )
    talk.answer(1, says("b"))
    placed = talk.ask(SYSTEM, user("hi"), says("hello"), user("a"), says(" b "), user("c"))
    assert placed == Placement(AnswerRef(1, 0), 5, None)


def test_each_turn_adds_only_what_is_new() -> None:
    talk = Dialogue()
    history = [SYSTEM, user("hi")]
    for turn in range(30):
        talk.ask(*history, tools=TOOLS)
        assert talk.last is not None
        assert len(talk.last.path) == 2
        assert len(talk.last.blobs) == (3 if turn == 0 else 2)
        talk.answer(turn, says(f"a{turn}"))
        history += [says(f"a{turn}"), user(f"u{turn}")]


def test_a_message_is_stored_once_even_if_its_history_was_edited() -> None:
    talk = Dialogue()
    talk.ask(SYSTEM, user("one"), user("two"), user("three"))
    talk.ask(SYSTEM, user("edited"), user("two"), user("three"))
    assert talk.last is not None
    assert len(talk.last.path) == 3
    assert [json.loads(blob)["content"] for blob in talk.last.blobs] == ["edited"]


def test_each_choice_of_an_answer_can_be_gone_on_from() -> None:
    talk = Dialogue()
    talk.ask(user("hi"))
    talk.answer(0, says("left"), 0)
    talk.answer(0, says("right"), 1)
    assert talk.ask(user("hi"), says("right"), user("x")).parent == AnswerRef(0, 1)
    assert talk.ask(user("hi"), says("left"), user("x")).parent == AnswerRef(0, 0)


def test_a_tool_call_id_identifies_the_answer_before_its_content_does() -> None:
    talk = Dialogue()
    for number in range(2):
        talk.ask(user("hi"))
        talk.answer(number, says("same", f"call_{number}"))
    assert talk.ask(user("hi"), says("", "call_0"), user("x")).parent == AnswerRef(0, 0)
    assert talk.ask(user("hi"), says("rewritten", "call_1"), user("x")).parent == AnswerRef(1, 0)


def test_an_id_that_was_given_twice_identifies_nothing() -> None:
    talk = Dialogue()
    talk.ask(user("hi"))
    talk.answer(0, says("left", "call_1"), 0)
    talk.answer(0, says("right", "call_1"), 1)
    assert talk.ask(user("hi"), says("left", "call_1"), user("x")).parent == AnswerRef(0, 0)


def test_an_id_below_another_history_identifies_nothing() -> None:
    talk = Dialogue()
    talk.ask(user("hi"))
    talk.answer(0, says("a", "call_1"))
    assert talk.ask(user("other"), says("a", "call_1"), user("x")).parent is None


def test_branches_say_why() -> None:
    talk = Dialogue()
    talk.ask(SYSTEM, user("hi"), tools=TOOLS)
    talk.answer(0, says("hello"))
    talk.ask(SYSTEM, user("hi"), says("hello"), user("a"), tools=TOOLS)
    cases = {
        "fork": [SYSTEM, user("hi"), says("hello"), user("b")],
        "edit": [SYSTEM, user("hi"), says("never said"), user("a")],
        "retry": [SYSTEM, user("hi")],
        "new_root": [SYSTEM, user("something else")],
    }
    found = {name: talk.ask(*messages, tools=TOOLS).branch for name, messages in cases.items()}
    assert found == {name: name for name in cases}
    assert talk.ask({"role": "system", "content": "write a title"}, user("hi")).branch == (
        "auxiliary"
    )


def test_an_answer_edited_by_the_agent_branches_from_the_one_before() -> None:
    talk = Dialogue()
    talk.ask(user("hi"))
    talk.answer(0, says("hello"))
    talk.ask(user("hi"), says("hello"), user("a"))
    talk.answer(1, says("b"))
    placed = talk.ask(user("hi"), says("hello"), user("a"), says("B!"), user("c"))
    assert placed == Placement(AnswerRef(0, 0), 2, "edit")


def test_replaying_extensions_rebuilds_the_same_graph() -> None:
    talk, again = Dialogue(), MessageGraph()
    requests = [
        [SYSTEM, user("hi")],
        [SYSTEM, user("hi"), says("x"), user("a")],
        [SYSTEM, user("other"), user("a")],
        [SYSTEM, user("hi")],
    ]
    for request in requests:
        placed = talk.ask(*request, tools=TOOLS)
        added = talk.last
        assert added is not None
        replayed = again.replay(
            base=added.base, path=added.path, blobs=added.blobs, tools=added.tools
        )
        assert replayed == added
        assert again.place(replayed) == placed
        assert again.blob(added.tools or 0) == bytes(TOOLS)
