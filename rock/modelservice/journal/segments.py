"""The journal's files, read: frames, headers, which files make up a journal, where a record is.

    base-N.log          what compaction N kept; stands for every sealed file up to number N
    journal-N.log       sealed: once active, put aside whole
    journal.log         active: appended to
    archive-N.log       closed sessions that compaction N put aside; read only when asked for
    *.new               a compaction that was killed

A **place** names a record for as long as it stays where it is: a number that grows through all files
of a journal, from `ORIGIN` on. Each file's header says at which place it starts, so that a place is
found in its file by subtraction.
"""

from __future__ import annotations

import mmap
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from rock.errors import JournalError

FILE_NAME = "journal.log"
ORIGIN = 1 << 40
"""Room below the first record: a base is put right before what follows it, and may be longer than
what it stands for."""
PREFIX_BYTES = 18
FRAME_BYTES = PREFIX_BYTES + 1
"""What a record takes in a file besides its payload."""
_PREFIX = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")
_NEXT = re.compile(rb"(?<=\n)" + _PREFIX.pattern)
"""Where a record can begin behind another. A payload can quote whole records, but not at the start of
a line: JSON has no newline inside a string, and outside of one no such words."""
_NAMES = re.compile(r"(base|journal|archive)-(\d{8})\.log")

OnRecord = Callable[[bytes, int], None]
"""Payload and place."""


class Header(msgspec.Struct, tag_field="t", tag="header", omit_defaults=True):
    schema: int
    start: int = ORIGIN
    """Place of the file's first record."""


class Segment(msgspec.Struct, frozen=True):
    """One readable file of a journal."""

    path: Path
    schema: int
    start: int
    end: int
    """Place after its last record."""
    head_bytes: int
    """What comes before its first record."""

    def offset(self, place: int) -> int:
        return self.head_bytes + place - self.start


Spot = tuple[Path, int]
"""A file and the byte in it at which a record begins."""


def framed(payloads: Iterable[bytes]) -> bytes:
    """Records as they stand in a file: for each its length, CRC-32, payload and a newline."""
    crc = zlib.crc32
    return b"".join([b"%08x %08x %b\n" % (len(one), crc(one), one) for one in payloads])


def header(schema: int, start: int) -> bytes:
    return framed([msgspec.json.encode(Header(schema, start))])


def base_path(folder: Path, number: int) -> Path:
    return folder / f"base-{number:08d}.log"


def sealed_path(folder: Path, number: int) -> Path:
    return folder / f"journal-{number:08d}.log"


def archive_path(folder: Path, number: int) -> Path:
    return folder / f"archive-{number:08d}.log"


def is_base(path: Path) -> bool:
    return path.name.startswith("base-")


def number_of(path: Path) -> int:
    match = _NAMES.fullmatch(path.name)
    return int(match[2]) if match else 0


def archives(folder: Path) -> list[tuple[int, Path]]:
    return [(number_of(path), path) for path in sorted(folder.glob("archive-*.log"))]


def tidy(folder: Path) -> tuple[list[Path], int]:
    """(files before the active one, in order; the highest number in use).

    Removes what a killed compaction left: drafts, files that a base stands for, archives that no
    base vouches for.
    """
    found: dict[str, dict[int, Path]] = {"base": {}, "journal": {}, "archive": {}}
    for path in folder.iterdir():
        if path.name.endswith(".log.new"):
            path.unlink()
        elif (match := _NAMES.fullmatch(path.name)) is not None:
            found[match[1]][int(match[2])] = path
    newest = max(found["base"], default=0)
    stale = [("base", number) for number in found["base"] if number < newest]
    stale += [("journal", number) for number in found["journal"] if number <= newest]
    stale += [("archive", number) for number in found["archive"] if number > newest]
    for kind, number in stale:
        found[kind].pop(number).unlink()
    paths = [found["base"][newest]] if newest else []
    paths += [found["journal"][number] for number in sorted(found["journal"])]
    return paths, max([newest, *found["journal"]], default=0)


def replay(path: Path, *, schema: int, on_record: OnRecord) -> Segment | None:
    """Hand every good record to `on_record`; what was read, or None for a file without a header.

    Raises `JournalError` for a file of another kind or a later schema.
    """
    with path.open("rb", buffering=1 << 20) as file:
        frames = records(file)
        first = next(frames, None)
        if first is None:
            return None
        head_bytes, payload = first
        found = _header(path, payload, schema)
        end = found.start
        for offset, payload in frames:
            on_record(payload, end)
            end = found.start + offset - head_bytes
    return Segment(path, found.schema, found.start, end, head_bytes)


def records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(end offset, payload) of each good record, up to the first bad one or the end."""
    end = 0
    while (payload := _next_record(file)) is not None:
        end += FRAME_BYTES + len(payload)
        yield end, payload


def _next_record(file: BinaryIO) -> bytes | None:
    prefix = _PREFIX.fullmatch(file.read(PREFIX_BYTES))
    if prefix is None:
        return None
    length = int(prefix[1], 16)
    body = file.read(length + 1)
    if len(body) != length + 1 or body[-1] != 0x0A:
        return None
    payload = body[:-1]
    return payload if zlib.crc32(payload) == int(prefix[2], 16) else None


def _header(path: Path, payload: bytes, schema: int) -> Header:
    try:
        found = msgspec.json.decode(payload, type=Header)
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path} is not a journal of rock: {exc}") from exc
    if found.schema > schema:
        raise JournalError(
            f"{path} has schema {found.schema}, this version of rock reads up to {schema}; "
            "use the newer version"
        )
    return found


def check_torn(path: Path, good: int) -> None:
    """Raises `JournalError` if a good record follows the bad one at `good`: not a torn tail."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for match in _NEXT.finditer(content, good + 1):
            start = match.end()
            end = start + int(match[1], 16)
            if (
                end < len(content)
                and content[end] == 0x0A
                and zlib.crc32(content[start:end]) == int(match[2], 16)
            ):
                raise JournalError(
                    f"{path} is corrupt at byte {good}: good records follow from byte "
                    f"{match.start()} on. Restore it from a copy, or move it away to start empty"
                )


def check_whole(segment: Segment | None, path: Path) -> Segment:
    """A sealed file was complete when it was put aside; raises `JournalError` if it is not now."""
    good = 0 if segment is None else segment.offset(segment.end)
    size = path.stat().st_size
    if segment is None or good < size:
        raise JournalError(
            f"{path} is corrupt at byte {good} of {size}. Restore it from a copy; records that later "
            "files build on would be missing"
        )
    return segment


def spots(segments: Sequence[Segment], places: Sequence[int]) -> list[Spot]:
    """Where records are now. `segments` are in order and without gaps between what they hold."""
    starts = [segment.start for segment in segments]
    found: list[Spot] = []
    for place in places:
        segment = segments[bisect_right(starts, place) - 1]
        found.append((segment.path, segment.offset(place)))
    return found


def read(where: Sequence[Spot]) -> Iterator[bytes]:
    """The records at these spots. Raises `FileNotFoundError` if a file was compacted away,
    `JournalError` if it is damaged."""
    files: dict[Path, BinaryIO] = {}
    try:
        for path, offset in where:
            file = files.get(path)
            if file is None:
                file = files[path] = path.open("rb")
            file.seek(offset)
            payload = _next_record(file)
            if payload is None:
                raise JournalError(f"{path} is damaged at byte {offset}")
            yield payload
    finally:
        for file in files.values():
            file.close()
