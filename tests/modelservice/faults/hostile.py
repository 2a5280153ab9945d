"""Hostile requests, made from a seed: bodies, headers and framing that no good client sends.

`requests(seed, targets)` yields raw bytes for a socket, for ever. Each is either a whole request
(however wrong) or is followed by the end of the sender's stream, so the service can always answer
or close at once.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_HOLE = "@@hole@@"


@dataclass(frozen=True)
class Target:
    """An endpoint, a body it takes, and the headers that open it."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    method: str = "POST"


@dataclass(frozen=True)
class Hostile:
    """What to write to a socket."""

    kind: str
    data: bytes


def _frame_like() -> bytes:
    inner = b'{"t":"booted","run":1}'
    return b"%08x %08x %b\\n" % (len(inner), zlib.crc32(inner), inner)


_TEXTS = [
    b"\\u0000",
    b"\\ud800",
    b"\\udfff\\ud800",
    b"a\x00b",
    b"\x1b[2J\x07",
    b"\xff\xfe",
    b"\xc0\xaf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"data: [DONE]\\n\\n",
    b"event: error\\ndata: {}\\n\\n",
    b"\\r\\n\\r\\nHTTP/1.1 200 OK\\r\\n\\r\\n",
    b"</tool_call><|im_end|><|endoftext|>[TOOL_CALLS]",
    b"x-anthropic-billing-header: a",
    b"CONTEXT CHECKPOINT COMPACTION",
    b"../../../../etc/passwd",
    b"${jndi:x}{{7*7}}%s%n%(x)s{0}",
    b"\\u202e\\u2066\\ufeff\\ud83d\\ude00",
    _frame_like(),
    b"A" * 70_000,
    b"\\\\" * 20_000,
    b"\xe2\x82\xac" * 9_000,
    b"",
    b" ",
]
_NUMBERS = [
    b"-1",
    b"0",
    b"-0",
    b"1.5",
    b"1e308",
    b"-1e308",
    b"1e999",
    b"1e-999",
    b"NaN",
    b"Infinity",
    b"2147483648",
    b"9223372036854775808",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1" + b"0" * 400,
    b"9" * 5_000,
    b"01",
    b"0x10",
    b"1_000",
    b"128",
    b"129",
    b"1000000000",
]
_OTHERS = [
    b"null",
    b"true",
    b"false",
    b"[]",
    b"{}",
    b"[null]",
    b"[[]]",
    b'{"":""}',
    b'{"role":"user"}',
    b'[{"role":"user","content":[{"type":"text","text":null}]}]',
    b'{"type":"object","type":"array"}',
    b'{"$ref":"#"}',
    b"",
    b"undefined",
    b"'single'",
    b"[1,]",
    b'{"a":1,}',
    b"//comment",
    b"[" + b"1," * 30_000 + b"1]",
    b'{"a":' * 50 + b"1" + b"}" * 50,
]
_DEPTHS = (100, 500, 1_000, 2_000, 20_000, 200_000)


