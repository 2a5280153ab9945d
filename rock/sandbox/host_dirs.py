"""What sandboxes and harnesses have on the host: private directories, each with its owner's name.

    BASE/            0700, this user's
      ID/owner.json  the labels of the process that made it
      ID/sandbox.json  what it is, for whoever looks at it from another process
      ID/run/        shown to the sandbox as /rock/run; the helper puts its socket there
      log-*/         what was done to the sandboxes of one provider (`logbook`)
      door-*/        where other processes may ask a harness about its sandboxes (`remote.door`)

BASE is short (a socket's path is at most 107 bytes) and is refused if someone else could have put it
there. The reaper removes directories whose owner is dead, so a SIGKILL leaves nothing for good.
"""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from rock.errors import SandboxError
from rock.sandbox.logbook import LogFiles
from rock.sandbox.owner import HOST, Owner, this_host

log = logging.getLogger(__name__)

_NOBODYS_ID = 0x7FFF_FFFE
"""No user has it, and no range of ids that anybody is given."""
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
    if os.geteuid() == 0:
        # Root inside has our number, but no capability: what is not its own it cannot change.
        with contextlib.suppress(OSError):  # the root of a user namespace may not
            os.chown(folder / "run", _NOBODYS_ID, _NOBODYS_ID)
    (folder / "owner.json").write_text(json.dumps(owner.labels()))
    return folder


def describe(folder: Path, description: bytes, helper_pid: int | None) -> None:
    """Write what the sandbox is, once it runs. `helper_pid` is its helper's, seen from here."""
    (folder / "helper.pid").write_text(f"{helper_pid}")
    temporary = folder / "sandbox.json.new"
    temporary.write_bytes(description)
    temporary.replace(folder / "sandbox.json")


def helper_of(folder: Path) -> int | None:
    """The pid of a sandbox's helper, or None if this process would see it by another number."""
    try:
        labels = cast(dict[str, str], json.loads((folder / "owner.json").read_text()))
        if labels.get(HOST) != this_host():
            return None
        return int((folder / "helper.pid").read_text())
    except (FileNotFoundError, ValueError):
        return None


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


class LogFolder:
    """One provider's directory of logs, made when the first is wanted. `close` is safe to call twice."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._folder: Path | None = None
        self._failed = False

    def of(self, sandbox_id: str) -> LogFiles | None:
        """A log for a new sandbox; None, with a warning, where none can be written."""
        if self._folder is None and not self._failed:
            try:
                self._folder = make(self._base, own_name("log"), Owner.current())
            except (SandboxError, OSError) as exc:
                log.warning("nothing is written down of what is done to sandboxes: %s", exc)
                self._failed = True
        return None if self._folder is None else LogFiles(self._folder, sandbox_id)

    def close(self) -> None:
        if self._folder is not None:
            remove(self._folder)
            self._folder = None


def own_name(kind: str) -> str:
    """A name for another directory of this process."""
    return f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"


def find_log(base: Path, sandbox_id: str) -> LogFiles | None:
    """The log of a sandbox of any harness below `base`, alive or not; its id may be cut short."""
    for path in base.glob(f"log-*/{glob.escape(sandbox_id)}*.0"):
        return LogFiles(path.parent, path.stem)
    return None


def remove_orphans(base: Path, kind: str, *, now_seconds: float) -> None:
    """Remove the directories of that kind whose owner is dead."""
    for folder in orphans(base, now_seconds=now_seconds):
        if folder.name.startswith(f"{kind}-"):
            remove(folder)


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
