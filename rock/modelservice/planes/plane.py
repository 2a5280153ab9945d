"""What both planes take and give, free of any HTTP server: a Request and an Outcome.

A handler decides; the adapter (`connection`) reads, waits and writes. What has to wait for nothing is
answered at once, with a Reply. What waits for one thing that will be told is Parked and costs
nothing meanwhile. All else is a coroutine and gets a task.

How a reply went is told to it through `sent` (every byte was handed to the connection) or `lost`
(the other side was gone); exactly one of them is called, once, after the reply was returned.
Neither may wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

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
    body: bytes | None = None
    """The same, if it has come already and can be had as it was sent."""


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


class Parked:
    """A reply that will come. While it is waited for there is this object and no task.

    No abstract class: whether an outcome is one is asked for every request, and those ask slowly.
    """

    __slots__ = ()

    def start(self, ready: Callable[[], None]) -> None:
        """Call `ready` once when `reply` can be asked, which may be at once."""
        raise NotImplementedError

    def reply(self) -> Reply:
        """Asked once. What it raises is refused as what a handler raises."""
        raise NotImplementedError

    def left(self) -> None:
        """The other side went away: `ready` is not wanted any more. Not called once `ready` was."""
        raise NotImplementedError


Outcome: TypeAlias = Reply | Parked | Coroutine[Any, Any, Reply | Parked | EventStream]
