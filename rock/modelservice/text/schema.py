"""Argument types, for formats that write arguments as plain text between tags.

There `<parameter=count>5</parameter>` may mean 5 or "5"; only the tool's JSON schema knows. A value
becomes what its schema allows *and* its text spells; everything else stays the string that the
model wrote, for the agent to judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Raw

from rock.errors import BadRequest
from rock.modelservice.text.json_text import read_value
from rock.modelservice.text.reader import NotACall, Reader

ArgumentTypes: TypeAlias = Mapping[str, Mapping[str, frozenset[str]]]
"""Function name -> argument name -> JSON schema types it may have."""

_MAX_SCHEMA_DEPTH = 64
_UNIONS = ("anyOf", "oneOf", "allOf")
_KINDS: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    dict: "object",
    list: "array",
    type(None): "null",
}
_CONSTANTS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_NULLS = ("null", "None")


def argument_types(tools: Sequence[Raw]) -> ArgumentTypes:
    """What the tools of a request say about their arguments. Raises `BadRequest` if not JSON.

    A tool of another kind than `function`, or a schema that says no type, is no error: its
    arguments are strings.
    """
    found: dict[str, Mapping[str, frozenset[str]]] = {}
    for index, raw in enumerate(tools):
        try:
            tool: Any = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            message = f"tools[{index}] cannot be read as JSON ({exc}); expected a tool object"
            raise BadRequest(message, param=f"tools[{index}]") from exc
        function = _mapping(_mapping(tool).get("function"))
        name = function.get("name")
        if isinstance(name, str):
            root = _mapping(function.get("parameters"))
            found[name] = {
                key: frozenset(_types(schema, root, set(), 0))
                for key, schema in _mapping(root.get("properties")).items()
            }
    return found


def as_json(text: str, types: frozenset[str]) -> str:
    """One argument as JSON: what `types` allow and `text` spells, else `text` as a string."""
    bare = text.strip()
    if "null" in types and bare in _NULLS:
        return "null"
    if "string" not in types:
        if "boolean" in types and bare in _CONSTANTS:
            return _CONSTANTS[bare]
        if _kind_of_json(bare) in types:
            return bare
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], seen: set[str], depth: int) -> Iterator[str]:
    """Every type that `schema` names, through unions and local references ("#/…").

    A reference is followed once (`seen`), so that a schema cannot make this loop or branch out.
    """
    if depth > _MAX_SCHEMA_DEPTH:
        return
    fields = _mapping(schema)
    for name in _list(fields.get("type")) or [fields.get("type")]:
        if isinstance(name, str):
            yield "number" if name == "integer" else name
    for value in [*_list(fields.get("enum")), *([fields["const"]] if "const" in fields else [])]:
        yield _KINDS[type(value)]
    reference = fields.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
        seen.add(reference)
        yield from _types(_resolved(root, reference), root, seen, depth + 1)
    for union in _UNIONS:
        for member in _list(fields.get(union)):
            yield from _types(member, root, seen, depth + 1)


def _resolved(root: Mapping[str, Any], reference: str) -> Any:
    target: Any = root
    for part in reference.removeprefix("#/").split("/"):
        target = _mapping(target).get(part.replace("~1", "/").replace("~0", "~"))
    return target


def _kind_of_json(text: str) -> str | None:
    """The JSON schema type of the JSON value that `text` is; None if it is none."""
    reader = Reader()
    reader.push(text)
    reader.end()
    try:
        for _ in read_value(reader):
            pass  # never waits: the text has ended
    except NotACall:
        return None
    if not reader.exhausted:
        return None
    return {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}.get(
        text[0], "null" if text[0] == "n" else "number"
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
