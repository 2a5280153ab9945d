"""The root file system of `SandboxSpec(image=None)`: this machine's programs without its secrets.

The host's system directories are shown read-only; everything else is new and empty. `/etc` is a copy
of a short list of files that programs need (name lookup, certificates, the loader's cache), with
the system's accounts and one user `agent` in it. What is not on the list is not there: homes, keys,
passwords, mail, services' settings, project files.
"""

from __future__ import annotations

import io
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rock.sandbox.channel_sandbox import AGENT_HOME, AGENT_NAME, AGENT_UID

PROGRAM_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Top-level directories that hold programs and libraries; often links into /usr."""

_ETC = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "locale.alias",
    "lsb-release",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "profile",
    "protocols",
    "python*",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)

_EMPTY = {
    "dev": 0o755,
    "home": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}


def program_directories(root: Path = Path("/")) -> list[Path]:
    """The real directories under `root` to show read-only; links into them are in the archive."""
    found = [root / name for name in PROGRAM_DIRECTORIES]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def archive(root: Path = Path("/")) -> bytes:
    """A tar of the new root: mount points, links, empty directories, and the copied `/etc`.

    The same machine gives the same bytes. Files that this process may not read are left out.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, mode in _EMPTY.items():
            _add_directory(tar, name, mode)
        _add_directory(tar, AGENT_HOME.lstrip("/"), 0o755, owner=AGENT_UID)
        for name in PROGRAM_DIRECTORIES:
            path = root / name
            if path.is_symlink():
                _add_link(tar, name, str(path.readlink()))
            elif path.is_dir():
                _add_directory(tar, name, 0o755)
        _add_etc(tar, root / "etc")
    return out.getvalue()


def _add_etc(tar: tarfile.TarFile, etc: Path) -> None:
    _add_directory(tar, "etc", 0o755)
    accounts, groups = _accounts(etc / "passwd"), _groups(etc / "group")
    accounts.append(f"{AGENT_NAME}:x:{AGENT_UID}:{AGENT_UID}::{AGENT_HOME}:/bin/sh")
    groups.append(f"{AGENT_NAME}:x:{AGENT_UID}:")
    _add_file(tar, "etc/passwd", _lines(accounts), 0o644)
    _add_file(tar, "etc/group", _lines(groups), 0o644)
    # The engine puts its own over these; a sandbox without one still resolves its own name.
    _add_file(tar, "etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n", 0o644)
    _add_file(tar, "etc/resolv.conf", b"", 0o644)
    _add_file(tar, "etc/hostname", b"sandbox\n", 0o644)
    added: set[str] = set()
    for pattern in _ETC:
        for path in sorted(etc.glob(pattern)):
            for member in _with_parents_and_children(etc, path):
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


def _accounts(passwd: Path) -> list[str]:
    """Lines of the system's own accounts, whose ids are below those of people; no comments kept."""
    kept: list[str] = []
    for line in _text(passwd).splitlines():
        fields = line.split(":")
        if len(fields) == 7 and _is_system_id(fields[2]) and fields[0] != AGENT_NAME:
            name, _, uid, gid, _, home, shell = fields
            kept.append(f"{name}:x:{uid}:{gid}::{home}:{shell}")
    return kept or ["root:x:0:0::/root:/bin/sh"]


def _groups(group: Path) -> list[str]:
    kept: list[str] = []
    for line in _text(group).splitlines():
        fields = line.split(":")
        if len(fields) == 4 and _is_system_id(fields[2]) and fields[0] != AGENT_NAME:
            kept.append(f"{fields[0]}:x:{fields[2]}:")
    return kept or ["root:x:0:"]


def _is_system_id(number: str) -> bool:
    return number.isdigit() and (int(number) < AGENT_UID or int(number) == 65534)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, PermissionError):
        return ""


def _lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


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
