"""Anthropic tools and tool choice as OpenAI-chat functions.

Tools that the agent runs itself are functions, also those that Anthropic gives a schema to (bash,
text editor, memory). Tools that run on Anthropic's servers are refused by name.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from rock.modelservice.dialects import canonical, reading
from rock.modelservice.dialects.canonical import Object
from rock.modelservice.dialects.reading import refused

_TAKEN = frozenset({"name", "type", "description", "input_schema", "strict", "cache_control"})


class _Head(Struct):
    name: str
    type: str | None = None


class _Tool(Struct):
    name: str
    input_schema: Raw
    description: str | None = None
    strict: bool | None = None


class _Choice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def _schema(required: list[str], **properties: object) -> Object:
    return {"type": "object", "properties": properties, "required": required}


_STRING: Object = {"type": "string"}
_INTEGER: Object = {"type": "integer"}
_BASH = _schema([], command=_STRING, restart={"type": "boolean"})
_EDIT_COMMANDS = ["view", "create", "str_replace", "insert"]
_EDITOR = _schema(
    ["command", "path"],
    command={"type": "string", "enum": _EDIT_COMMANDS},
    path=_STRING,
    file_text=_STRING,
    old_str=_STRING,
    new_str=_STRING,
    insert_line=_INTEGER,
    insert_text=_STRING,
    view_range={"type": "array", "items": _INTEGER},
)
_MEMORY = _schema(
    ["command"],
    command={"type": "string", "enum": [*_EDIT_COMMANDS, "delete", "rename"]},
    path=_STRING,
    old_path=_STRING,
    new_path=_STRING,
    file_text=_STRING,
    old_str=_STRING,
    new_str=_STRING,
    insert_line=_INTEGER,
    insert_text=_STRING,
    view_range={"type": "array", "items": _INTEGER},
)
CLIENT_TOOLS: dict[str, tuple[str, Object]] = {
    "bash_": ("Run a command in a shell session that stays open.", _BASH),
    "text_editor_": ("View, create and edit files.", _EDITOR),
    "memory_": ("Keep notes in files that outlive the conversation.", _MEMORY),
}
"""By the beginning of their type, which ends in a date."""


def tools(items: list[Raw]) -> tuple[list[Raw], dict[str, Object]]:
    """(functions, what each tool has besides, by tool name). Raises BadRequest."""
    functions: list[Raw] = []
    besides: dict[str, Object] = {}
    for index, item in enumerate(items):
        name = f"tools[{index}]"
        head = reading.read(item, _Head, name)
        functions.append(_function(item, head, name))
        extra = {
            key: value for key, value in reading.fields(item, name).items() if key not in _TAKEN
        }
        if extra:
            besides[head.name] = extra
    return functions, besides


def _function(item: Raw, head: _Head, name: str) -> Raw:
    if head.type in (None, "custom"):
        tool = reading.read(item, _Tool, name)
        reading.fields(tool.input_schema, f"{name}.input_schema")
        return canonical.function(tool.name, tool.description, tool.input_schema, tool.strict)
    kind = head.type or ""
    for prefix, (description, schema) in CLIENT_TOOLS.items():
        if kind.startswith(prefix):
            return canonical.function(head.name, description, schema)
    raise refused(
        f"{name}.type", f"tool type {kind[:60]!r}", "Anthropic's servers would have to run it"
    )


def tool_choice(raw: Raw) -> tuple[Raw | None, bool | None]:
    """(tool_choice, parallel_tool_calls). Raises BadRequest."""
    choice = reading.read(raw, _Choice, "tool_choice")
    parallel = False if choice.disable_parallel_tool_use else None
    if choice.type == "tool":
        if choice.name is None:
            raise reading.unknown("tool_choice.name", "", b"null", "the name of a tool")
        named: Object = {"type": "function", "function": {"name": choice.name}}
        return canonical.raw(named), parallel
    words = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type not in words:
        raise reading.unknown("tool_choice.type", choice.type, raw, "auto, any, tool or none")
    return canonical.raw(words[choice.type]), parallel