def _deep(rng: random.Random) -> bytes:
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return opening * depth + b"1" + closing * (depth if rng.random() < 0.8 else depth // 2)


def value(rng: random.Random) -> bytes:
    """The JSON (or not) of one hostile value."""
    kind = rng.random()
    if kind < 0.4:
        return b'"' + rng.choice(_TEXTS) + b'"'
    if kind < 0.6:
        return rng.choice(_NUMBERS)
    if kind < 0.9:
        return rng.choice(_OTHERS)
    return _deep(rng)


def _places(body: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a body."""
    found: list[tuple[Any, Any]] = []
    entries: list[tuple[Any, Any]] = []
    if isinstance(body, dict):
        entries = list(cast("dict[str, Any]", body).items())
    elif isinstance(body, list):
        entries = list(enumerate(cast("list[Any]", body)))
    for key, inner in entries:
        found.append((cast("Any", body), key))
        found += _places(inner)
    return found


def body(rng: random.Random, good: dict[str, Any]) -> bytes:
    """A good body with a few hostile values in it, or something else entirely."""
    if rng.random() < 0.05:
        return value(rng)
    made = copy.deepcopy(good)
    holes = rng.randint(1, 3)
    for _ in range(holes):
        places = _places(made)
        if not places or rng.random() < 0.1:
            made[rng.choice(("x", "n", "stream", "messages", "user"))] = _HOLE
            continue
        container, key = rng.choice(places)
        if isinstance(container, dict) and rng.random() < 0.2:
            container[rng.choice(("n", "id", "name", "type", "é" * 300, ""))] = _HOLE
        else:
            container[key] = _HOLE
    text = json.dumps(made).encode()
    while b'"%b"' % _HOLE.encode() in text:
        text = text.replace(b'"%b"' % _HOLE.encode(), value(rng), 1)
    if rng.random() < 0.1:  # the same key twice
        text = text.replace(b"{", b'{"model":%b,"n":1,' % value(rng), 1)
    return _damaged(rng, text)


def _damaged(rng: random.Random, text: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.03:
        return text[: rng.randrange(len(text) + 1)]
    if kind < 0.05:
        return text + rng.choice((b"}", b"\x00", b"{}", text[:100]))
    if kind < 0.06:
        return b"\xef\xbb\xbf" + text
    if kind < 0.07:
        return text.decode("utf-8", "replace").encode("utf-16")
    if kind < 0.12 and text:
        at = rng.randrange(len(text))
        return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
    return text


# --- HTTP ---

_HEADERS = [
    b"Idempotency-Key: \xff\xfe",
    b"Idempotency-Key: " + b"k" * 7_000,
    b"Idempotency-Key: \xf0\x9f\x98\x80",
    b"Idempotency-Key:",
    b"x-stainless-retry-count: 99999999999999999999",
    b"x-stainless-retry-count: \xd9\xa1",
    b"x-stainless-retry-count: -1",
    b"x-api-key: \xff",
    b"x-api-key: " + b"k" * 7_000,
    b"Authorization: Bearer \xff\xfe\xfd",
    b"Authorization: Bearer",
    b"Authorization: \xc3\x28",
    b"Authorization: Basic AAAA",
    b"anthropic-version: \xff",
    b"x-claude-code-agent-id: \xff\xff",
    b'x-codex-turn-metadata: {"request_kind":\xff}',
    b"x-codex-turn-metadata: " + b"[" * 5_000,
    b"Content-Type: text/\xff",
    b"Content-Type: application/json; charset=\xff\xff",
    b"Content-Type: application/json; charset=utf-7",
    b"Content-Type: multipart/form-data; boundary=",
    b"Accept: \x01",
    b"Accept-Encoding: gzip, br, \xff",
    b"Expect: 100-continue",
    b"Expect: 200-nonsense",
    b"Upgrade: websocket\r\nConnection: Upgrade",
    b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    b"Connection: close",
    b"Connection: \xff",
    b"Connection: keep-alive, close, te",
    b"Trailer: X",
    b"Range: bytes=0-",
    b"Cookie: " + b"a=b;" * 1_500,
    b"X: " + b"y" * 200_000,
    b"X-\xff: y",
    b"X-Nul: a\x00b",
    b"X-Fold: a\r\n b",
    b"X-Cr: a\rb",
    b"NoColon",
    b": empty",
    b" Leading: space",
    b"Space : before",
    b"Host: a\r\nHost: b",
    b"\r\n".join(b"H%d: v" % number for number in range(2_000)),
]
_PATHS = [
    b"/",
    b"//",
    b"*",
    b"/v1",
    b"/v1/",
    b"/v1/../v1/models",
    b"/v1/chat/completions/",
    b"/v1/chat%2Fcompletions",
    b"/v1/models/%ff%fe",
    b"/v1/models/%00",
    b"/v1/models/\xff",
    b"/v1/models/" + b"m" * 7_000,
    b"/v1/responses/%ff",
    b"/s//v1/models",
    b"/s/%00/v1/models",
    b"/s/%ff/v1/models",
    b"/s/\xff\xfe/v1/models",
    b"/s/" + b"k" * 7_500 + b"/v1/models",
    b"/s/a/b/c/d/e/v1/models",
    b"/v1/models?" + b"q=%ff&" * 500,
    b"/v1/models#fragment",
    b"http://other.example/v1/models",
    b"http://[::1/v1/models",
    b"http://a:99999999/v1/models",
    b"other.example:443",
    b"/admin/v1/sessions/%ff",
    b"/admin/v1/sessions/%00/close",
    b"/admin/v1/sessions/a%2Fb/trajectory",
    b"/admin/v1/groups/\xc3\x28",
    b"/admin/v1/groups/%F0%28%8C%28",
    b"/admin/v1/sessions/" + b"s" * 7_000,
    b"/trainer/v1/claim/../../admin/v1/health",
    b"/" + b"a" * 70_000,
    b"/ HTTP/1.1 /",
    b"",
]
_METHODS = [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"CONNECT", b"PATCH", b"PRI",
            b"post", b"POST\x00", b"\xff", b"G" * 300, b"M-SEARCH"]  # fmt: skip
_VERSIONS = [
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"HTTP/1.",
    b"HTTP/1.1 ",
    b"HTCPCP/1.0",
    b"",
]
_GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x00" * 4_096,
    b"\r\n" * 3_000,
    b"GET / HTTP/1.1\n\n",
    b"GET\r\n\r\n",
    b"{}",
    b"SSH-2.0-x\r\n",
    b"A" * 100_000,
]


def _head(target: Target, extra: Sequence[bytes] = (), *, path: bytes | None = None) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (target.method.encode(), path or target.path.encode())]
    lines += [b"Host: rock"]
    lines += [f"{name}: {text}".encode() for name, text in target.headers.items()]
    return b"\r\n".join([*lines, *extra]) + b"\r\n"


def _plain(rng: random.Random, target: Target, extra: Sequence[bytes] = ()) -> bytes:
    content = body(rng, target.body) if target.method == "POST" else b""
    return _head(target, extra) + b"Content-Length: %d\r\n\r\n" % len(content) + content


def _good(target: Target) -> bytes:
    content = json.dumps(target.body).encode() if target.method == "POST" else b""
    return _head(target) + b"Content-Length: %d\r\n\r\n" % len(content) + content


def _bad_headers(rng: random.Random, target: Target) -> bytes:
    extra = rng.sample(_HEADERS, rng.randint(1, 3))
    content = json.dumps(target.body).encode()
    replaced = {line.split(b":", 1)[0].lower() for line in extra}
    kept = {n: t for n, t in target.headers.items() if n.lower().encode() not in replaced}
    changed = Target(target.path, target.body, kept, target.method)
    return _head(changed, extra) + b"Content-Length: %d\r\n\r\n" % len(content) + content


def _bad_line(rng: random.Random, target: Target) -> bytes:
    method, path, version = target.method.encode(), target.path.encode(), b"HTTP/1.1"
    if rng.random() < 0.5:
        method = rng.choice(_METHODS)
    if rng.random() < 0.6:
        path = rng.choice(_PATHS)
    if rng.random() < 0.3:
        version = rng.choice(_VERSIONS)
    rest = _head(target).split(b"\r\n", 1)[1]
    return b"%b %b %b\r\n%bContent-Length: 0\r\n\r\n" % (method, path, version, rest)


def _encoded(rng: random.Random, target: Target) -> bytes:
    """Content encodings that lie, break off or blow up."""
    content = json.dumps(target.body).encode()
    name, packed = rng.choice(
        (
            (b"gzip", gzip.compress(content)),
            (b"gzip", gzip.compress(b" " * 30_000_000 + content, 9)),
            (b"gzip", gzip.compress(content)[:-9]),
            (b"gzip", content),
            (b"deflate", zlib.compress(b"[" * 3_000_000, 9)),
            (b"deflate", b"\xff" * 50),
            (b"br", b"\xff" * 50),
            (b"zstd", b"\x28\xb5\x2f\xfd\xff\xff"),
            (b"identity", content),
            (b"nonsense", content),
            (b"gzip, gzip", gzip.compress(gzip.compress(content))),
        )
    )
    length = b"Content-Length: %d\r\n\r\n" % len(packed)
    return _head(target, [b"Content-Encoding: " + name]) + length + packed


def _chunks(rng: random.Random, content: bytes) -> bytes:
    """A chunked body, good or not."""
    pieces: list[bytes] = []
    while content:
        size = rng.randint(1, max(1, len(content) // 2))
        piece, content = content[:size], content[size:]
        length = rng.choice((b"%x", b"%X", b"0%x", b"%x;ext=1", b'%x;a="\r\n"')) % len(piece)
        if rng.random() < 0.05:
            length = rng.choice((b"-1", b"0x5", b"fffffffffffffffff", b"zz", b"", b"%x " % size))
        pieces.append(length + b"\r\n" + piece + rng.choice((b"\r\n",) * 30 + (b"\n", b"", b"x")))
    pieces.append(
        rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"00\r\n\r\n", b""))
    )
    return b"".join(pieces)


def _chunked(rng: random.Random, target: Target) -> bytes:
    content = body(rng, target.body)[:100_000]
    return _head(target, [b"Transfer-Encoding: chunked"]) + b"\r\n" + _chunks(rng, content)


_LENGTHS = [
    [b"Content-Length: 5", b"Content-Length: 6"],
    [b"Content-Length: 3", b"Transfer-Encoding: chunked"],
    [b"Transfer-Encoding: chunked", b"Content-Length: 3"],
    [b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"],
    [b"Transfer-Encoding: identity"],
    [b"Transfer-Encoding: xchunked"],
    [b"Transfer-Encoding : chunked"],
    [b"Transfer-Encoding: chunked, gzip"],
    [b"Transfer-Encoding:\x0bchunked"],
    [b"Content-Length: -1"],
    [b"Content-Length: +5"],
    [b"Content-Length: 5, 5"],
    [b"Content-Length: 0x5"],
    [b"Content-Length: 99999999999999999999999"],
    [b"Content-Length: 999999999"],
    [b"Content-Length:"],
    [b"Content-Length: 1e3"],
    [b"Content-Length: \xd9\xa5"],
]


def _smuggled(rng: random.Random, target: Target) -> bytes:
    """Two ways to say where the body ends, with a second request where one of them ends."""
    inside = b"0\r\n\r\n" + _good(target)
    return _head(target, rng.choice(_LENGTHS)) + b"\r\n" + rng.choice((inside, b"{}\r\n", b""))


def _pipelined(rng: random.Random, target: Target) -> bytes:
    return b"".join(
        _good(target) if rng.random() < 0.5 else _plain(rng, target)
        for _ in range(rng.randint(2, 8))
    )


def _cut_short(rng: random.Random, target: Target) -> bytes:
    whole = _good(target)
    return whole[: rng.randrange(len(whole))]


def _garbage(rng: random.Random, target: Target) -> bytes:
    if rng.random() < 0.5:
        return rng.choice(_GARBAGE)
    noise = bytearray(_plain(rng, target)[:20_000])
    for _ in range(rng.randint(1, 20)):
        noise[rng.randrange(len(noise))] = rng.randrange(256)
    return bytes(noise)


_KINDS: dict[str, tuple[Callable[[random.Random, Target], bytes], int]] = {
    "body": (_plain, 50),
    "headers": (_bad_headers, 12),
    "line": (_bad_line, 8),
    "encoding": (_encoded, 3),
    "chunked": (_chunked, 6),
    "smuggled": (_smuggled, 6),
    "pipelined": (_pipelined, 4),
    "cut": (_cut_short, 4),
    "garbage": (_garbage, 7),
}
"""Makers and how often, of a hundred."""


def requests(seed: int, targets: Sequence[Target]) -> Iterator[Hostile]:
    """Hostile requests without end, the same for the same seed and targets."""
    rng = random.Random(seed)
    kinds = list(_KINDS)
    weights = [weight for _, weight in _KINDS.values()]
    while True:
        (kind,) = rng.choices(kinds, weights)
        yield Hostile(kind, _KINDS[kind][0](rng, rng.choice(targets)))


def large_message(key: str) -> Hostile:
    """A good request with one message of 10 MB."""
    messages = [{"role": "user", "content": "\u00e9" * 5_000_000}]
    content = json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()
    target = Target("/v1/chat/completions", {}, {"Authorization": f"Bearer {key}"})
    return Hostile("body", _head(target) + b"Content-Length: %d\r\n\r\n" % len(content) + content)
