"""The journal: append-only files, the only truth about sessions and calls. This is the writing half,
`segments` reads.

`append` returns a future that is done once the record is as safe as the sync level promises:

- `process`: given to the kernel (`write`): survives `kill -9` of this process;
- `disk`: on the disk (`fdatasync`): survives a power failure.

Group commit without a timer: whatever is appended in one turn of the event loop, or while a
`fdatasync` runs, goes out in one write. A lone record is written at the end of its turn.

If a write fails, nothing of its batch is acknowledged, the file is cut back to its last good
record, and every later append raises the same `JournalError`: memory may be ahead of the disk, so
only a restart, which reads the disk, goes on. `seal` puts the file aside and goes on in a new one, so
that compaction can work on files that do not change. The format is described in `docs/journal.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from rock.errors import JournalError
from rock.modelservice.journal import segments
from rock.modelservice.journal.segments import FILE_NAME, FRAME_BYTES, OnRecord, Segment, framed
from rock.modelservice.settings import SyncLevel

LOCK_NAME = "journal.lock"

_MAX_RECORD_BYTES = 2**32 - 1

log = logging.getLogger(__name__)

Then = Callable[[], None]


class Journal:
    """An open, locked journal. `open` it, `append`, `close` it."""

    def __init__(
        self,
        fd: int,
        lock_fds: tuple[int, ...],
        active: Segment,
        *,
        sealed: list[Segment],
        number: int,
        schema: int,
        sync: SyncLevel,
    ) -> None:
        self._schema = schema
        self._fd = fd
        self._lock_fds = lock_fds
        self._path = active.path
        self._active = active
        self._good_bytes = active.offset(active.end)
        self.next_place = active.end
        """Where the next record will be."""
        self.written_place = active.end
        """Records before it are in the file."""
        self._number = number
        self._sealing: asyncio.Future[list[Segment]] | None = None
        self.sealed = sealed
        """The files before the active one."""
        self._payloads: list[bytes] = []
        self._waiting: list[tuple[asyncio.Future[None] | None, Then | None]] = []
        self._scheduled = False
        self._syncing: asyncio.Future[None] | None = None
        self._error: JournalError | None = None
        self._syncer = ThreadPoolExecutor(1, "journal") if sync == "disk" else None
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
        on_record: OnRecord,
        sync: SyncLevel = "process",
    ) -> Journal:
        """Lock the journal in `state_dir`, hand every record and its place to `on_record`, and be ready
        to append. A file of an older schema is read and sealed; a new one has `schema`.

        Makes the directory (0700) and the file (0600) if they are missing. An incomplete last record
        is what a kill in the middle of a write leaves: it was never acknowledged and is cut off with
        a warning. Raises `JournalError` for anything else that is wrong.
        """
        path = state_dir / FILE_NAME
        fd = -1
        lock_fds: tuple[int, ...] = ()
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fds = _lock(state_dir / LOCK_NAME)
            paths, number = segments.tidy(state_dir)
            sealed = [
                segments.check_whole(segments.replay(one, schema=schema, on_record=on_record), one)
                for one in paths
            ]
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            active = _recover(path, fd, schema=schema, on_record=on_record)
            if active is not None and active.schema < schema:
                number += 1
                sealed.append(_put_aside(active, number))
                closing, fd = fd, -1
                os.close(closing)
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
                active = None
            if active is None:
                start = sealed[-1].end if sealed else segments.ORIGIN
                active = _start(fd, path, schema=schema, start=start)
        except OSError as exc:
            _close(fd, *lock_fds)
            raise JournalError(f"the journal {path} cannot be used: {exc.strerror or exc}") from exc
        except BaseException:
            _close(fd, *lock_fds)
            raise
        return cls(fd, lock_fds, active, sealed=sealed, number=number, schema=schema, sync=sync)

    @property
    def error(self) -> JournalError | None:
        """Why the journal takes no more records, for the caller to raise; None while it does."""
        return None if self._error is None else self._error.again()

    def check(self) -> None:
        """Raises `JournalError` if the journal takes no more records."""
        if self._error is not None:
            raise self._error.again()

    @property
    def size_bytes(self) -> int:
        """Of the active file."""
        return self._good_bytes

    @property
    def segments(self) -> list[Segment]:
        """Every file, in order, as far as it is written."""
        return [*self.sealed, replace(self._active, end=self.written_place)]

    async def seal(self) -> list[Segment]:
        """Put the active file aside and go on in a new one; all files that are aside now, in order.

        Records appended so far and not yet written may come into the new one. Raises `JournalError`.
        """
        self.check()
        if self._sealing is None:
            self._sealing = asyncio.get_running_loop().create_future()
            self._schedule()
        return await asyncio.shield(self._sealing)

    def replace_sealed(self, base: Segment, until: int) -> list[Segment]:
        """From now on `base` stands for every file that ends at `until` or before; returns those."""
        gone = [one for one in self.sealed if one.end <= until]
        self.sealed = [base, *(one for one in self.sealed if one.end > until)]
        return gone

    def append(self, payload: bytes, then: Then | None = None) -> asyncio.Future[None]:
        """Write one record. The future is done once it is safe; cancelling it unwrites nothing.

        `then` is called when the record is safe, before any waiter goes on, also if the future was
        cancelled meanwhile. Raises `JournalError` at once if the journal has failed or is closed,
        and through the future if this write fails.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.note(payload, then, future)
        return future

    def note(
        self, payload: bytes, then: Then | None = None, future: asyncio.Future[None] | None = None
    ) -> int:
        """Write one record that nobody waits for, and say its place. Raises `JournalError` as
        `append` does, whose `future` it can be given."""
        self.check()
        if len(payload) > _MAX_RECORD_BYTES:
            raise JournalError(f"a record of {len(payload)} bytes is too large for the journal")
        self._payloads.append(payload)
        place = self.next_place
        self.next_place = place + FRAME_BYTES + len(payload)
        if future is not None or then is not None:
            self._waiting.append((future, then))
        if not self._scheduled:
            self._schedule()
        return place

    def barrier(self) -> asyncio.Future[None]:
        """Done once everything appended so far is safe."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._error is not None:
            future.set_exception(self._error.again())
        elif not self._payloads and not self._waiting and self._syncing is None:
            future.set_result(None)
        else:
            self._waiting.append((future, None))
            self._schedule()
        return future

    async def close(self) -> None:
        """Write what is left and unlock. Safe to call twice; survives cancellation."""
        if self._fd < 0:
            return
        while self._error is None and (
            self._payloads or self._waiting or self._syncing is not None
        ):
            if self._syncing is not None:
                with contextlib.suppress(OSError):  # reported by _synced
                    await asyncio.shield(self._syncing)
                await asyncio.sleep(0)  # let _synced run
            else:
                self._flush()
        self._fail(JournalError("the journal is closed"), tell=False)
        if self._syncer is not None:
            self._syncer.shutdown()
        fd, self._fd = self._fd, -1
        _close(fd, *self._lock_fds)

    # --- writing ---

    def _schedule(self) -> None:
        if not self._scheduled and self._syncing is None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._error is not None or self._syncing is not None:
            return
        if self._sealing is not None and not self._seal_now():
            return
        if not self._payloads and not self._waiting:
            return
        payloads, self._payloads = self._payloads, []
        waiting, self._waiting = self._waiting, []
        batch = framed(payloads)
        began = time.perf_counter()
        try:
            _write(self._fd, batch)
        except OSError as exc:
            self._waiting = waiting + self._waiting
            self._give_up(exc)
            return
        if self._syncer is None:
            self._wrote(len(batch))
            self._committed(began, len(payloads), len(batch))
            _acknowledge(waiting)
            return
        syncing = asyncio.get_running_loop().run_in_executor(self._syncer, os.fdatasync, self._fd)
        self._syncing = syncing
        syncing.add_done_callback(
            lambda done: self._synced(done, waiting, len(batch), began, len(payloads))
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
        self._wrote(batch_bytes)
        self._committed(began, count, batch_bytes)
        _acknowledge(waiting)
        if self._waiting or self._payloads or self._sealing is not None:
            self._flush()

    def _wrote(self, count: int) -> None:
        self._good_bytes += count
        self.written_place += count

    def _seal_now(self) -> bool:
        """Between two writes; whether it went well."""
        sealing, self._sealing = self._sealing, None
        active = self.segments[-1]
        try:
            aside = _put_aside(active, self._number + 1)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            old, self._fd = self._fd, fd
            self._good_bytes = 0
            os.close(old)
            self._active = _start(fd, self._path, schema=self._schema, start=active.end)
        except OSError as exc:
            self._sealing = sealing
            self._give_up(exc)
            return False
        self._number += 1
        self._good_bytes = self._active.head_bytes
        self.sealed.append(aside)
        if sealing is not None and not sealing.done():
            sealing.set_result(list(self.sealed))
        return True

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
        self._payloads.clear()
        if self._sealing is not None and not self._sealing.done():
            self._sealing.set_exception(error.again())
        for future, _ in waiting:
            if future is not None and not future.done():
                future.set_exception(error.again())
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


def _lock(path: Path) -> tuple[int, int]:
    """Descriptors that hold the journal: of the lock file, which names us, and of the directory itself,
    because a lock file can be deleted. Raises `JournalError` if another process has one of them."""
    fd = folder_fd = -1
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        _close(fd, folder_fd)
        raise JournalError(
            f"another process (pid {holder}) uses the journal in {path.parent}; "
            "stop it or choose another state directory"
        ) from None
    except BaseException:
        _close(fd, folder_fd)
        raise
    return fd, folder_fd


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def _put_aside(active: Segment, number: int) -> Segment:
    path = segments.sealed_path(active.path.parent, number)
    active.path.rename(path)
    return replace(active, path=path)


def _start(fd: int, path: Path, *, schema: int, start: int) -> Segment:
    """Begin an empty file."""
    header = segments.header(schema, start)
    _write(fd, header)
    os.fdatasync(fd)
    sync_folder(path.parent)  # the file's name must be as safe as its first record
    return Segment(path, schema, start, start, len(header))


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _recover(path: Path, fd: int, *, schema: int, on_record: OnRecord) -> Segment | None:
    """Replay the active file and cut what is torn; None if it is empty."""
    segment = segments.replay(path, schema=schema, on_record=on_record)
    good = 0 if segment is None else segment.offset(segment.end)
    size = os.fstat(fd).st_size
    if good < size:
        segments.check_torn(path, good)
        log.warning("%s: cut %d bytes of an incomplete last record", path, size - good)
        os.ftruncate(fd, good)
    return segment
