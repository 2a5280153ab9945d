"""Responses tools as OpenAI-chat functions, and calls of them back as Responses items.

Every tool that the agent runs itself becomes a function: `custom` (free text in `input`), each tool
of a `namespace` (as `namespace__tool`), and the built-in local ones (`local_shell`, `shell`,
`apply_patch`). Searching tools, which clients send whether or not they need them, are withheld from
the model and kept in `extra`; other hosted tools are refused by name.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from rock.errors import BadRequest
from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.canonical import Object

_TAKEN = frozenset({"name", "type", "description", "parameters", "strict", "format"})
_TAKEN_OF_NAMESPACE = frozenset({"name", "type", "tools"})
WITHHELD = ("web_search", "web_search_preview", "tool_search")
SEPARATOR = "__"
Kind = Literal["function", "custom", "local_shell", "shell", "apply_patch"]


class Target(Struct, frozen=True):
    """What a canonical function name stands for on this wire."""

    kind: Kind
    name: str
    namespace: str | None = None


Targets = dict[str, Target]
"""By function name; a name that is not here is a plain function."""


class Tools(Struct):
    functions: list[Raw] = msgspec.field(default_factory=list[Raw])
    names: set[str] = msgspec.field(default_factory=set[str])
    targets: Targets = msgspec.field(default_factory=Targets)
    withheld: list[Raw] = msgspec.field(default_factory=list[Raw])
    besides: dict[str, Object] = msgspec.field(default_factory=dict[str, Object])
    """What a tool or namespace has that a function has no place for, by its name."""


class _Function(Struct):
    name: str
    description: str | None = None
    parameters: Raw = Raw(b"null")
    strict: bool | None = None


class _Format(Struct):
    type: str
    syntax: str | None = None
    definition: str | None = None


class _Custom(Struct):
    name: str
    description: str | None = None
    format: _Format | None = None


class _Namespace(Struct):
    name: str
    tools: list[Raw]


_STRINGS: Object = {"type": "array", "items": {"type": "string"}}
LOCAL: dict[str, tuple[str, Object]] = {
    "local_shell": (
        "Run a command on the user's machine.",
        {
            "type": "object",
            "properties": {
                "command": _STRINGS,
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "timeout_ms": {"type": "integer"},
                "user": {"type": "string"},
                "working_directory": {"type": "string"},
            },
            "required": ["command"],
        },
    ),
    "shell": (
        "Run shell commands on the user's machine.",
        {
            "type": "object",
            "properties": {
                "commands": _STRINGS,
                "timeout_ms": {"type": "integer"},
                "max_output_length": {"type": "integer"},
            },
            "required": ["commands"],
        },
    ),
    "apply_patch": (
        "Create, update or delete one file. `diff` is in V4A format, and not given for a deletion.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {"type": "string"},
            },
            "required": ["type", "path"],
        },
    ),
}


def tools(items: list[Raw]) -> Tools:
    """Raises BadRequest."""
    made = Tools()
    for index, item in enumerate(items):
        _add(made, item, f"tools[{index}]")
    return made


def _add(made: Tools, item: Raw, name: str) -> None:
    kind = reading.tag(item, name)
    if kind == "function":
        _add_function(made, item, name, None)
    elif kind == "custom":
        _add_custom(made, item, name, None)
    elif kind == "namespace":
        space = reading.read(item, _Namespace, name)
        _keep(made, space.name, item, name, _TAKEN_OF_NAMESPACE)
        for index, tool in enumerate(space.tools):
            place = f"{name}.tools[{index}]"
            if reading.tag(tool, place) == "custom":
                _add_custom(made, tool, place, space.name)
            else:
                _add_function(made, tool, place, space.name)
    elif kind in LOCAL:
        description, schema = LOCAL[kind]
        target = Target(kind, kind)  # pyright: ignore[reportArgumentType] - a key of LOCAL is a Kind
        _put(made, kind, target, canonical.function(kind, description, schema), name)
    elif kind.startswith(WITHHELD):
        made.withheld.append(item)
    else:
        raise reading.refused(
            f"{name}.type", f"tool type {kind[:60]!r}", "OpenAI would have to run it"
        )


def _add_function(made: Tools, item: Raw, name: str, namespace: str | None) -> None:
    tool = reading.read(item, _Function, name)
    parameters = None if bytes(tool.parameters) == b"null" else tool.parameters
    if parameters is not None:
        reading.fields(parameters, f"{name}.parameters")
    full = full_name(tool.name, namespace)
    function = canonical.function(full, tool.description, parameters, tool.strict)
    _put(made, full, Target("function", tool.name, namespace), function, name)
    _keep(made, full, item, name)


def _add_custom(made: Tools, item: Raw, name: str, namespace: str | None) -> None:
    tool = reading.read(item, _Custom, name)
    text: Object = {"type": "string"}
    if tool.format is not None and tool.format.definition is not None:
        text["description"] = (
            f"Text in this {tool.format.syntax} grammar:\n{tool.format.definition}"
        )
    schema: Object = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    full = full_name(tool.name, namespace)
    function = canonical.function(full, tool.description, schema)
    _put(made, full, Target("custom", tool.name, namespace), function, name)
    _keep(made, full, item, name)


def _keep(made: Tools, full: str, item: Raw, name: str, taken: frozenset[str] = _TAKEN) -> None:
    fields = reading.fields(item, name)
    if besides := {key: value for key, value in fields.items() if key not in taken}:
        made.besides[full] = besides


def _put(made: Tools, full: str, target: Target, function: Raw, name: str) -> None:
    plain = Target("function", full)
    if full in made.names and made.targets.get(full, plain) != target:
        raise BadRequest(f"{name}.name: another tool is called {full[:60]!r} already", param=name)
    made.names.add(full)
    made.functions.append(function)
    if target != plain:
        made.targets[full] = target


def full_name(name: str, namespace: str | None) -> str:
    return name if namespace is None else f"{namespace}{SEPARATOR}{name}"


class _Choice(Struct):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Raw] | None = None


def tool_choice(raw: Raw) -> Raw:
    """Raises BadRequest."""
    if bytes(raw)[:1] == b'"':
        word = reading.read(raw, str, "tool_choice")
        if word not in ("none", "auto", "required"):
            raise reading.unknown("tool_choice", word, raw, "none, auto, required or an object")
        return raw
    choice = reading.read(raw, _Choice, "tool_choice")
    if choice.type in ("function", "custom"):
        if choice.name is None:
            raise reading.unknown("tool_choice.name", "", b"null", "the name of a tool")
        return _chosen(choice.name)
    if choice.type in LOCAL:
        return _chosen(choice.type)
    if choice.type == "allowed_tools":
        allowed = [
            _allowed(tool, f"tool_choice.tools[{i}]") for i, tool in enumerate(choice.tools or [])
        ]
        body = {"mode": choice.mode or "auto", "tools": allowed}
        return canonical.raw({"type": "allowed_tools", "allowed_tools": body})
    raise reading.refused("tool_choice.type", repr(choice.type[:60]), "OpenAI would have to run it")


def _allowed(raw: Raw, name: str) -> Raw:
    choice = reading.read(raw, _Choice, name)
    return _chosen(choice.name or choice.type)


def _chosen(name: str) -> Raw:
    return canonical.raw({"type": "function", "function": {"name": name}})
