"""Call syntaxes that write each argument between tags: Qwen3-Coder, Seed-OSS, MiniMax-M2, GLM-4.5.

These have no escapes: a value that contains the text that would end it cannot be told from one that
ends there. A value ends at the first end tag that the next argument's or the call's own tag
follows; an end tag followed by anything else is part of the value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rock.modelservice.text.calls import Call, read_name
from rock.modelservice.text.reader import SPACE, Markers, NotACall, Reader, Reading
from rock.modelservice.text.schema import ArgumentTypes, as_json

_KEY = re.compile(r'[^<>"\r\n]+')


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls:
    """The literals of one such syntax, in the order in which they are written.

    Space is allowed between them, not around names. `padded`: one newline after a value's opening
    and one before its end belong to the tags.
    """

    opening: tuple[str, ...]
    name_end: str
    key: str
    value: tuple[str, ...]
    value_end: str
    closing: tuple[str, ...]
    padded: bool = False
    bare_opener: str = field(default="", init=False)

    @property
    def openers(self) -> tuple[str, ...]:
        return self.opening[:1]

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        yield from _expect_all(reader, self.opening)
        name = yield from read_name(reader)
        yield from reader.expect(self.name_end)
        yield from reader.run(SPACE)
        written: dict[str, str] = {}
        following = yield from reader.one_of(self.key, self.closing[0])
        while following == self.key:
            key = yield from reader.run(_KEY)
            if not key or key in written:
                raise NotACall
            yield from _expect_all(reader, self.value)
            written[key], following = yield from self._read_value(reader)
        if following is None:
            raise NotACall
        for literal in self.closing[1:]:
            yield from reader.run(SPACE)
            yield from reader.expect(literal)
        return [Call(name, _as_object(written, types.get(name, {})))]

    def _read_value(self, reader: Reader) -> Reading[tuple[str, str]]:
        """The value, and which literal came after its end tag."""
        end = Markers(self.value_end)
        parts: list[str] = []
        while True:
            text, marker = reader.until(end)
            parts.append(text)
            if marker:
                mark = reader.mark()
                yield from reader.expect(marker)
                yield from reader.run(SPACE)
                following = yield from reader.one_of(self.key, self.closing[0])
                if following:
                    return self._unpadded("".join(parts)), following
                parts.append(reader.since(mark))
            elif reader.ended:
                raise NotACall
            else:
                yield

    def _unpadded(self, value: str) -> str:
        return value.removeprefix("\n").removesuffix("\n") if self.padded else value


def _expect_all(reader: Reader, literals: tuple[str, ...]) -> Reading[None]:
    for index, literal in enumerate(literals):
        if index:
            yield from reader.run(SPACE)
        yield from reader.expect(literal)


def _as_object(written: Mapping[str, str], types: Mapping[str, frozenset[str]]) -> str:
    members = (
        f"{json.dumps(key, ensure_ascii=False)}: {as_json(text, types.get(key, frozenset()))}"
        for key, text in written.items()
    )
    return "{" + ", ".join(members) + "}"
