"""Conversations with a helper that start well and are then damaged. Seeded; nothing here does I/O."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import ExecFlag, ExecRequest, FrameType

HOME = b"/workspace"
NUMBERS = (0, 1, 2, 4, 5, 255, 256, 4096, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_TEXTS = (b"", b".", b"..", b"/", b"//", b"a/../../b", b"/proc/self/fd/0", b"x" * 5000, b"a\0b")


@dataclass(frozen=True)
class Conversation:
    """Bytes for a new connection, and the kinds of descriptors that go with the first of them."""

    data: bytes
    descriptors: str
    """`r` and `w`: ends of pipes, `n`: /dev/null, `s`: a socket."""


def conversation(rng: random.Random) -> Conversation:
    """The next one: whole in one of eight, else damaged in one to three ways."""
    sent, descriptors = rng.choice(_SEEDS)(rng)
    if rng.random() < 0.2:
        descriptors = "".join(rng.choices("rwns", k=rng.randint(0, 6)))
    data = b"".join(sent)
    if rng.random() < 1 / 8:
        return Conversation(data, descriptors)
    for _ in range(rng.randint(1, 3)):
        sent, data = _damage(rng, sent, data)
    return Conversation(data, descriptors)


def _damage(rng: random.Random, sent: list[bytes], data: bytes) -> tuple[list[bytes], bytes]:
    kind = rng.randrange(7)
    if kind == 0:  # frames twice, missing, in another order
        sent = rng.choices(sent, k=rng.randint(1, len(sent) + 3))
        return sent, b"".join(sent)
    changed = bytearray(data)
    at = rng.randrange(max(1, len(changed)))
    if kind == 1 and changed:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del changed[at:]
    elif kind == 3:
        del changed[at : at + rng.randint(1, 20)]
    elif kind == 4:
        changed[at:at] = rng.randbytes(rng.choice((1, 4, 5, 300)))
    elif kind == 5:  # a size, a count, a number
        changed[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS))
    else:
        size = struct.pack("<I", rng.choice((1, 2, len(changed), 1 << 16)))
        changed[:4] = size
    return sent, bytes(changed)


def _path(rng: random.Random) -> bytes:
    tail = rng.choice((*_TEXTS, b"f", b"d/f", b"d/d/d", b"link/f", rng.randbytes(8)))
    return rng.choice((HOME + b"/" + tail, tail)).replace(b"\0", b"0")


def _exec(rng: random.Random) -> tuple[list[bytes], str]:
    script, descriptors, flags = rng.choice(
        (
            (b"cat", "rww", ExecFlag.STDIN),
            (b"echo out; echo err >&2; exit 3", "ww", ExecFlag(0)),
            (b"sleep 1", "ww", ExecFlag.ANNOUNCE),
            (b"stty -a; cat", "rww", ExecFlag.STDIN | ExecFlag.TERMINAL | ExecFlag.ANNOUNCE),
            (b'while read -r l; do eval "$l"; done', "www", ExecFlag.SHELL | ExecFlag.ANNOUNCE),
        )
    )
    request = ExecRequest(
        argv=[b"sh", b"-c", script, *rng.choices((b"", b"x" * 300), k=rng.randint(0, 3))],
        env={b"PATH": b"/usr/bin:/bin", b"X": rng.randbytes(5).replace(b"\0", b"0")},
        cwd=rng.choice((HOME, b"/", b"/none")),
        user=rng.choice((b"", b"0", b"1000", b"agent:agent", b"nobody:", b":", b"4294967295")),
        timeout_ms=rng.choice((1, 50, 500)),
        flags=flags,
        rows=rng.choice(NUMBERS[:6]),
        columns=80,
        limits=[(rng.randrange(20), rng.choice(NUMBERS))] * rng.choice((0, 3, 16, 17, 40)),
    )
    more = [
        frames.encode(FrameType.SIGNAL, frames.u32(rng.choice((0, 1, 15, 64, 65, 999)))),
        frames.encode(FrameType.RESIZE, frames.u32(1) + frames.u32(70000)),
        frames.encode(
            FrameType.SCRIPT, frames.text(b". /proc/self/fd/9\n") + b"echo hi; sleep 9 &"
        ),
        frames.encode(FrameType.INTERRUPT, frames.u32(2) + frames.u32(rng.randrange(3))),
        frames.encode(FrameType.KILL),
    ]
    return [frames.encode(FrameType.EXEC, request.encode()), *rng.sample(more, 3)], descriptors


def _entries(rng: random.Random) -> list[bytes]:
    made: list[bytes] = []
    for _ in range(rng.randint(0, 12)):
        name = rng.choice((b"", b"d", b"d/f", b"d/link", b"d/link/f", b"f", *_TEXTS[:6]))
        kind = rng.choice((FrameType.DIR, FrameType.FILE, FrameType.LINK, FrameType.DATA))
        if kind is FrameType.DATA:
            made.append(frames.encode(kind, rng.randbytes(rng.choice((0, 1, 1000)))))
        elif kind is FrameType.LINK:
            made.append(
                frames.encode(kind, frames.text(name) + frames.text(rng.choice((b"/", b"d"))))
            )
        else:
            mode = frames.u32(rng.choice((0, 0o644, 0o7777, 0xFFFFFFFF)))
            made.append(frames.encode(kind, frames.text(name) + mode))
    return made


def _put(rng: random.Random) -> tuple[list[bytes], str]:
    owner = rng.choice((b"", b"1000", b"no such user"))
    head = frames.encode(FrameType.PUT, frames.text(_path(rng)) + frames.text(owner))
    root = frames.encode(FrameType.DIR, frames.text(b"") + frames.u32(0o755))
    return [head, root, *_entries(rng), frames.encode(FrameType.COMMIT)], ""


def _write(rng: random.Random) -> tuple[list[bytes], str]:
    body = frames.text(_path(rng)) + frames.u32(rng.choice(NUMBERS)) + frames.text(b"")
    head = frames.encode(FrameType.WRITE, body + frames.u32(rng.randrange(2)))
    data = [frames.encode(FrameType.DATA, rng.randbytes(500)) for _ in range(rng.randint(0, 3))]
    return [head, *data, frames.encode(FrameType.COMMIT)], ""


def _one(rng: random.Random) -> tuple[list[bytes], str]:
    """Requests with a short body, sensible or not; not RENEW, by which a helper may be ended."""
    number, path = frames.u32(rng.choice(NUMBERS)), frames.text(_path(rng))
    layers = frames.u32(3) + number * 3
    bodies = {
        FrameType.PING: b"",
        FrameType.READ: path + frames.u32(rng.randrange(2)),
        FrameType.GET: path,
        FrameType.MKDIR: path + number + frames.text(b""),
        FrameType.LISTEN: number,
        FrameType.COUNT: b"",
        FrameType.LOOK: b"",
        FrameType.SWEEP: b"",
        FrameType.FREEZE: number,
        FrameType.SWAP: number + layers,
        FrameType.DROP: number,
        FrameType.TREE: number,
        FrameType.ADOPT: number,
        FrameType.PREPARE: path + frames.texts([b"/", HOME]),
        FrameType.ATTACH: b"",
    }
    kind = rng.choice(list(bodies))
    descriptors = {FrameType.ADOPT: "n", FrameType.ATTACH: "nnn"}.get(kind, "")
    return [frames.encode(kind, bodies[kind])], descriptors


def mux_frame(kind: str, number: int, body: bytes = b"") -> bytes:
    return struct.pack("<IBI", 5 + len(body), ord(kind), number) + body


def _mux(rng: random.Random) -> tuple[list[bytes], str]:
    """A stream of several connections, each with a conversation of the kinds above."""
    made = [frames.encode(FrameType.MUX), mux_frame("h", frames.PROTOCOL_VERSION)]
    for number in range(1, rng.randint(2, 5)):
        sent, kinds = rng.choice((_exec, _put, _write, _one))(rng)
        pipes = "".join({"r": "r", "w": "w"}.get(kind, "s") for kind in kinds)
        made.append(mux_frame("O", number, pipes.encode()))
        made += [mux_frame("D", number, b"\0" + part) for part in sent]
        if "r" in kinds:
            made += [mux_frame("D", number, b"\1some input\n"), mux_frame("E", number, b"\1")]
        stream = bytes((rng.randrange(7),))
        made.append(mux_frame("C", number, stream + frames.u32(rng.choice((1, 1000, *NUMBERS)))))
        made.append(mux_frame(rng.choice("EXAQ"), number, stream))
    return made, ""


_SEEDS: tuple[Callable[[random.Random], tuple[list[bytes], str]], ...] = (
    _exec,
    _exec,
    _put,
    _write,
    _one,
    _one,
    _mux,
    _mux,
)
