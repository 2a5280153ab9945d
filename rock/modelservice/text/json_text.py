"""JSON (RFC 8259), checked as it arrives and kept as it was written.

Strict on purpose: a raw newline in a string, a trailing comma or NaN is an error at that very
character, so that a broken call ends where it broke and what follows is read afresh. Nothing is
decoded but the names of an object's members; nesting is bounded by memory, not by recursion.
"""

from __future__ import annotations

import json
import re

from rock.modelservice.text.reader import SPACE, NotACall, Reader, Reading

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\["\\/bfnrtu]')
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SCALAR = re.compile(r"[-+.\w]+")
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def read_members(reader: Reader) -> Reading[dict[str, str]]:
    """An object's members: name to value, the value as written. Raises `NotACall`."""
    members: dict[str, str] = {}
    yield from reader.expect("{")
    yield from reader.run(SPACE)
    while (yield from reader.peek()) != "}" or members:
        name = yield from _read_name(reader)
        if name in members:
            raise NotACall
        members[name] = yield from read_value(reader)
        yield from reader.run(SPACE)
        if (yield from reader.peek()) != ",":
            break
        yield from reader.expect(",")
        yield from reader.run(SPACE)
    yield from reader.expect("}")
    return members


def read_value(reader: Reader) -> Reading[str]:
    """Any value, as written. Raises `NotACall` at the first character that cannot be."""
    start = reader.mark()
    closers: list[str] = []
    while True:
        opened = yield from _read_scalar_or_opening(reader)
        if opened:
            yield from reader.run(SPACE)
            if (yield from reader.peek()) != opened:
                closers.append(opened)
                if opened == "}":
                    yield from _read_name(reader)
                continue
            yield from reader.expect(opened)
        if not (yield from _another_follows(reader, closers)):
            return reader.since(start)


def _read_scalar_or_opening(reader: Reader) -> Reading[str]:
    """Take a string, number or word whole, or an opening bracket; in that case what closes it."""
    first = yield from reader.peek()
    if first == '"':
        yield from _read_string(reader)
        return ""
    if first in ("{", "["):
        yield from reader.expect(first)
        return "}" if first == "{" else "]"
    if not _LITERAL.fullmatch((yield from reader.run(_SCALAR))):
        raise NotACall
    return ""


def _another_follows(reader: Reader, closers: list[str]) -> Reading[bool]:
    """After a value: close what closes; True if a comma announces one more value."""
    while closers:
        yield from reader.run(SPACE)
        if (yield from reader.peek()) == ",":
            yield from reader.expect(",")
            yield from reader.run(SPACE)
            if closers[-1] == "}":
                yield from _read_name(reader)
            return True
        yield from reader.expect(closers[-1])
        closers.pop()
    return False


def _read_name(reader: Reader) -> Reading[str]:
    """A member's name, decoded, and the colon and space after it."""
    name = yield from _read_string(reader)
    yield from reader.run(SPACE)
    yield from reader.expect(":")
    yield from reader.run(SPACE)
    return json.loads(name)


def _read_string(reader: Reader) -> Reading[str]:
    start = reader.mark()
    yield from reader.expect('"')
    while True:
        yield from reader.run(_PLAIN)
        following = yield from reader.peek()
        if following != "\\":
            yield from reader.expect('"')
            return reader.since(start)
        escape = yield from reader.match(_ESCAPE, 2)
        if escape == "\\u":
            yield from reader.match(_HEX, 4)
