"""What a sandbox without an image sees of the host: its programs, and nothing that is a secret.

System directories are shown; `/etc` is made anew from a short list of entries that programs need, so
that whatever else is configured there (keys, passwords, tokens, other services) does not exist inside.
Homes, `/root`, `/run`, `/var`, `/opt`, `/srv`, `/mnt` and project directories are not shown at all.
No I/O but looking at names.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

SYSTEM_NAMES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC_PATTERNS = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies",
    "debian_version", "dpkg", "fonts", "gai.conf", "host.conf", "inputrc", "java*", "ld.so.cache",
    "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "login.defs",
    "lsb-release", "magic", "magic.mime", "mime.types", "networks", "os-release", "perl",
    "pki/ca-trust", "pki/tls/certs", "profile", "protocols", "python3*", "redhat-release", "rpc",
    "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf", "system-release", "terminfo",
    "timezone", "vim", "xattr.conf",
)  # fmt: skip
_ETC_DIRS = ("", "pki", "pki/tls", "ssl")
"""Where the names of these patterns are."""
EMPTY_DIRS = (
    "/media", "/mnt", "/opt", "/run", "/srv", "/var", "/var/cache", "/var/lib", "/var/log",
)  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
)
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\n"


@dataclass(frozen=True, slots=True)
class SystemEntry:
    """One top-level entry of the host: a directory, or a link into another one (`/bin`)."""

    path: str
    link_to: str | None


def system_entries(root: Path = Path("/")) -> list[SystemEntry]:
    entries: list[SystemEntry] = []
    for name in SYSTEM_NAMES:
        path = root / name
        if path.is_symlink():
            entries.append(SystemEntry(str(path), str(path.readlink())))
        elif path.is_dir():
            entries.append(SystemEntry(str(path), None))
    return entries


def etc_entries(root: Path = Path("/")) -> list[str]:
    """What of `/etc` is shown on this host; links are resolved by whoever opens them.

    Every sandbox asks, so it is looked up again only when one of the directories has changed.
    """
    stamps = tuple(_stamp(root / "etc" / name) for name in _ETC_DIRS)
    return list(_etc_entries(root, stamps))


@functools.lru_cache(maxsize=4)
def _etc_entries(root: Path, stamps: tuple[int, ...]) -> tuple[str, ...]:
    found = (path for pattern in ETC_PATTERNS for path in (root / "etc").glob(pattern))
    return tuple(sorted(str(path) for path in found if path.exists()))


def _stamp(path: Path) -> int:
    """When names in a directory last changed, in nanoseconds; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def etc_files(*, hostname: str, agent: str, uid: int, home: str) -> dict[str, str]:
    """Generated files of `/etc`: users, groups and names of this sandbox only."""
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    return {
        "/etc/passwd": (
            f"root:x:0:0:root:/root:{shell}\n"
            f"{agent}:x:{uid}:{uid}:{agent}:{home}:{shell}\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
        ),
        "/etc/group": f"root:x:0:\ntty:x:5:\n{agent}:x:{uid}:\nnogroup:x:65534:\n",
        "/etc/hosts": f"127.0.0.1 localhost {hostname}\n",
        "/etc/hostname": f"{hostname}\n",
        "/etc/nsswitch.conf": NSSWITCH,
    }
