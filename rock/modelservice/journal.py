"""The journal: one append-only file, the only truth about sessions and calls.

`append` returns a future that is done once the record is as safe as the sync level promises:

- `process`: given to the kernel (`write`): survives `kill -9` of this process;
- `disk`: on the disk (`fdatasync`): survives a power failure.

Group commit without a timer: whatever is appended in one turn of the event loop, or while a
`fdatasync` runs, goes out in one write. A lone record is written at the end of its turn.

If a write fails, nothing of its batch is acknowledged, the file is cut back to its last good
record, and every later append raises the same `JournalError`: memory may be ahead of the disk, so
only a restart, which reads the disk, goes on. The file's format is described in `docs/journal.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import mmap
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec

from rock.errors import JournalError
from rock.modelservice.settings import SyncLevel

FILE_NAME = "journal.log"
LOCK_NAME = "journal.lock"

_PREFIX_BYTES = 18
_PREFIX = re.compile(rb"([0-9a-f]{8}) ([0-9a-f]{8}) ")
_NEXT = re.compile(rb"(?<=\n)" + _PREFIX.pattern)
"""Where a record can begin behind another. A payload can quote whole records, but not at the start of
a line: JSON has no newline inside a string, and outside of one no such words."""
_MAX_RECORD_BYTES = 2**32 - 1

log = logging.getLogger(__name__)

Then = Callable[[], None]


class _Header(msgspec.Struct, tag_field="t", tag="header"):
    schema: int


def frame(payload: bytes) -> bytes:
    """One record as it stands in the file: length, CRC-32, payload, newline."""
    return b"%08x %08x %b\n" % (len(payload), zlib.crc32(payload), payload)


class Journal:
    """An open, locked journal. `open` it, `append`, `close` it."""

    def __init__(self, fd: int, lock_fd: int, size: int, *, path: Path, sync: SyncLevel) -> None:
        self._fd = fd
        self._lock_fd = lock_fd
        self._path = path
        self._good_bytes = size
        self._frames: list[bytes] = []
        self._waiting: list[tuple[asyncio.Future[None] | None, Then | None]] = []
        self._scheduled = False
        self._syncing: asyncio.Future[None] | None = None
        self._error: JournalError | None = None
        self._thread = ThreadPoolExecutor(1, "journal") if sync == "disk" else None
        self.on_failure: Callable[[JournalError], None] | None = None
        """Called once, when the first write fails."""
        self.on_commit: Callable[[float, int, int], None] | None = None
        """Called after each write that succeeded: seconds it took, records, bytes."""

    @classmethod
    def open(
        cls,
        state_dir: Path,
        *,
        schema: int,
        on_record: Callable[[bytes], None],
        sync: SyncLevel = "process",
    ) -> Journal:
        """Lock the journal in `state_dir`, hand every record to `on_record`, and be ready to append.

        Makes the directory (0700) and the file (0600) if they are missing. An incomplete last record
        is what a kill in the middle of a write leaves: it was never acknowledged and is cut off with
        a warning. Raises `JournalError` for anything else that is wrong.
        """
        path = state_dir / FILE_NAME
        lock_fd = fd = -1
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = _lock(state_dir / LOCK_NAME)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            size = _recover(path, fd, schema=schema, on_record=on_record)
            if size == 0:
                size = _start(fd, state_dir, schema=schema)
        except OSError as exc:
            _close(fd, lock_fd)
            raise JournalError(f"the journal {path} cannot be used: {exc.strerror or exc}") from exc
        except BaseException:
            _close(fd, lock_fd)
            raise
        return cls(fd, lock_fd, size, path=path, sync=sync)

    @property
    def error(self) -> JournalError | None:
        """Why the journal takes no more records; None while it does."""
        return self._error

    @property
    def size_bytes(self) -> int:
        return self._good_bytes

    def append(self, payload: bytes, then: Then | None = None) -> asyncio.Future[None]:
        """Write one record. The future is done once it is safe; cancelling it unwrites nothing.

        `then` is called when the record is safe, before any waiter goes on, also if the future was
        cancelled meanwhile. Raises `JournalError` at once if the journal has failed or is closed,
        and through the future if this write fails.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(payload, future, then)
        return future

    def note(self, payload: bytes, then: Then | None = None) -> None:
        """Write one record that nobody waits for. Raises `JournalError` as `append` does."""
        self._enqueue(payload, None, then)

    def barrier(self) -> asyncio.Future[None]:
        """Done once everything appended so far is safe."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error)
        elif not self._frames and not self._waiting and self._syncing is None:
            future.set_result(None)
        else:
            self._waiting.append((future, None))
            self._schedule()
        return future

    async def close(self) -> None:
        """Write what is left and unlock. Safe to call twice; survives cancellation."""
        if self._fd < 0:
            return
        while self._error is None and (self._frames or self._waiting or self._syncing is not None):
            if self._syncing is not None:
                with contextlib.suppress(OSError):  # reported by _synced
                    await asyncio.shield(self._syncing)
                await asyncio.sleep(0)  # let _synced run
            else:
                self._flush()
        self._fail(JournalError("the journal is closed"), tell=False)
        if self._thread is not None:
            self._thread.shutdown()
        fd, self._fd = self._fd, -1
        _close(fd, self._lock_fd)

    # --- writing ---

    def _enqueue(
        self, payload: bytes, future: asyncio.Future[None] | None, then: Then | None
    ) -> None:
        if self._error is not None:
            raise self._error
        if len(payload) > _MAX_RECORD_BYTES:
            raise JournalError(f"a record of {len(payload)} bytes is too large for the journal")
        self._frames.append(frame(payload))
        if future is not None or then is not None:
            self._waiting.append((future, then))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._syncing is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._error is not None or self._syncing is not None:
            return
        if not self._frames and not self._waiting:
            return
        frames, self._frames = self._frames, []
        waiting, self._waiting = self._waiting, []
        batch = b"".join(frames)
        began = time.perf_counter()
        try:
            _write(self._fd, batch)
        except OSError as exc:
            self._waiting = waiting + self._waiting
            self._give_up(exc)
            return
        if self._thread is None:
            self._good_bytes += len(batch)
            self._committed(began, len(frames), len(batch))
            _acknowledge(waiting)
            return
        syncing = asyncio.get_running_loop().run_in_executor(self._thread, os.fdatasync, self._fd)
        self._syncing = syncing
        syncing.add_done_callback(
            lambda done: self._synced(done, waiting, len(batch), began, len(frames))
        )

    def _synced(
        self,
        done: asyncio.Future[None],
        waiting: list[tuple[asyncio.Future[None] | None, Then | None]],
        batch_bytes: int,
        began: float,
        count: int,
    ) -> None:
        self._syncing = None
        error = done.exception()
        if error is not None:
            self._waiting = waiting + self._waiting
            self._give_up(error)
            return
        self._good_bytes += batch_bytes
        self._committed(began, count, batch_bytes)
        _acknowledge(waiting)
        if self._waiting or self._frames:
            self._flush()

    def _committed(self, began: float, count: int, size: int) -> None:
        if self.on_commit is not None:
            self.on_commit(time.perf_counter() - began, count, size)

    def _give_up(self, cause: BaseException) -> None:
        # Best effort: a partial record left behind is cut at the next start anyway.
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._good_bytes)
        error = JournalError(
            f"the journal {self._path} cannot be written: {cause}; restart once that is repaired"
        )
        error.__cause__ = cause
        log.error("%s", error)
        self._fail(error, tell=True)

    def _fail(self, error: JournalError, *, tell: bool) -> None:
        if self._error is not None:
            return
        self._error = error
        waiting, self._waiting = self._waiting, []
        self._frames.clear()
        for future, _ in waiting:
            if future is not None and not future.done():
                future.set_exception(error)
        if tell and self.on_failure is not None:
            self.on_failure(error)


def _acknowledge(waiting: list[tuple[asyncio.Future[None] | None, Then | None]]) -> None:
    for future, then in waiting:
        if then is not None:
            then()
        if future is not None and not future.done():
            future.set_result(None)


def _write(fd: int, data: bytes) -> None:
    written = os.write(fd, data)
    if written < len(data):  # a disk that fills up takes a part, then says why
        view = memoryview(data)
        while written < len(data):
            written += os.write(fd, view[written:])


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise JournalError(
            f"another process (pid {holder}) uses the journal in {path.parent}; "
            "stop it or choose another state directory"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    return fd


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


# --- reading ---


def _start(fd: int, folder: Path, *, schema: int) -> int:
    header = frame(msgspec.json.encode(_Header(schema)))
    _write(fd, header)
    os.fdatasync(fd)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder_fd)  # the file's name must be as safe as its first record
    finally:
        os.close(folder_fd)
    return len(header)


def _recover(path: Path, fd: int, *, schema: int, on_record: Callable[[bytes], None]) -> int:
    """Replay the file into `on_record`; how many bytes of it are good."""
    with path.open("rb", buffering=1 << 20) as file:
        records = _records(file)
        first = next(records, None)
        if first is not None:
            _check_header(path, first[1], schema)
        good = first[0] if first else 0
        for end, payload in records:
            on_record(payload)
            good = end
    size = os.fstat(fd).st_size
    if good < size:
        _check_torn(path, good)
        log.warning("%s: cut %d bytes of an incomplete last record", path, size - good)
        os.ftruncate(fd, good)
    return good


def _records(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """(end offset, payload) of each good record, up to the first bad one or the end."""
    end = 0
    while True:
        prefix = _PREFIX.fullmatch(file.read(_PREFIX_BYTES))
        if prefix is None:
            return
        length = int(prefix[1], 16)
        body = file.read(length + 1)
        if len(body) != length + 1 or body[-1] != 0x0A:
            return
        payload = body[:-1]
        if zlib.crc32(payload) != int(prefix[2], 16):
            return
        end += _PREFIX_BYTES + length + 1
        yield end, payload


def _check_header(path: Path, payload: bytes, schema: int) -> None:
    try:
        header = msgspec.json.decode(payload, type=_Header)
    except msgspec.DecodeError as exc:
        raise JournalError(f"{path} is not a journal of rock: {exc}") from exc
    if header.schema > schema:
        raise JournalError(
            f"{path} has schema {header.schema}, this version of rock reads up to {schema}; "
            "use the newer version"
        )


def _check_torn(path: Path, good: int) -> None:
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
