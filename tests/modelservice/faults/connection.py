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
    """The connection ended before the reply was whole."""


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
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            status, headers = _parse_head(head)
            return Heard(status, headers, await self._body(headers))
        except (asyncio.IncompleteReadError, OSError) as exc:
            raise Broken(f"{type(exc).__name__}: {exc}") from exc

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readuntil(b"\r\n")
        return body

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
    events = [line[6:] for line in heard.body.decode().split("\n") if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise Broken(f"the stream ended with {events[-1:]}")
    deltas = [json.loads(event) for event in events[:-1]]
    choices = [choice for delta in deltas for choice in delta["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
