"""A raw HTTP/1.1 client for fault tests: one socket, one request at a time, nothing hidden.

No pool and no retry: what breaks is seen by whoever asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

MAX_HEAD_BYTES = 1 << 17


class Broken(Exception):
    """The connection ended before the reply was whole; `got` is what came of its body."""

    def __init__(self, why: str, got: bytes = b"") -> None:
        super().__init__(why)
        self.got = got


@dataclass(frozen=True)
class Heard:
    """One whole reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One socket to the service. Use `open`, then `ask` as often as it lasts, then `close`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str) -> Self:
        """Raises OSError: a refused connection is an error of its own."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port, limit=MAX_HEAD_BYTES
        )
        return cls(reader, writer)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, request: bytes) -> Heard:
        """Raises Broken."""
        self.send(request)
        return await self.hear()

    async def hear(self) -> Heard:
        """The next reply. Raises Broken."""
        got = bytearray()
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = _parse_head(head)
            await self._body(headers, got)
        except (asyncio.IncompleteReadError, OSError) as exc:
            raise Broken(f"{type(exc).__name__}: {exc}", bytes(got)) from exc
        return Heard(status, headers, bytes(got))

    async def _body(self, headers: Mapping[str, str], got: bytearray) -> None:
        if headers.get("transfer-encoding") != "chunked":
            got += await self.reader.readexactly(int(headers.get("content-length", "0")))
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            got += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")

    def abort(self) -> None:
        """Gone without a goodbye: RST as soon as the other side says anything."""
        transport = self.writer.transport
        transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # it was broken already
            await self.writer.wait_closed()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return int(lines[0].split(" ", 2)[1]), headers


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of one POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: rock", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(
    messages: list[dict[str, str]],
    *,
    key: str,
    stream: bool = False,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A chat request of the session with `key`."""
    body = {"model": "m", "messages": messages, "stream": stream}
    given = {"Authorization": f"Bearer {key}", **(headers or {})}
    return post("/v1/chat/completions", json.dumps(body).encode(), given)


def text_of(heard: Heard) -> str:
    """What the model said. Raises Broken for a stream that ended without its end or in an error."""
    if not heard.headers["content-type"].startswith("text/event-stream"):
        return heard.json()["choices"][0]["message"]["content"]
    if not heard.body.endswith(b"data: [DONE]\n\n"):
        raise Broken(f"the stream ended with {heard.body[-100:]!r}", heard.body)
    return text_in(heard.body)


def text_in(body: bytes) -> str:
    """What the model said in a stream so far."""
    lines = [line[6:] for line in body.split(b"\n")[:-1] if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line).get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
