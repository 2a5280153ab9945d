"""Call syntaxes whose arguments are JSON; they come out exactly as the model wrote them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rock.modelservice.text.calls import Call, read_name
from rock.modelservice.text.json_text import read_members, read_value
from rock.modelservice.text.reader import SPACE, NotACall, Reader, Reading
from rock.modelservice.text.schema import ArgumentTypes

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class EnclosedJson:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3."""

    opener: str
    closer: str
    bare_opener: str = field(default="", init=False)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.opener,)

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        yield from reader.expect(self.opener)
        yield from reader.run(SPACE)
        members = yield from read_members(reader)
        yield from reader.run(SPACE)
        yield from reader.expect(self.closer)
        return [_call(members, "arguments")]


@dataclass(frozen=True, slots=True)
class LlamaJson:
    """`{"name": …, "parameters": {…}}`, several with `; ` between: Llama 3.

    Either after `<|python_tag|>` or as the first thing of the answer. The latter could also be an
    answer that is JSON, so there the name must be one of the request's tools, if it has any.
    """

    tag: str = "<|python_tag|>"
    bare_opener: str = field(default="{", init=False)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.tag,)

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        tagged = yield from reader.one_of(self.tag)
        calls: list[Call] = []
        while not calls or (yield from reader.one_of(";")):
            yield from reader.run(SPACE)
            members = yield from read_members(reader)
            if members.get("type") == '"function"':
                del members["type"]
            call = _call(members, "arguments" if "arguments" in members else "parameters")
            if types and not tagged and call.name not in types:
                raise NotACall
            calls.append(call)
        return calls


@dataclass(frozen=True, slots=True)
class MistralJson:
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, and the later `[TOOL_CALLS]name[ARGS]{…}`.

    The later form repeats the marker for each call, may have `[CALL_ID]id` after the name, and
    loses `[ARGS]` in some detokenisers.
    """

    opener: str = "[TOOL_CALLS]"
    bare_opener: str = field(default="", init=False)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.opener,)

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        yield from reader.expect(self.opener)
        yield from reader.run(SPACE)
        if (yield from reader.one_of("[")):
            return (yield from self._read_list(reader))
        name = yield from read_name(reader)
        call_id: str | None = None
        if (yield from reader.one_of("[CALL_ID]")):
            call_id = (yield from reader.run(_WORD)) or None
        yield from reader.one_of("[ARGS]")
        return [Call(name, (yield from _read_object(reader)), call_id)]

    def _read_list(self, reader: Reader) -> Reading[list[Call]]:
        calls: list[Call] = []
        following: str | None = ","
        while following == ",":
            yield from reader.run(SPACE)
            calls.append(_call((yield from read_members(reader)), "arguments"))
            yield from reader.run(SPACE)
            following = yield from reader.one_of(",", "]")
        if following is None:
            raise NotACall
        return calls


@dataclass(frozen=True, slots=True)
class HeadedJson:
    """A head with the function's name, then the arguments: DeepSeek V3, V3.1, Kimi K2.

    `id_pattern`: the head is an id that matches this and names the function in its first group.
    """

    opener: str
    separator: str
    closer: str
    id_pattern: re.Pattern[str] | None = None
    bare_opener: str = field(default="", init=False)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.opener,)

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        yield from reader.expect(self.opener)
        yield from reader.run(SPACE)
        head = yield from read_name(reader)
        yield from reader.run(SPACE)
        yield from reader.expect(self.separator)
        yield from reader.run(SPACE)
        arguments = yield from _read_object(reader)
        yield from reader.run(SPACE)
        yield from reader.expect(self.closer)
        if self.id_pattern is None:
            return [Call(head, arguments)]
        match = self.id_pattern.fullmatch(head)
        if not match:
            raise NotACall
        return [Call(match[1], arguments, head)]


def _read_object(reader: Reader) -> Reading[str]:
    if (yield from reader.peek()) != "{":
        raise NotACall
    return (yield from read_value(reader))


def _call(members: Mapping[str, str], arguments: str) -> Call:
    """The call that an object is: a name, an object of arguments, perhaps an id, nothing else."""
    if not {"name", arguments} <= members.keys() <= {"name", arguments, "id"}:
        raise NotACall
    name = _read_text(members["name"])
    if not name or not members[arguments].startswith("{"):
        raise NotACall
    call_id = members.get("id", "null")
    return Call(name, members[arguments], None if call_id == "null" else _read_text(call_id))


def _read_text(value: str) -> str:
    """A JSON string, decoded, if it has only characters that a name or id can have."""
    text = json.loads(value) if value.startswith('"') else None
    if not isinstance(text, str) or not text.isprintable():
        raise NotACall
    return text
