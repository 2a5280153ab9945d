"""What each rule of an interceptor does to a request or an answer, and which rules make no sense."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rock.errors import BadRequest
from rock.modelservice.interceptors import rules
from rock.modelservice.interceptors.rules import Blocked, Circumstances
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Choice,
    ToolCall,
    ToolFunction,
)
from rock.modelservice.wire.interceptors import Interceptor

SEEN = Circumstances(session_id="s1", labels={"team": "a"}, dialect="chat", kind="title", turn=3)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def request(**fields: Any) -> CanonicalRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "please help"}], **fields}
    return msgspec.json.decode(json.dumps(body), type=CanonicalRequest)


def interceptor(*given: dict[str, Any], on: str = "request") -> Interceptor:
    spec = msgspec.json.decode(json.dumps({"on": on, "rules": given}), type=Interceptor)
    rules.check(spec)
    return spec


def applied(asked: CanonicalRequest, *given: dict[str, Any]) -> Any:
    after = rules.on_request(interceptor(*given).rules or [], asked, SEEN)
    return after if after is asked else json.loads(msgspec.json.encode(after))


def answered(choices: list[Choice], *given: dict[str, Any]) -> list[Choice]:
    found = interceptor(*given, on="response").rules or []
    return rules.on_response(found, request(), choices, SEEN)


def test_fields_are_set_replaced_and_removed() -> None:
    after = applied(
        request(temperature=1.0, stop=["x"], min_p=0.1, extra={"min_p": 0.1}),
        {"do": "set", "field": "temperature", "value": 0.2},
        {"do": "set", "field": "extra.top_k", "value": 5},
        {"do": "replace", "field": "seed", "value": 7},
        {"do": "replace", "field": "stop", "value": ["y"]},
        {"do": "remove", "field": "extra.min_p"},
    )
    assert after["temperature"] == 0.2
    assert after["extra"] == {"top_k": 5}
    assert after["stop"] == ["y"]
    assert "seed" not in after


def test_tools_are_added_dropped_and_kept() -> None:
    asked = request(tools=[tool("bash"), tool("web"), tool("edit")], tool_choice="auto")
    new = {**tool("web"), "note": 1}
    after = applied(asked, {"do": "add_tool", "tool": new}, {"do": "drop_tools", "names": ["edit"]})
    assert [one["function"]["name"] for one in after["tools"]] == ["bash", "web"]
    assert after["tools"][1]["note"] == 1
    kept = applied(asked, {"do": "keep_tools", "names": ["bash"]})
    assert [one["function"]["name"] for one in kept["tools"]] == ["bash"]
    none = applied(asked, {"do": "keep_tools", "names": ["nothing"]})
    assert "tools" not in none
    assert "tool_choice" not in none


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("replace", ["NEW"]),
        ("prepend", ["NEW\n\nold", "older"]),
        ("append", ["old", "older\n\nNEW"]),
    ],
)
def test_the_system_prompt_is_rewritten(place: str, expected: list[str]) -> None:
    user = {"role": "user", "content": "hi"}
    asked = request(
        messages=[
            {"role": "system", "content": "old"},
            {"role": "developer", "content": "older"},
            user,
        ]
    )
    after = applied(asked, {"do": "system", "text": "NEW", "place": place})
    assert [message["content"] for message in after["messages"]] == [*expected, "hi"]


def test_a_missing_system_prompt_is_made_and_parts_stay_parts() -> None:
    made = applied(request(), {"do": "system", "text": "NEW", "place": "append"})
    assert made["messages"][0] == {"role": "system", "content": "NEW"}
    parts = [{"role": "system", "content": [{"type": "text", "text": "old"}]}, {"role": "user"}]
    after = applied(request(messages=parts), {"do": "system", "text": "NEW", "place": "append"})
    assert [part["text"] for part in after["messages"][0]["content"]] == ["old", "NEW"]


@pytest.mark.parametrize(
    "rule",
    [
        {"do": "replace", "field": "seed", "value": 1},
        {"do": "remove", "field": "stop"},
        {"do": "drop_tools", "names": ["nothing"]},
        {"do": "set", "field": "model", "value": "m"},
        {"do": "set", "field": "seed", "value": 1, "when": {"turn_at_least": 4}},
    ],
)
def test_a_rule_that_changes_nothing_gives_back_the_very_same_request(rule: dict[str, Any]) -> None:
    asked = request(tools=[tool("bash")])
    assert applied(asked, rule) is asked


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"contains": "help"}, True),
        ({"contains": "first"}, False),
        ({"anywhere_contains": "first"}, True),
        ({"anywhere_contains": "rm -rf"}, True),
        ({"tool": "bash"}, True),
        ({"tool": "web"}, False),
        ({"kind": "title"}, True),
        ({"kind": "compaction"}, False),
        ({"dialect": "anthropic"}, False),
        ({"model": "m", "turn_at_least": 3}, True),
        ({"model": "m", "turn_at_least": 4}, False),
    ],
)
def test_a_rule_applies_when_all_of_its_conditions_hold(when: dict[str, Any], holds: bool) -> None:
    arguments = json.dumps({"command": "rm -rf /"})
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    asked = request(
        tools=[tool("bash")],
        messages=[
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "user", "content": [{"type": "text", "text": "please help"}, {"type": "x"}]},
        ],
    )
    after = applied(asked, {"do": "set", "field": "seed", "value": 1, "when": when})
    assert (after is not asked) is holds


def test_a_block_carries_its_message_and_code() -> None:
    with pytest.raises(Blocked) as caught:
        applied(request(), {"do": "block", "message": "no", "code": "invalid_request"})
    assert (caught.value.message, caught.value.code) == ("no", "invalid_request")


def said(content: str | None, *names: str) -> Choice:
    calls = [ToolCall(ToolFunction(name, "{}"), id=name) for name in names]
    reason = "tool_calls" if calls else "stop"
    return Choice(AssistantMessage(content=content, tool_calls=calls or None), finish_reason=reason)


def test_text_and_tool_calls_of_an_answer_are_edited() -> None:
    [text] = answered([said("the secret is x")], {"do": "replace_text", "find": "x", "put": "…"})
    assert text.message.content == "the secret is …"
    [some] = answered([said(None, "a", "b")], {"do": "drop_tool_calls", "names": ["a"]})
    assert [call.id for call in some.message.tool_calls or ()] == ["b"]
    assert some.finish_reason == "tool_calls"
    [none] = answered([said(None, "a")], {"do": "drop_tool_calls", "names": ["a"]})
    assert (none.message.content, none.message.tool_calls, none.finish_reason) == ("", None, "stop")


def test_an_answer_that_no_rule_changes_is_the_very_same() -> None:
    choices = [said("hello", "a")]
    for rule in (
        {"do": "replace_text", "find": "y", "put": "z"},
        {"do": "drop_tool_calls", "names": ["b"]},
        {"do": "block", "message": "no", "when": {"tool": "b"}},
        {"do": "block", "message": "no", "when": {"contains": "rm"}},
    ):
        assert answered(choices, rule) is choices
    with pytest.raises(Blocked):
        answered(choices, {"do": "block", "message": "no", "when": {"contains": "hello"}})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "rules"),
    ({"rules": [], "hook": "a:b"}, "rules"),
    ({"rules": [{"do": "set", "field": "n", "value": 2}]}, "rules[0].field"),
    ({"rules": [{"do": "set", "field": "messages", "value": []}]}, "rules[0].field"),
    ({"rules": [{"do": "set", "field": "seed", "value": "x"}]}, "rules[0].value"),
    ({"rules": [{"do": "remove", "field": "model"}]}, "rules[0].field"),
    ({"rules": [{"do": "add_tool", "tool": {"name": "x"}}]}, "rules[0].tool"),
    ({"rules": [{"do": "replace_text", "find": "a", "put": "b"}]}, "rules[0].do"),
    ({"on": "response", "rules": [{"do": "system", "text": "x"}]}, "rules[0].do"),
]


@pytest.mark.parametrize(("spec", "param"), WRONG)
def test_what_cannot_work_is_refused_by_name(spec: dict[str, Any], param: str) -> None:
    given = msgspec.json.decode(json.dumps(spec), type=Interceptor)
    with pytest.raises(BadRequest) as caught:
        rules.check(given)
    assert caught.value.param == param
