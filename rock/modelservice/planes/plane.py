"""What both planes take and give, free of any HTTP server: a Request, a Reply or an EventStream.

A handler decides and waits; the adapter (`server`) reads and writes. How a reply went is told to it
through `sent` (every byte was handed to the connection) or `lost` (the other side was gone);
exactly one of them is called, once, after the reply was returned. Neither may wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from msgspec import Struct, field


def nothing() -> None:
    """For replies that nobody needs to hear about again."""


class Request(Struct, frozen=True):
    """One HTTP request. The body is read only when asked for, so that a refusal costs nothing."""

    method: str
    path: str
    """As sent: percent-encoded, without the query."""
    headers: Mapping[str, str]
    """By name in lower case."""
    read: Callable[[], Awaitable[bytes]]
    """The whole body; raises PayloadTooLarge."""


class Reply(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"
    sent: Callable[[], None] = nothing
    lost: Callable[[], None] = nothing


class EventStream(Struct, frozen=True):
    """Status 200 is promised. `frames` handles its own failures: it ends, it does not raise."""

    frames: AsyncGenerator[bytes, None]
    sent: Callable[[], None] = nothing
    lost: Callable[[], None] = nothing
