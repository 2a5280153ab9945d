"""Bytes from a peer become requests: llhttp (`httptools`) with what it leaves to its caller.

`connection` feeds it and answers what comes of it, in order. What is no HTTP becomes a request, too,
which says what is wrong with it: the peer gets an answer, and nothing after it is read.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from rock.errors import BadRequest, PayloadTooLarge, RockError
from rock.modelservice.planes.adapter import Bounds
from rock.modelservice.planes.incoming import Incoming, lowered

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024


def _nobody(incoming: Incoming) -> None:
    """Who hears of what still comes on a connection that is closed."""
    del incoming


class RequestReader:
    """Reads the requests of one connection. `arrived` is called when the rest of a request has come
    that was answered before."""

    __slots__ = (
        "_arrived",
        "_arriving",
        "_bounds",
        "_head_at",
        "_head_bytes",
        "_loop",
        "_parser",
        "_plain_left",
        "asked",
        "deaf",
        "queue",
    )

    def __init__(
        self, bounds: Bounds, loop: AbstractEventLoop, arrived: Callable[[Incoming], None]
    ) -> None:
        self._bounds = bounds
        self._loop = loop
        self._arrived = arrived
        self._parser = HttpRequestParser(self)
        self.queue: deque[Incoming] = deque()
        """Requests not answered, in order; the parser fills the last."""
        self._arriving: Incoming | None = None
        """The request whose head is not complete."""
        self._head_bytes = 0
        self._head_at = 0.0
        self._plain_left = 0
        """Bytes of a body that are still to come, where the parser does not count them."""
        self.deaf = False
        """Nothing more is read as HTTP."""
        self.asked = False
        """A request has come."""

    def feed(self, data: bytes) -> None:
        """What came. Afterwards `queue` has the requests whose heads are complete."""
        if self.deaf:
            return
        begun = self._arriving
        self._feed(data)
        if begun is not None and self._arriving is begun:
            # What came with the end of the request before is not counted: it is one read at most.
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._broken(BadRequest(f"the head is over {MAX_HEAD_BYTES} bytes"))

    def close(self) -> None:
        """Read nothing more. Whoever is read for, and the parser, are let go of: no cycle is left."""
        self.deaf = True
        self._arrived = _nobody
        self._parser = HttpRequestParser(object())

    def head_is_late(self, now: float, seconds: float) -> bool:
        """Whether a head began to come more than `seconds` ago and is not complete."""
        return self._arriving is not None and now - self._head_at > seconds

    def _feed(self, data: bytes) -> None:
        try:
            while data and not self.deaf:
                if self._plain_left:
                    body, data = data[: self._plain_left], data[self._plain_left :]
                    self._plain_left -= len(body)
                    self.on_body(body)
                    if not self._plain_left:
                        self._complete()
                    continue
                try:
                    self._parser.feed_data(data)
                    return
                except HttpParserUpgrade as exc:
                    offset: int = exc.args[0]
                    data = data[offset:]
                    self._decline_upgrade()
        except HttpParserError as exc:
            self._broken(exc)

    def _decline_upgrade(self) -> None:
        """Go on in HTTP/1.1 after a request that asked for another protocol, as one may. The parser
        gives up before its body, so that is counted here."""
        incoming = self.queue[-1]
        self._parser = HttpRequestParser(self)
        length = incoming.headers.get("content-length", "0")
        if "transfer-encoding" in incoming.headers or not length.isdigit():
            self._broken(BadRequest("a request for another protocol, with a body in chunks"))
            return
        incoming.keep_alive = incoming.keep_alive and incoming.method != "CONNECT"
        self._plain_left = int(length)
        if not self._plain_left:
            self._complete()

    def _broken(self, exc: Exception) -> None:
        """What follows on this connection cannot be understood."""
        self.deaf = True
        why = exc.message if isinstance(exc, RockError) else str(exc).partition("\n")[0][:200]
        log.info("refused what is no HTTP request: %s", why)
        incoming = self.queue[-1] if self.queue else None
        if self._arriving is not None or incoming is None or incoming.complete:
            incoming = self._arriving or Incoming()
            self._arriving = None
            incoming.bad = BadRequest(f"this is no HTTP request: {why}")
            self.queue.append(incoming)
        elif incoming.bad is None:
            incoming.bad = BadRequest(f"the body broke off or is badly encoded: {why}")
        incoming.keep_alive = False
        incoming.wake()
        if incoming.answered:
            self.queue.pop()
            self._arrived(incoming)

    # --- the parser's side ---

    def on_message_begin(self) -> None:
        self._arriving = Incoming()
        self._head_bytes = 0
        self._head_at = self._loop.time()

    def on_url(self, url: bytes) -> None:
        assert self._arriving is not None
        self._arriving.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self._arriving
        if incoming is None:
            return  # a trailer
        try:
            incoming.headers.setdefault(lowered(name), value.decode())
        except UnicodeDecodeError:
            shown = name.decode("ascii", "replace")[:100]
            # They could be neither stored nor shown.
            incoming.bad = BadRequest(f"the header {shown} is not valid UTF-8", param=shown)

    def on_headers_complete(self) -> None:
        incoming, self._arriving = self._arriving, None
        assert incoming is not None
        self.asked = True
        incoming.method = self._parser.get_method().decode("ascii", "replace")
        incoming.version = self._parser.get_http_version()
        incoming.keep_alive = self._parser.should_keep_alive() and incoming.version == "1.1"
        length = incoming.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._bounds.max_body_bytes:
            incoming.bad = incoming.bad or self._too_large()
        self.queue.append(incoming)

    def on_body(self, body: bytes) -> None:
        incoming = self.queue[-1]
        if incoming.answered or incoming.bad is not None:
            return
        incoming.size += len(body)
        if incoming.size > self._bounds.max_body_bytes:
            incoming.bad = self._too_large()
            incoming.chunks.clear()
            incoming.wake()
        else:
            incoming.chunks.append(body)

    def on_message_complete(self) -> None:
        if not self._parser.should_upgrade():
            self._complete()

    def _complete(self) -> None:
        incoming = self.queue[-1]
        incoming.complete = True
        if incoming.waiter is not None:
            incoming.wake()
        if not incoming.keep_alive:
            self.deaf = True
        if incoming.answered:
            self.queue.pop()
            self._arrived(incoming)

    def _too_large(self) -> PayloadTooLarge:
        most = self._bounds.max_body_bytes
        return PayloadTooLarge(f"the body is over the limit of {most} bytes")
