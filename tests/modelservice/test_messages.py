"""Messages that clients spell differently, and messages that are not the same."""

import json
from typing import Any

import pytest

from rock.modelservice.graph.messages import describe


def digest(**message: Any) -> int:
    return describe(json.dumps(message).encode()).digest


def call(arguments: str, id: str = "call_1", name: str = "bash") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


WROTE = {
    "role": "assistant",
    "content": "\n\n  Let me do it. \n",
    "reasoning_content": "hm",
    "tool_calls": [call('{ "command" :"\u00e9", "n": 1.0}')],
}


@pytest.mark.parametrize(
    "echo",
    [
        pytest.param({**WROTE, "reasoning_content": None}, id="reasoning dropped"),
        pytest.param({**WROTE, "content": "Let me do it."}, id="spaces trimmed"),
        pytest.param(
            {**WROTE, "content": [{"type": "text", "text": "Let me do it."}]}, id="text as blocks"
        ),
        pytest.param(
            {**WROTE, "tool_calls": [call('{"command":"\u00e9","n":1}')]}, id="compact arguments"
        ),
        pytest.param(
            {**WROTE, "tool_calls": [call('{"n": 1, "command": "\\u00e9"}')]},
            id="escaped and reordered arguments",
        ),
        pytest.param(
            {**WROTE, "tool_calls": [{"index": 0, **call('{"command":"\u00e9","n":1}')}]},
            id="index",
        ),
        pytest.param({**WROTE, "refusal": None, "annotations": []}, id="fields invented"),
        pytest.param({**WROTE, "cache_control": {"type": "ephemeral"}}, id="cache_control"),
    ],
)
def test_an_echo_in_other_words_is_the_same_message(echo: dict[str, Any]) -> None:
    assert digest(**echo) == digest(**WROTE)


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}, {"content": []}])
def test_null_empty_and_missing_content_are_alike(content: dict[str, Any]) -> None:
    calls = {"tool_calls": [call("{}")]}
    assert digest(role="assistant", **content, **calls) == digest(role="assistant", **calls)


@pytest.mark.parametrize("arguments", ["", "null", "{}", " { } "])
def test_no_arguments_have_many_spellings(arguments: str) -> None:
    spelled = digest(role="assistant", tool_calls=[call(arguments)])
    assert spelled == digest(role="assistant", tool_calls=[call("{}")])


@pytest.mark.parametrize(
    "other",
    [
        {**WROTE, "content": "Let me do that."},
        {**WROTE, "tool_calls": [call('{"command": "e", "n": 1}')]},
        {**WROTE, "tool_calls": [call('{"command": "\u00e9", "n": "1"}')]},
        {**WROTE, "tool_calls": [call('{ "command" :"\u00e9", "n": 1.0}', name="sh")]},
        {**WROTE, "tool_calls": WROTE["tool_calls"] * 2},
        {**WROTE, "tool_calls": None},
        {**WROTE, "role": "user"},
    ],
)
def test_what_means_something_else_is_another_message(other: dict[str, Any]) -> None:
    assert digest(**other) != digest(**WROTE)


def test_a_users_spaces_names_and_images_count() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:1"}}
    messages: list[dict[str, Any]] = [
        {"content": "a"},
        {"content": " a"},
        {"content": "a", "name": "bob"},
        {"content": [{"type": "text", "text": "a"}, image]},
        {"content": [image, {"type": "text", "text": "a"}]},
        {"content": [image, image, {"type": "text", "text": "a"}]},
    ]
    assert len({digest(role="user", **message) for message in messages}) == len(messages)


def test_a_tool_result_belongs_to_its_call() -> None:
    first = digest(role="tool", content="ok", tool_call_id="call_1")
    assert first != digest(role="tool", content="ok", tool_call_id="call_2")


def test_only_an_assistants_call_ids_are_reported() -> None:
    assert describe(json.dumps(WROTE).encode()).call_ids == ("call_1",)
    assert describe(json.dumps({**WROTE, "role": "user"}).encode()).call_ids == ()


@pytest.mark.parametrize(
    "message",
    [
        b"7",
        b'"text"',
        b'{"role":7}',
        b'{"role":"assistant","tool_calls":"x"}',
        b'{"role":"user","content":"\\ud800"}',
        b'{"role":"user","content":' + b"[" * 100_000,
        b'{"role":"user","content":"\xff"}',
        b"",
    ],
)
def test_an_unreadable_message_is_the_same_only_as_itself(message: bytes) -> None:
    assert describe(message) == describe(message)
    assert describe(message).digest != describe(message + b" ").digest
