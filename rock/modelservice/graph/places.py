"""Where requests and answers stand in a message graph."""

from __future__ import annotations

from msgspec import Struct


class Extension(Struct, frozen=True, kw_only=True):
    """What one request added to the graph; with it the journal can add the same again."""

    base: int
    """As-sent node of the longest prefix that was known."""
    path: list[int]
    """Message numbers after `base`."""
    blobs: list[bytes]
    """The messages (and tools) never seen before, numbered on from the last."""
    leaf: int
    """As-sent node of the whole request."""
    known: int
    """How many leading messages were known, in normalised form."""
    tools: int | None
    """Number of the tools list."""


class Located(Struct, frozen=True):
    """A request looked up in the graph."""

    base: int
    """As-sent node of its longest known prefix."""
    rest: list[bytes]
    """The messages after that."""
    tools: bytes | None
    complete: bool
    """The very same messages and tools were asked before."""


class AnswerRef(Struct, frozen=True):
    """Choice `choice` of the session's call number `call`."""

    call: int
    choice: int


class Placement(Struct, frozen=True):
    """Where a call stands: the answer it goes on from, and why it does not, if so."""

    parent: AnswerRef | None
    covers: int
    """Leading messages that the parent's prompt and answer cover."""
    branch: str | None
    """`retry`, `edit`, `fork`, `auxiliary`, `new_root`; None if the call simply goes on."""
