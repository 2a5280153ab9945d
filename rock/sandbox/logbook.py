"""Where the logs of a harness's sandboxes are: files beside the sandboxes, not in them.

    BASE/log-PID-x/        0700, this user's, named after its owner as every directory below BASE is
      ID.N                 entries as JSON lines; N counts up

A log has at most three files of a quarter of a megabyte: the first, which is kept, and the last two. Each
entry is one write that appends, so several processes can write to one log. A log ends with its sandbox; the
directory ends with the harness, and if that is killed, with the next reaper.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from rock.errors import BadRequest
from rock.sandbox.logs import LogEntry, LogPage

log = logging.getLogger(__name__)

FILE_BYTES = 256 * 1024
_KEPT_AFTER_THE_FIRST = 2
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LogEntry)


class LogFiles:
    """The log of one sandbox. `file_bytes` bounds each file, but for its last entry."""

    def __init__(self, folder: Path, name: str, *, file_bytes: int = FILE_BYTES) -> None:
        self.folder = folder
        self.name = name
        self._file_bytes = file_bytes
        self._prefix = f"{folder}/{name}."
        self._number: int | None = None
        self._failed = self._removed = False

    def add(self, entry: LogEntry) -> None:
        if self._removed:
            return  # a command that ended with its sandbox
        try:
            self._write(_encoder.encode(entry) + b"\n")
        except OSError as exc:
            if not self._failed:
                log.warning("the log of sandbox %s is not written: %s", self.name, exc)
            self._failed = True

    def _write(self, line: bytes) -> None:
        if self._number is None:
            self._number = max(self._numbers(), default=-1)
        while not self._append(self._number, line):
            # It is full, or gone: another process may have gone on to a later one already.
            newest = max(self._numbers(), default=-1)
            self._number = newest if newest > self._number else self._number + 1
            if self._number > newest:
                self._begin(self._number)

    def _append(self, number: int, line: bytes) -> bool:
        """False if that file is full or not there."""
        try:
            fd = os.open(f"{self._prefix}{number}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(fd).st_size >= self._file_bytes:
                return False
            os.write(fd, line)
            return True
        finally:
            os.close(fd)

    def _begin(self, number: int) -> None:
        os.close(os.open(f"{self._prefix}{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for old in self._numbers():
            if 0 < old <= number - _KEPT_AFTER_THE_FIRST:
                self._path(old).unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        """Of the files that there are, in order."""
        found: list[int] = []
        try:
            names = os.listdir(self.folder)  # noqa: PTH208 (names are all that is wanted)
        except FileNotFoundError:
            return []
        for name in names:
            own, _, number = name.rpartition(".")
            if own == self.name and number.isdecimal():
                found.append(int(number))
        return sorted(found)

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.name}.{number}"

    def read(self, *, after: str = "", tail: int | None = None) -> LogPage:
        """Entries after that cursor; with `tail` the last so many of them. Raises `BadRequest`."""
        start, offset = _position(after)
        numbers = self._numbers()
        found: list[LogEntry] = []
        complete = not numbers or start in numbers or start > numbers[-1]
        expected = start
        for number in [one for one in numbers if one >= start]:
            complete = complete and number == expected
            entries, end = _read(self._path(number), offset if number == start else 0)
            found += entries
            start, offset, expected = number, end, number + 1
        if tail is not None and len(found) > tail:
            found = found[len(found) - tail :]
        return LogPage(entries=tuple(found), cursor=f"{start}:{offset}", complete=complete)

    def exists(self) -> bool:
        return bool(self._numbers())

    def remove(self) -> None:
        """Nothing is taken any more. Safe to call twice."""
        self._removed = True
        for number in self._numbers():
            self._path(number).unlink(missing_ok=True)


def _position(cursor: str) -> tuple[int, int]:
    if not cursor:
        return 0, 0
    number, _, offset = cursor.partition(":")
    if not (number.isdecimal() and offset.isdecimal()):
        raise BadRequest(
            f"after: got {cursor[:40]!r}, expected a cursor that came with a log", param="after"
        )
    return int(number), int(offset)


def _read(path: Path, offset: int) -> tuple[list[LogEntry], int]:
    """Whole entries from there on, and where they end."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data.rpartition(b"\n")[0]
    found: list[LogEntry] = []
    for line in whole.splitlines():
        try:
            found.append(_decoder.decode(line))
        except msgspec.MsgspecError:
            continue  # cut by a disk that was full
    return found, offset + (len(whole) + 1 if whole else 0)
