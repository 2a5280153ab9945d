"""The root file system of `SandboxSpec(image=None)` as a tar, for an engine to make an image of.

`host_view` says what a sandbox sees of the host. Here its empty directories, links and the chosen
files of `/etc` become an archive; the program directories are only mount points in it.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rock.sandbox import host_view
from rock.sandbox.box.identity import AGENT_HOME, AGENT_NAME, AGENT_UID

HOSTNAME = "sandbox"
_MOUNT_POINTS = ("dev", "proc", "sys")
_OPEN_DIRECTORIES = ("tmp", "var/tmp")


def program_directories(root: Path = Path("/")) -> list[Path]:
    """The real directories under `root` to show read-only; links into them are in the archive."""
    return [Path(entry.path) for entry in host_view.system_entries(root) if entry.link_to is None]


def archive(root: Path = Path("/")) -> bytes:
    """A tar of the new root. The same machine gives the same bytes.

    Files that only some users of the host may read are left out.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in (*_MOUNT_POINTS, *(path.lstrip("/") for path in host_view.EMPTY_DIRS)):
            _add_directory(tar, name, 0o755)
        for name in _OPEN_DIRECTORIES:
            _add_directory(tar, name, 0o1777)
        _add_directory(tar, "root", 0o700)
        _add_directory(tar, "home", 0o755)
        _add_directory(tar, AGENT_HOME.lstrip("/"), 0o755, owner=AGENT_UID)
        _add_link(tar, "var/run", "/run")
        for entry in host_view.system_entries(root):
            name = Path(entry.path).name
            if entry.link_to is None:
                _add_directory(tar, name, 0o755)
            else:
                _add_link(tar, name, entry.link_to)
        _add_etc(tar, root)
    return out.getvalue()


def _add_etc(tar: tarfile.TarFile, root: Path) -> None:
    _add_directory(tar, "etc", 0o755)
    files = host_view.etc_files(hostname=HOSTNAME, agent=AGENT_NAME, uid=AGENT_UID, home=AGENT_HOME)
    for path, text in files.items():
        _add_file(tar, path.lstrip("/"), text.encode(), 0o644)
    _add_link(tar, "etc/mtab", "/proc/self/mounts")
    added = {path.lstrip("/") for path in files}
    etc = root / "etc"
    for entry in host_view.etc_entries(root):
        for member in _with_parents_and_children(etc, Path(entry)):
            name = f"etc/{member.relative_to(etc)}"
            if name not in added:
                added.add(name)
                _add_path(tar, name, member)


def _with_parents_and_children(etc: Path, path: Path) -> Iterator[Path]:
    yield from (p for p in reversed(path.parents) if p != etc and p.is_relative_to(etc))
    yield path
    if path.is_dir() and not path.is_symlink():
        yield from sorted(path.rglob("*"))


def _add_path(tar: tarfile.TarFile, name: str, path: Path) -> None:
    """Directories, links and plain files as they are; nothing else, and nothing unreadable."""
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            _add_link(tar, name, str(path.readlink()))
        elif stat.S_ISDIR(info.st_mode):
            _add_directory(tar, name, 0o755)
        elif stat.S_ISREG(info.st_mode) and info.st_mode & stat.S_IROTH:
            _add_file(tar, name, path.read_bytes(), 0o755 if info.st_mode & 0o100 else 0o644)
    except (FileNotFoundError, PermissionError):
        return


def _add_directory(tar: tarfile.TarFile, name: str, mode: int, *, owner: int = 0) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
    tar.addfile(info)


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _add_file(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))
