"""The bytes of a reply's head."""

from __future__ import annotations

from http import HTTPStatus

from rock.modelservice.planes.plane import Reply

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\n"
)


def stream_head(keep_alive: bool, chunked: bool) -> bytes:
    more = b"" if keep_alive else b"Connection: close\r\n"
    if chunked:
        more += b"Transfer-Encoding: chunked\r\n"
    return STREAM_HEAD + more + b"\r\n"


def head(reply: Reply, keep_alive: bool) -> bytes:
    key = (reply.status, reply.content_type)
    start = _STARTS.get(key)
    if start is None:
        phrase = _PHRASES.get(reply.status, "")
        text = f"HTTP/1.1 {reply.status} {phrase}\r\nContent-Type: {reply.content_type}\r\n"
        start = _STARTS[key] = text.encode() + b"Content-Length: "
    more = b""
    if reply.headers:
        more = b"".join(f"{name}: {value}\r\n".encode() for name, value in reply.headers.items())
    if not keep_alive and "Connection" not in reply.headers:
        more += b"Connection: close\r\n"
    return b"%b%d\r\n%b\r\n" % (start, len(reply.body), more)


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
"""A status that nobody registered (529) has none."""
_STARTS: dict[tuple[int, str], bytes] = {}
"""Status line and content type, of the few that there are."""
