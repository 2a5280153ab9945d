"""File trees over a connection, both ways: blocking code for a worker thread.

Host side rules: a link is copied as a link and never followed; what comes out of a sandbox is
written only below a directory that this download made, and only through directories that it made.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from rock.errors import SandboxDied, SandboxFileError, UnsafeArchive
from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import Frame, FrameType

IDLE_SECONDS = 60.0
"""A transfer in which nothing moves for so long is given up."""
_CHUNK_BYTES = 256 * 1024
_TREE_MODES = 0o777
_SHOWN = 80
"""Characters of a name that a sandbox chose, in a message."""
Refuse = Callable[[bytes], Exception]


class _Stream:
    """Frames on a blocking socket, small ones sent together."""

    def __init__(self, conn: socket.socket) -> None:
        conn.setblocking(True)
        conn.settimeout(IDLE_SECONDS)
        self._conn = conn
        self._decoder = frames.Decoder()
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def send(self, kind: FrameType, body: bytes = b"") -> None:
        frame = frames.encode(kind, body)
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        if self._pending_bytes >= _CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        self._conn.sendall(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0

    def request(self, kind: FrameType, body: bytes) -> None:
        try:
            self.send(kind, body)
            self.flush()
        except OSError as exc:
            raise SandboxDied(f"the sandbox is gone: {exc}") from exc

    def receive(self) -> Iterator[Frame]:
        try:
            while data := self._conn.recv(_CHUNK_BYTES):
                yield from self._decoder.feed(data)
        except (TimeoutError, ConnectionError) as exc:
            raise SandboxDied(f"the sandbox went away during a file transfer: {exc}") from exc
        except frames.ProtocolError as exc:
            raise SandboxDied(f"the sandbox's helper does not speak our protocol: {exc}") from exc
        raise SandboxDied("the sandbox went away during a file transfer")


def get_file(conn: socket.socket, request: bytes, max_bytes: int, refuse: Refuse) -> bytes:
    """The content that an inline READ is answered with; a byte over `max_bytes` is enough to see."""
    stream = _Stream(conn)
    stream.request(FrameType.READ, request)
    parts: list[bytes] = []
    room = max_bytes + 1
    for frame in stream.receive():
        if frame.type is FrameType.ERROR:
            raise refuse(frame.body)
        if frame.type is FrameType.DATA:
            parts.append(frame.body[:room])
            room -= len(parts[-1])
        if frame.type is FrameType.FD and frames.take_u64(frame.body) > max_bytes:
            raise SandboxFileError(f"the file has over {max_bytes} bytes")
        if frame.type is FrameType.DONE or room <= 0:
            break
    return b"".join(parts)


def put_file(conn: socket.socket, request: bytes, data: bytes, refuse: Refuse) -> None:
    """Send `data` after an inline WRITE, and wait until the file is there."""
    stream = _Stream(conn)
    try:
        stream.send(FrameType.WRITE, request)
        for start in range(0, len(data), _CHUNK_BYTES):
            stream.send(FrameType.DATA, data[start : start + _CHUNK_BYTES])
        stream.send(FrameType.COMMIT)
        stream.flush()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the helper said why before it left; that is read below
    except TimeoutError as exc:
        raise SandboxDied("the sandbox takes no more of a file") from exc
    for frame in stream.receive():
        if frame.type is FrameType.ERROR:
            raise refuse(frame.body)
        return


def put_tree(
    conn: socket.socket, source: Path, target: bytes, owner: bytes, refuse: Refuse
) -> None:
    """Copy the host file or tree `source` to `target`. `refuse` turns an ERROR body into an error."""
    stream = _Stream(conn)
    try:
        stream.send(FrameType.PUT, frames.text(target) + frames.text(owner))
        _put_entry(stream, source.resolve(strict=True), b"")
        stream.send(FrameType.COMMIT)
        stream.flush()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the helper said why before it left; that is read below
    except TimeoutError as exc:
        raise SandboxDied("the sandbox takes no more of an upload") from exc
    except OSError as exc:
        raise SandboxFileError(f"cannot upload {source}: {exc}") from exc
    for frame in stream.receive():
        if frame.type is FrameType.ERROR:
            raise refuse(frame.body)
        return


def _put_entry(stream: _Stream, host: Path, path: bytes) -> None:
    info = host.lstat()
    mode = frames.u32(info.st_mode & _TREE_MODES)
    if stat.S_ISLNK(info.st_mode):
        to = os.fsencode(host.readlink())
        stream.send(FrameType.LINK, frames.text(path) + frames.text(to))
    elif stat.S_ISDIR(info.st_mode):
        stream.send(FrameType.DIR, frames.text(path) + mode)
        for child in sorted(host.iterdir()):
            name = os.fsencode(child.name)
            _put_entry(stream, child, path + b"/" + name if path else name)
    elif stat.S_ISREG(info.st_mode):
        stream.send(FrameType.FILE, frames.text(path) + mode)
        _put_content(stream, host)


def _put_content(stream: _Stream, host: Path) -> None:
    fd = os.open(host, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while data := os.read(fd, _CHUNK_BYTES):
            stream.send(FrameType.DATA, data)
    finally:
        os.close(fd)


def get_tree(
    conn: socket.socket,
    source: bytes,
    target: Path,
    *,
    max_bytes: int,
    max_entries: int,
    refuse: Refuse,
) -> None:
    """Copy `source` to the host path `target`. On any failure nothing is left there."""
    if os.path.lexists(target):
        raise SandboxFileError(f"download target {target} exists already")
    stream = _Stream(conn)
    tree = _Incoming(target, max_bytes, max_entries)
    try:
        stream.request(FrameType.GET, frames.text(source))
        for frame in stream.receive():
            if frame.type is FrameType.ERROR:
                raise refuse(frame.body)
            if frame.type is FrameType.DONE:
                tree.finish()
                return
            tree.take(frame)
    except frames.ProtocolError as exc:
        raise UnsafeArchive(f"the sandbox sent what is no file tree: {exc}") from exc
    except OSError as exc:
        place = os.fsdecode(exc.filename or b"")[-_SHOWN:]
        raise SandboxFileError(
            f"cannot download to {target}: {exc.strerror} (…{place!r})"
            if place
            else f"cannot download to {target}: {exc.strerror}"
        ) from exc
    finally:
        tree.close()


class _Incoming:
    """Writes entries below `target`. A parent must be a directory that an earlier entry made."""

    def __init__(self, target: Path, max_bytes: int, max_entries: int) -> None:
        self._target = target
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._bytes = 0
        self._entries = 0
        self._dirs: dict[bytes, int] = {}
        self._file = -1
        self._file_mode = 0
        self._finished = False

    def take(self, frame: Frame) -> None:
        if frame.type is FrameType.DATA:
            self._write(frame.body)
            return
        self._close_file()
        self._entries += 1
        if self._entries > self._max_entries:
            raise UnsafeArchive(f"the tree has over {self._max_entries} entries")
        path, offset = frames.take_text(frame.body, 0)
        place = self._place(path)
        if frame.type is FrameType.LINK:
            to, _ = frames.take_text(frame.body, offset)
            place.symlink_to(os.fsdecode(to))
            return
        mode = frames.take_u32(frame.body, offset)[0] & _TREE_MODES
        if frame.type is FrameType.DIR:
            place.mkdir(0o700)
            self._dirs[path] = mode
        elif frame.type is FrameType.FILE:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(place, flags, 0o600)
            self._file_mode = mode
        else:
            raise frames.ProtocolError(f"{frame.type.name} in a tree")

    def _place(self, path: bytes) -> Path:
        if not path:
            if self._entries > 1:
                raise UnsafeArchive("the tree has two roots")
            return self._target
        parent, _, name = path.rpartition(b"/")
        if parent not in self._dirs or name in (b"", b".", b".."):
            raise UnsafeArchive(f"the entry {path[:_SHOWN]!r} would leave the target directory")
        return self._below(path)

    def _below(self, path: bytes) -> Path:
        return self._target / os.fsdecode(path) if path else self._target

    def _write(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise UnsafeArchive(f"the tree is over {self._max_bytes} bytes")
        if self._file < 0:
            raise frames.ProtocolError("data without a file")
        if data.count(0) == len(data):
            # A hole stays one: gigabytes of nothing cost a sandbox nothing.
            os.lseek(self._file, len(data), os.SEEK_CUR)
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def _close_file(self) -> None:
        if self._file >= 0:
            os.ftruncate(self._file, os.lseek(self._file, 0, os.SEEK_CUR))
            os.fchmod(self._file, self._file_mode)
            os.close(self._file)
            self._file = -1

    def finish(self) -> None:
        """Directories get their modes last, innermost first; their owner can always remove them."""
        self._close_file()
        for path, mode in reversed(self._dirs.items()):
            self._below(path).chmod(mode | stat.S_IRWXU)
        self._finished = True

    def close(self) -> None:
        self._close_file()
        if self._finished or not self._entries:
            return
        if self._dirs:
            shutil.rmtree(self._target, ignore_errors=True)
        else:
            self._target.unlink(missing_ok=True)
