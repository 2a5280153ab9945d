"""The sandbox helper's protocol as values and bytes: no I/O.

The other end is `native/wire.c`, which documents every body. A connection carries one request; a
frame is `u32 size | u8 type | body`, little-endian, and descriptors travel with its first byte.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rock.errors import SandboxDied
from rock.sandbox.command import ProcessInfo

PROTOCOL_VERSION = 2
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_ARGUMENT_BYTES = 128 * 1024
"""The kernel's own bound on one argument or variable, its end mark included."""
UNKNOWN = 0xFFFFFFFF
_HEAD = struct.Struct("<IB")
_RESULT = struct.Struct("<BIQIB")


class FrameType(enum.IntEnum):
    """The type byte: requests, entries of a tree, replies."""

    PING = ord("P")
    EXEC = ord("X")
    KILL = ord("K")
    SIGNAL = ord("S")
    RESIZE = ord("r")
    SCRIPT = ord("s")
    INTERRUPT = ord("i")
    READ = ord("O")
    WRITE = ord("W")
    COMMIT = ord("C")
    MKDIR = ord("M")
    PUT = ord("U")
    GET = ord("G")
    LISTEN = ord("L")
    SWEEP = ord("Z")
    FREEZE = ord("H")
    COUNT = ord("V")
    RENEW = ord("B")
    SWAP = ord("N")
    DROP = ord("Q")
    TREE = ord("T")
    ADOPT = ord("A")
    PREPARE = ord("Y")
    ATTACH = ord("J")
    STORE = ord("j")
    UNSTORE = ord("k")
    MUX = ord("m")
    LOOK = ord("g")

    DIR = ord("d")
    FILE = ord("f")
    DATA = ord("b")
    LINK = ord("l")

    PONG = ord("p")
    STARTED = ord("B")
    RESULT = ord("R")
    FD = ord("F")
    DONE = ord("D")
    ERROR = ord("E")
    LOST = ord("I")


class ExecFlag(enum.IntFlag):
    """What a command is besides a program with two pipes."""

    STDIN = 1
    TERMINAL = 2
    SHELL = 4
    ANNOUNCE = 8


NO_FLAGS = ExecFlag(0)


class EndKind(enum.IntEnum):
    """How the helper saw a command end."""

    EXITED = 1
    SIGNALED = 2
    TIMED_OUT = 3
    KILLED = 4


class Stage(enum.IntEnum):
    """The step at which a request failed."""

    REQUEST = 1
    USER = 2
    CWD = 3
    PROGRAM = 4
    PROCESS = 5
    FILE = 6
    LISTEN = 7
    LAYER = 8


class ProtocolError(SandboxDied):
    """Bytes that the helper would never send: whoever sends them is not the helper any more."""


