"""Reading text that arrives in pieces: straight-line code that pauses where the text ends.

A *reading* is a generator. It asks the `Reader` for what should come next and yields when that
needs text that has not arrived; whoever drives it pushes more and resumes it. So a grammar is
written once, as if all text were there, and works at any chunking.

Every character is taken exactly once, by position, and never looked at again: time is linear in
the text, whatever the text is. Between two pieces only an unfinished marker is kept.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
"""A computation that may wait for more text, and then has a `T`."""

SPACE = re.compile(r"[ \t\r\n]+")
NEWLINES = re.compile(r"[\r\n]+")


class NotACall(Exception):
    """The text is not what the grammar needs here. Caught by the parser; never leaves the package."""


class Markers:
    """A set of literal strings to look for; none may be the beginning of another."""

    def __init__(self, *literals: str) -> None:
        self.literals = tuple(dict.fromkeys(literals))
        self._any = re.compile("|".join(map(re.escape, self.literals))) if literals else None
        self._longest = max(map(len, literals), default=0)

    def find(self, text: str, start: int, *, ended: bool) -> tuple[int, str | None]:
        """Where the first marker begins at or after `start`, and which it is.

        Without a marker: how far the text certainly belongs to none, whatever comes next.
        """
        found = self._any.search(text, start) if self._any else None
        if found:
            return found.start(), found.group()
        if not ended:
            for at in range(max(start, len(text) - self._longest + 1), len(text)):
                if any(literal.startswith(text[at:]) for literal in self.literals):
                    return at, None
        return len(text), None


class Reader:
    """The text so far, from the first character that nobody has taken."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._taken: list[str] = []
        self.ended = False

    def push(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more text will come: whatever waits must decide with what there is."""
        self.ended = True

    @property
    def exhausted(self) -> bool:
        """Whether all text is taken and no more will come."""
        return self.ended and self._at == len(self._text)

    def mark(self) -> int:
        """This place, for `since`."""
        return len(self._taken)

    def since(self, mark: int) -> str:
        """The text taken since `mark`."""
        return "".join(self._taken[mark:])

    def forget(self) -> None:
        """Keep nothing of what was taken; earlier marks are void."""
        self._taken.clear()

    def until(self, markers: Markers) -> tuple[str, str | None]:
        """Take the text before the next marker (itself not taken), as far as it is there."""
        at, marker = markers.find(self._text, self._at, ended=self.ended)
        return self._take(at), marker

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Take the longest run of characters that match `pattern` (one character class, repeated)."""
        parts: list[str] = []
        while True:
            match = pattern.match(self._text, self._at)
            if match:
                parts.append(self._take(match.end()))
            if self._at < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def peek(self) -> Reading[str]:
        """The next character, not taken; "" at the end of the text."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def one_of(self, *literals: str) -> Reading[str | None]:
        """Take the literal that comes next; None, taking nothing, if what comes is none of them.

        Of two that both fit, the one listed first; it must not be the beginning of the other.
        """
        while True:
            for literal in literals:
                if self._text.startswith(literal, self._at):
                    self._take(self._at + len(literal))
                    return literal
            arrived = len(self._text) - self._at
            if self.ended or not any(
                len(literal) > arrived and literal.startswith(self._text[self._at :])
                for literal in literals
            ):
                return None
            yield

    def expect(self, literal: str) -> Reading[None]:
        """Take `literal`, or raise `NotACall`."""
        if (yield from self.one_of(literal)) is None:
            raise NotACall

    def match(self, pattern: re.Pattern[str], length: int) -> Reading[str]:
        """Take `length` characters that match `pattern` as a whole, or raise `NotACall`."""
        while len(self._text) - self._at < length and not self.ended:
            yield
        end = self._at + length
        if not pattern.fullmatch(self._text, self._at, end):
            raise NotACall
        return self._take(end)

    def _take(self, end: int) -> str:
        taken = self._text[self._at : end]
        self._at = end
        if taken:
            self._taken.append(taken)
        return taken
