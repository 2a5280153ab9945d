"""Where a sandbox's control socket lives on the host: a private directory per sandbox, with its owner.

    BASE/            0700, this user's
      ID/owner.json  the labels of the process that made it
      ID/sandbox.json  what it is, for whoever looks at it from another process
      ID/run/        shown to the sandbox as /rock/run; the helper puts its socket there

BASE is short (a socket's path is at most 107 bytes) and is refused if someone else could have put it
there. The reaper removes directories whose owner is dead, so a SIGKILL leaves nothing for good.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rock.errors import SandboxError
from rock.sandbox.owner import Owner

HALF_MADE_SECONDS = 60.0
"""A directory without an owner's name is one being made, until it is this old."""


def default_base() -> Path:
    """This user's directory for sockets, under the system's directory for temporary files."""
    return Path(tempfile.gettempdir()) / f"rock-{os.geteuid()}"


def prepare_base(base: Path) -> None:
    """Make `base` if needed. Raises `SandboxError` if it is not this user's alone."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise SandboxError(
            f"{base} holds the control sockets of sandboxes and must be a directory that only "
            f"user {os.geteuid()} can enter (mode 0700); remove it, or choose another"
        )


def make(base: Path, sandbox_id: str, owner: Owner) -> Path:
    """The new directory of one sandbox; its `run` is the part that the sandbox sees."""
    prepare_base(base)
    folder = base / sandbox_id
    folder.mkdir(mode=0o700)
    (folder / "run").mkdir(mode=0o700)
    (folder / "owner.json").write_text(json.dumps(owner.labels()))
    return folder


def describe(folder: Path, description: bytes) -> None:
    """Write what the sandbox is, once it runs."""
    temporary = folder / "sandbox.json.new"
    temporary.write_bytes(description)
    temporary.replace(folder / "sandbox.json")


def descriptions(base: Path) -> Iterator[tuple[Path, bytes]]:
    """The directories under `base` of sandboxes that run, or did when last seen, and what they are."""
    for folder in sorted(base.iterdir()) if base.is_dir() else []:
        try:
            yield folder, (folder / "sandbox.json").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue


def remove(folder: Path) -> None:
    """Delete one sandbox's directory. Safe to call twice."""
    shutil.rmtree(folder, ignore_errors=True)


def orphans(base: Path, *, now_seconds: float) -> list[Path]:
    """Directories under `base` whose owner is dead, or that nobody finished making."""
    found: list[Path] = []
    for folder in sorted(base.iterdir()) if base.is_dir() else []:
        if folder.is_dir() and not folder.is_symlink() and _is_orphan(folder, now_seconds):
            found.append(folder)
    return found


def _is_orphan(folder: Path, now_seconds: float) -> bool:
    try:
        labels = cast(object, json.loads((folder / "owner.json").read_text()))
    except (FileNotFoundError, ValueError):
        try:
            return now_seconds - folder.stat().st_mtime > HALF_MADE_SECONDS
        except FileNotFoundError:
            return False
    owner = Owner.from_labels(cast(dict[str, str], labels)) if isinstance(labels, dict) else None
    return owner is not None and owner.is_dead()
