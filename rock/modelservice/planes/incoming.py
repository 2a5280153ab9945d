"""A request as it arrives over HTTP/1.1: its head, the pieces of its body, and what is wrong with it.

`connection` fills it from the parser; nothing in here touches a socket.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from functools import lru_cache

from rock.errors import BadRequest, BodyTimeout, PayloadTooLarge, RockError

MAX_AHEAD = 16
"""Requests sent ahead of replies; over it, reading pauses."""
MAX_AHEAD_BYTES = 1 << 20
"""The same for their bodies together."""


class Incoming:
    """A request as it arrives."""

    __slots__ = (
        "answered",
        "bad",
        "chunks",
        "complete",
        "headers",
        "keep_alive",
        "method",
        "size",
        "target",
        "version",
        "waiter",
    )

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = "1.1"
        self.headers: dict[str, str] = {}
        """By name in lower case; the first of several."""
        self.chunks: list[bytes] = []
        self.size = 0
        self.complete = False
        self.keep_alive = True
        self.answered = False
        """Its reply was written; what still comes of it is thrown away."""
        self.bad: RockError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until all of it has come, or something is wrong with it. Raises BodyTimeout."""
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self.waiter
        except TimeoutError as exc:
            raise BodyTimeout(f"the body did not arrive within {seconds:g} s") from exc

    def arrived(self) -> bytes | None:
        """The body, if it has come and is as it was sent."""
        if not self.complete or self.bad is not None or "content-encoding" in self.headers:
            return None
        return self.body()

    def body(self) -> bytes:
        """What has come of the body, and stays until `chunks` is cleared."""
        if len(self.chunks) != 1:
            self.chunks = [b"".join(self.chunks)]
        return self.chunks[0]

    def unpacked(self, max_bytes: int) -> bytes:
        """The body as it was before it was compressed. It is no longer here then.

        Raises PayloadTooLarge, BadRequest.
        """
        body = self.body()
        self.chunks.clear()
        encoding = self.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return body
        return decoded(body, encoding, max_bytes)

    @property
    def path(self) -> str:
        path = self.target.partition(b"?")[0].partition(b"#")[0]
        if not path.startswith(b"/") and b"://" in path:
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        return path.decode("utf-8", "replace")


def far_ahead(queue: Sequence[Incoming]) -> bool:
    """Whether a peer has sent too much behind the first of these requests."""
    waiting = sum(incoming.size for incoming in queue) - queue[0].size
    return len(queue) > MAX_AHEAD or waiting > MAX_AHEAD_BYTES


@lru_cache(maxsize=64)
def lowered(name: bytes) -> str:
    """A header's name, as it is looked up: the same few come with every request. Raises
    UnicodeDecodeError."""
    return name.decode("ascii").lower()


def decoded(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """A compressed body, unpacked as far as it may be large. Raises PayloadTooLarge, BadRequest."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BadRequest(
            f"Content-Encoding: expected gzip, deflate or none, got {encoding[:40]!r}",
            param="Content-Encoding",
        )
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # gzip and zlib, by their heads
    try:
        plain = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as exc:
        raise BadRequest(f"the body is no {encoding}: {exc}") from exc
    if len(plain) > max_bytes:
        raise PayloadTooLarge(f"the unpacked body is over the limit of {max_bytes} bytes")
    if not unpacker.eof:
        raise BadRequest(f"the body breaks off in the middle of its {encoding}")
    return plain
