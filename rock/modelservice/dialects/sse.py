"""Server-sent events as plain functions: bytes out with `encode`, bytes in with `Decoder`.

No I/O. `encode` promises one whole frame, ended by a blank line, whatever line breaks the data has.
`Decoder` takes the stream in any pieces and gives back whole events, in order.
"""

from __future__ import annotations

from dataclasses import dataclass

DONE = b"data: [DONE]\n\n"
"""The frame that ends an OpenAI stream."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `name` is null where the stream gave no `event:` line."""

    data: str
    name: str | None = None


def encode(data: bytes, *, event: str | None = None) -> bytes:
    """One frame. `data` is UTF-8; each of its lines becomes a `data:` line."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    if b"\n" not in data and b"\r" not in data:
        return head + b"data: " + data + b"\n\n"
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


class Decoder:
    """Whole events out of bytes that arrive in any pieces; comments and unknown fields are dropped."""

    def __init__(self) -> None:
        self._tail = b""
        self._after_return = False
        self._name: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if self._after_return and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = False
        if chunk.endswith(b"\r"):
            # Ends a line now; a line feed that opens the next piece belongs to it.
            self._after_return = True
        text = (self._tail + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._tail = text.split(b"\n")
        events: list[Event] = []
        for line in lines:
            self._line(line.decode("utf-8", "replace"), events)
        return events

    def _line(self, line: str, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event("\n".join(self._data), self._name))
            self._name, self._data = None, []
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