@dataclass(frozen=True, slots=True)
class Frame:
    type: FrameType
    body: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `value` is the exit code or the signal; `oom_kills` None is unknown."""

    kind: EndKind
    value: int
    duration_seconds: float
    oom_kills: int | None
    leftovers: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that the helper could not carry out: the step, the errno, and its words."""

    stage: Stage
    errno: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One command. Texts are bytes without NUL; `limits` are (RLIMIT number, value) pairs."""

    argv: Sequence[bytes]
    env: Mapping[bytes, bytes]
    cwd: bytes
    user: bytes
    timeout_ms: int
    flags: ExecFlag = NO_FLAGS
    rows: int = 0
    columns: int = 0
    limits: Sequence[tuple[int, int]] = field(default_factory=tuple[tuple[int, int], ...])

    def encode(self) -> bytes:
        variables = [name + b"=" + value for name, value in self.env.items()]
        return b"".join(
            (
                struct.pack("<II", self.timeout_ms, self.flags),
                text(self.user),
                text(self.cwd),
                texts(self.argv),
                texts(variables),
                struct.pack("<I", len(self.limits)),
                *(struct.pack("<IQ", number, value) for number, value in self.limits),
                struct.pack("<II", self.rows, self.columns),
            )
        )


def text(value: bytes) -> bytes:
    if b"\0" in value:
        raise ValueError("a NUL byte cannot be in a path, an argument or a variable")
    return struct.pack("<I", len(value)) + value


def texts(values: Sequence[bytes]) -> bytes:
    return struct.pack("<I", len(values)) + b"".join(map(text, values))


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


STARTED_BYTES = _HEAD.size + 4
"""A whole STARTED: its head and the pid."""


def is_started(reply: bytes) -> bool:
    """Whether these are a whole STARTED."""
    return len(reply) == STARTED_BYTES and _HEAD.unpack_from(reply) == (5, FrameType.STARTED)


def encode(kind: FrameType, body: bytes = b"") -> bytes:
    """One frame. Raises `ValueError` when it is over the helper's bound."""
    if len(body) + 1 > MAX_FRAME_BYTES:
        raise ValueError(f"a request of {len(body)} bytes, the bound is {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body) + 1, kind) + body


class Decoder:
    """Feed bytes in any cut, iterate over the whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            size, kind = _HEAD.unpack_from(self._buffer)
            if not 1 <= size <= MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {size} bytes")
            if len(self._buffer) < size + 4:
                return
            body = bytes(self._buffer[_HEAD.size : size + 4])
            del self._buffer[: size + 4]
            try:
                yield Frame(FrameType(kind), body)
            except ValueError:
                raise ProtocolError(f"a frame of unknown type {kind}") from None


def parse_result(body: bytes) -> Ended:
    try:
        kind, value, duration_ns, oom_kills, leftovers = _RESULT.unpack(body)
        return Ended(
            kind=EndKind(kind),
            value=value,
            duration_seconds=duration_ns / 1e9,
            oom_kills=None if oom_kills == UNKNOWN else oom_kills,
            leftovers=bool(leftovers),
        )
    except (struct.error, ValueError):
        raise ProtocolError("a result that is not one") from None


def parse_refusal(body: bytes) -> Refusal:
    try:
        stage, number = struct.unpack_from("<BI", body)
        words, _ = take_text(body, 5)
        return Refusal(Stage(stage), number, words.decode(errors="replace"))
    except (struct.error, ValueError):
        raise ProtocolError("an error that is not one") from None


def take_text(body: bytes, offset: int) -> tuple[bytes, int]:
    """The text at `offset` and where it ends."""
    end = offset + 4
    if end > len(body):
        raise ProtocolError("a text without a size")
    (size,) = struct.unpack_from("<I", body, offset)
    if end + size > len(body):
        raise ProtocolError("a text that is cut off")
    value = body[end : end + size]
    if b"\0" in value:
        raise ProtocolError("a text with a NUL byte")
    return value, end + size


def take_texts(body: bytes, offset: int) -> tuple[list[bytes], int]:
    """The counted texts at `offset` and where they end."""
    count, offset = take_u32(body, offset)
    found: list[bytes] = []
    for _ in range(count):
        value, offset = take_text(body, offset)
        found.append(value)
    return found, offset


def take_u32(body: bytes, offset: int) -> tuple[int, int]:
    if offset + 4 > len(body):
        raise ProtocolError("a number that is cut off")
    (value,) = struct.unpack_from("<I", body, offset)
    return value, offset + 4


def take_u64(body: bytes, offset: int = 0) -> int:
    if offset + 8 > len(body):
        raise ProtocolError("a number that is cut off")
    (value,) = struct.unpack_from("<Q", body, offset)
    return value


_SEEN = struct.Struct("<IIIBQQ")


def parse_processes(body: bytes) -> list[ProcessInfo]:
    """What LOOK is answered with."""
    count, offset = take_u32(body, 0)
    found: list[ProcessInfo] = []
    for _ in range(count):
        try:
            pid, parent, uid, state, cpu_ms, resident = _SEEN.unpack_from(body, offset)
        except struct.error:
            raise ProtocolError("a process that is cut off") from None
        words, offset = take_texts(body, offset + _SEEN.size)
        found.append(
            ProcessInfo(
                pid=pid,
                parent=parent,
                uid=uid,
                state=chr(state),
                cpu_seconds=cpu_ms / 1000,
                resident_bytes=resident,
                command=tuple(os.fsdecode(word) for word in words),
            )
        )
    return found
