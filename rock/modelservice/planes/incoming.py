"""A request as it arrives over HTTP/1.1: its head, the pieces of its body, and what is wrong with it.

`connection` fills it from the parser; nothing in here touches a socket.
"""

from __future__ import annotations

import asyncio
import zlib

from rock.errors import BadRequest, PayloadTooLarge, RockError


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

    @property
    def path(self) -> str:
        path = self.target.partition(b"?")[0].partition(b"#")[0]
        if not path.startswith(b"/") and b"://" in path:
            path = b"/" + path.partition(b"://")[2].partition(b"/")[2]
        return path.decode("utf-8", "replace")


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
