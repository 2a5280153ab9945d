"""Per-token floats that a trainer keeps beside a run: `streams/NAME.jsonl` in its directory.

Each line belongs to one answer: (session, call, choice) and the offset of its first value among the
answer's tokens. Later lines win. Only the places of the lines are held in memory.
"""

from __future__ import annotations

import fcntl
import math
import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from rock.errors import ConfigError, ExportError
from rock.rollout.export.sample import SampleSpan, answers_in
from rock.rollout.records.durable import write_all
from rock.rollout.records.rundir import PLAIN_NAME

NAN = float("nan")
BLOCK_BYTES = 1 << 16


class StreamLine(msgspec.Struct, frozen=True, kw_only=True):
    """`values[i]` belongs to token `offset + i` of the answer `call_id`/`choice`."""

    session_id: str
    call_id: str
    choice: int = 0
    offset: int = 0
    values: list[float | None]
    """Null, or NaN, where nothing is known; written as null."""


_DECODER = msgspec.json.Decoder(StreamLine)


class _Key(msgspec.Struct):
    session_id: str


_KEY = msgspec.json.Decoder(_Key)


def stream_path(run: Path, name: str) -> Path:
    if not PLAIN_NAME.fullmatch(name):
        raise ConfigError(f"streams: {name!r} is not a plain name (letters, digits, '.', '_', '-')")
    return run / "streams" / f"{name}.jsonl"


def append(run: Path, name: str, lines: Iterable[StreamLine]) -> None:
    """Add values to a stream of the run; on disk on return. What a writer before left of a line that it
    was killed in is cut off. Raises `ConfigError` for values that are
    no finite float32."""
    path = stream_path(run, name)
    data = b"".join(_encoded(line) for line in lines)
    path.parent.mkdir(exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _cut_torn(fd)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _encoded(line: StreamLine) -> bytes:
    if any(map(math.isinf, array("f", [value or 0.0 for value in line.values]))):
        raise ConfigError(f"streams: a value for {line.call_id}/{line.choice} is no float32")
    return msgspec.json.encode(line) + b"\n"


def _cut_torn(fd: int) -> None:
    """Cut off what stands after the last line's end."""
    end = os.fstat(fd).st_size
    while end:
        start = max(0, end - BLOCK_BYTES)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            os.ftruncate(fd, start + newline + 1)
            return
        end = start
    os.ftruncate(fd, 0)


class FloatStream:
    """A stream to read. Raises `ConfigError` when the run has none of that name."""

    def __init__(self, run: Path, name: str) -> None:
        self._path = stream_path(run, name)
        self._places: dict[str, list[int]] = {}
        try:
            with self._path.open("rb") as file:
                place = 0
                for number, line in enumerate(file, 1):
                    if line.endswith(b"\n"):
                        self._places.setdefault(self._session(line, number), []).append(place)
                    place += len(line)
        except FileNotFoundError as exc:
            raise ConfigError(f"streams: the run has no stream {name!r}: {self._path}") from exc

    def _session(self, line: bytes, number: int) -> str:
        try:
            return _KEY.decode(line).session_id
        except msgspec.DecodeError as exc:
            raise ExportError(f"{self._path}:{number}: not a stream line: {exc}") from exc

    def lines(self, session_id: str) -> list[StreamLine]:
        """What the stream says about one trajectory."""
        found: list[StreamLine] = []
        with self._path.open("rb") as file:
            for place in self._places.get(session_id, ()):
                file.seek(place)
                try:
                    found.append(_DECODER.decode(file.readline()))
                except msgspec.DecodeError as exc:
                    raise ExportError(f"{self._path}: not a stream line: {exc}") from exc
        return found


def spread(lines: Sequence[StreamLine], spans: Sequence[SampleSpan], length: int) -> array[float]:
    """The values at the tokens of a row, NaN elsewhere. Raises `ExportError` past an answer's end."""
    values = array("f", [NAN]) * length
    nodes = {answer.node: answer for answer in answers_in(spans)}
    for line in lines:
        answer = nodes.get((line.call_id, line.choice))
        if answer is None:
            continue
        start = answer.start + line.offset
        end = start + len(line.values)
        if line.offset < 0 or end > answer.end:
            raise ExportError(
                f"a stream has values past the {answer.end - answer.start} tokens of "
                f"{line.call_id}/{line.choice}"
            )
        values[start:end] = array("f", [NAN if v is None else v for v in line.values])
    return values
