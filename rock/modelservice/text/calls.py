"""What a call syntax is: how one family of models writes a tool call, as a reading.

A syntax says which literals can begin a call and reads from there to the call's last character. It
either finds exactly what the models' makers published or raises `NotACall`; it mends nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from rock.modelservice.text.reader import NotACall, Reader, Reading
from rock.modelservice.text.schema import ArgumentTypes

NAME = re.compile(r"[^\s<>\[\]{}\"'=|]+")
"""A function's name where a syntax writes it outside JSON."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `arguments` is the text of a JSON object; `id` only if the model wrote one."""

    name: str
    arguments: str
    id: str | None = None


class CallSyntax(Protocol):
    """How calls are written."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Literals that begin a call anywhere in the answer; none begins another."""
        ...

    @property
    def bare_opener(self) -> str:
        """A literal that begins a call only as the first thing of the answer; "" for none."""
        ...

    def read(self, reader: Reader, types: ArgumentTypes) -> Reading[list[Call]]:
        """Take one opener and all that belongs to it. Raises `NotACall` where it stops fitting."""
        ...


def read_name(reader: Reader) -> Reading[str]:
    name = yield from reader.run(NAME)
    if not name:
        raise NotACall
    return name
