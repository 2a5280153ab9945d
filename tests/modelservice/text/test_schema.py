"""Arguments written as text between tags become what the tool's JSON schema says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from rock.modelservice.text import parse
from tests.modelservice.text.written import tool


def argument(text: str, schema: Any, **root: Any) -> Any:
    """What Qwen3-Coder's `text` for an argument with `schema` becomes."""
    parameters = {"type": "object", "properties": {"x": schema}, **root}
    raw = json.dumps({"type": "function", "function": {"name": "f", "parameters": parameters}})
    return written(text, [Raw(raw.encode())])


def written(text: str, tools: list[Raw] | None) -> Any:
    call = f"<tool_call><function=f><parameter=x>\n{text}\n</parameter></function></tool_call>"
    [found] = parse(call, "qwen3_coder", tools=tools).tool_calls or []
    return json.loads(found.function.arguments)["x"]


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        (" 5 ", {"type": "integer"}, 5),
        ("-2.5e3", {"type": "number"}, -2500.0),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("None", {"type": ["integer", "null"]}, None),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("nothing", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "nothing"),
        ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ('[\n"a"\n]', {"type": "array"}, ["a"]),
        ("[1, 2]", {"oneOf": [{"type": "array"}, {"type": "object"}]}, [1, 2]),
        ("2", {"enum": [1, 2]}, 2),
        ("on", {"enum": ["on", "off"]}, "on"),
        ("7", {"const": 7}, 7),
    ],
)
def test_a_value_becomes_what_the_schema_allows(text: str, schema: Any, expected: Any) -> None:
    value = argument(text, schema)
    assert (type(value), value) == (type(expected), expected)


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("five", {"type": "integer"}),
        ("yes", {"type": "boolean"}),
        ("{'a': 1}", {"type": "object"}),
        ('{"a": 1} and', {"type": "object"}),
        ("[1, 2]", {"type": "object"}),
        ("1 2", {"type": "integer"}),
        ("NaN", {"type": "number"}),
        ("", {"type": "integer"}),
        ("null", {"type": "integer"}),
        ("5", {}),
        ("5", True),
        ("5", {"type": 5}),
        ("5", {"anyOf": "x"}),
        ("5", {"$ref": "#/nowhere"}),
        ("5", {"$ref": "https://example.org/schema"}),
    ],
)
def test_a_value_that_does_not_fit_stays_the_string_it_was(text: str, schema: Any) -> None:
    assert argument(text, schema) == text


def test_references_in_the_schema_are_followed_and_may_go_in_circles() -> None:
    definitions: dict[str, Any] = {
        "A": {"anyOf": [{"$ref": "#/$defs/B"}] * 20},
        "B": {"$ref": "#/$defs/C~1D"},
    }
    definitions["C/D"] = {"type": "object", "anyOf": [{"$ref": "#/$defs/A"}] * 20}
    assert argument('{"a": 1}', {"$ref": "#/$defs/A"}, **{"$defs": definitions}) == {"a": 1}


def test_a_schema_nested_beyond_reason_says_nothing() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        schema = {"anyOf": [schema]}
    assert argument("5", schema) == "5"


@pytest.mark.parametrize(
    "tools",
    [None, [], [tool("g", x={"type": "integer"})], [Raw(b'{"type": "custom", "name": "f"}')]],
)
def test_without_a_schema_every_value_is_a_string(tools: list[Raw] | None) -> None:
    assert written("5", tools) == "5"


def test_only_one_line_break_on_each_side_belongs_to_the_tags() -> None:
    assert written("\n  a\n", None) == "\n  a\n"


def test_an_end_tag_inside_a_value_does_not_end_it() -> None:
    text = 'p = "</parameter>"  # </function>\n<parameter=y> </tool_call>'
    assert written(text, None) == text


@pytest.mark.parametrize(
    "call",
    [
        "<tool_call><function=f><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>",
        "<tool_call><function=f><parameter=>1</parameter></function></tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=f></function>",
        "<tool_call><function=f></tool_call>",
        "<function=f></function>",
    ],
)
def test_a_malformed_tagged_call_is_verbatim_content(call: str) -> None:
    message = parse(call, "qwen3_coder")
    assert (message.content, message.tool_calls) == (call, None)
