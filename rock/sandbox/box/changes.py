"""What was written in a sandbox, read from the upper directories of its overlay.

Linux's overlay marks a removed name by a character device 0:0, and a directory that hides the one below it
by the attribute `overlay.opaque` (Documentation/filesystems/overlayfs.rst). What is read is the sandbox's,
and may be changed while it is read: no link is followed, and nothing but directories is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from rock.sandbox.state import Change, ChangeKind, Changes

MAX_DEPTH = 100
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_changes(uppers: Sequence[int], *, max_entries: int) -> Changes:
    """What the layers have, the topmost first, given as descriptors of their upper directories.

    A directory is listed only if it is empty: the overlay copies those above a changed file, too.
    Blocks: call it in a thread.
    """
    reader = _Reader(max_entries)
    for upper in uppers:
        reader.read(upper)
    return Changes(
        entries=tuple(sorted(reader.found, key=lambda change: change.path)),
        complete=reader.complete,
    )


class _Reader:
    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._seen: set[str] = set()
        self._hidden: set[str] = set()
        """Names below which lower layers do not show."""
        self.found: list[Change] = []
        self.complete = True

    def read(self, upper: int) -> None:
        hides: set[str] = set()
        self._directory(upper, "", 0, hides)
        self._hidden |= hides

    def _directory(self, fd: int, path: str, depth: int, hides: set[str]) -> None:
        with os.scandir(fd) as entries:
            names = sorted(entry.name for entry in entries)
        if not names and path:
            self._note(path, "directory", 0)
        for name in names:
            if len(self.found) >= self._max_entries:
                self.complete = False
                return
            self._entry(fd, name, f"{path}/{name}", depth, hides)

    def _entry(self, fd: int, name: str, path: str, depth: int, hides: set[str]) -> None:
        if path in self._hidden:
            return
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return  # it has just been removed
        if not stat.S_ISDIR(found.st_mode):
            hides.add(path)
            self._note(path, _kind(found), found.st_size if stat.S_ISREG(found.st_mode) else 0)
            return
        if depth >= MAX_DEPTH:
            self.complete = False
            return
        try:
            inner = os.open(name, _OPEN, dir_fd=fd)
        except OSError:
            self.complete = False  # removed, replaced, or not ours to read
            return
        try:
            if _is_opaque(inner):
                hides.add(path)
            self._directory(inner, path, depth + 1, hides)
        finally:
            os.close(inner)

    def _note(self, path: str, kind: ChangeKind, size_bytes: int) -> None:
        if path not in self._seen:
            self._seen.add(path)
            self.found.append(Change(path=path, kind=kind, size_bytes=size_bytes))


def _kind(found: os.stat_result) -> ChangeKind:
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        return "removed"
    if stat.S_ISREG(found.st_mode):
        return "file"
    return "link" if stat.S_ISLNK(found.st_mode) else "other"


def _is_opaque(fd: int) -> bool:
    for name in ("user.overlay.opaque", "trusted.overlay.opaque"):
        try:
            if os.getxattr(fd, name) == b"y":
                return True
        except OSError:
            continue
    return False
