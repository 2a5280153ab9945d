"""Files that are there whole or not at all, on disk when the call returns, and without secrets."""

from __future__ import annotations

import os
from pathlib import Path

from rock.secrets import redact


def write_atomically(path: Path, data: bytes) -> None:
    """`data` at `path`: written under another name, synced, renamed, the folder synced.

    Registered secrets (`rock.secrets`) are replaced on the way.
    """
    part = path.with_name(path.name + ".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, redact(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    part.replace(path)
    sync_folder(path.parent)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
