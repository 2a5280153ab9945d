"""What `rock-init local` is told: identities, limits and the steps that build the root directory.

Pure: from a `SandboxSpec` and facts about the host to bytes (`native/box.c` documents them).
"""

from __future__ import annotations

import enum
import functools
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rock.errors import BadUser
from rock.sandbox import host_view
from rock.sandbox.box.identity import AGENT_HOME, AGENT_NAME, AGENT_UID
from rock.sandbox.channel import frames
from rock.sandbox.spec import Limits, SandboxSpec

HOSTNAME = "sandbox"
DEV_BYTES = 64 * 1024
SHM_BYTES = 64 * 1024 * 1024
ROOT_INODES = 1_000_000
_RANGE_START = 0x70000000
_RANGE_IDS = 65536
_RANGES = 4000
"""Ids above every range that distributions hand out, below the sign bit that breaks programs."""


class StepKind(enum.IntEnum):
    ROOT = ord("R")
    DIR = ord("D")
    FILE = ord("F")
    LINK = ord("L")
    TMPFS = ord("T")
    BIND = ord("B")


_OWN_NETWORK = 1
_BY_ROOT = 2
BIND_READ_ONLY = 1
BIND_DEVICE = 2


@dataclass(frozen=True, slots=True)
class Step:
    kind: StepKind
    path: str
    text: str = ""
    mode: int = 0

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - steps are values; most are those of every box
    def encode(self) -> bytes:
        return b"".join(
            (
                bytes((self.kind,)),
                frames.text(os.fsencode(self.path)),
                frames.text(os.fsencode(self.text)),
                frames.u32(self.mode),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """The helper's ids inside, and how ids inside map to ids of the host."""

    uid: int
    gid: int
    outside_uid: int
    outside_gid: int
    count: int

    @property
    def by_root(self) -> bool:
        """Only root may map more than its own id."""
        return self.count > 1


def ids_for_root(slot: int) -> Ids:
    """A whole range of ids that own nothing on the host; `slot` keeps sandboxes apart."""
    outside = _RANGE_START + slot % _RANGES * _RANGE_IDS
    return Ids(uid=0, gid=0, outside_uid=outside, outside_gid=outside, count=_RANGE_IDS)


def ids_for_user(wanted: str | None, uid: int, gid: int) -> Ids:
    """The caller's own id under the wanted number: the kernel gives an ordinary user one only."""
    name = (wanted or str(AGENT_UID)).partition(":")[0]
    known = {"root": 0, AGENT_NAME: AGENT_UID}
    if name not in known and not name.isdecimal():
        raise BadUser(
            f"user: got {wanted!r}; without root the local provider knows root, {AGENT_NAME} and "
            "numeric ids"
        )
    inside = known[name] if name in known else int(name)
    return Ids(uid=inside, gid=inside, outside_uid=uid, outside_gid=gid, count=1)


def encode(spec: SandboxSpec, ids: Ids, steps: Sequence[Step]) -> bytes:
    """The specification."""
    flags = _OWN_NETWORK * (spec.network != "full") | _BY_ROOT * ids.by_root
    inside = 0 if ids.by_root else ids.uid
    inside_gid = 0 if ids.by_root else ids.gid
    return b"".join(
        (
            struct.pack("<III", flags, ids.uid, ids.gid),
            struct.pack("<III", inside, ids.outside_uid, ids.count),
            struct.pack("<III", inside_gid, ids.outside_gid, ids.count),
            struct.pack("<QQ", _files_bytes(spec.limits), ROOT_INODES),
            struct.pack("<Q", round(spec.lifetime_seconds * 1000)),
            frames.text(HOSTNAME.encode()),
            frames.u32(len(steps)),
            *(step.encode() for step in steps),
        )
    )


def root_steps(spec: SandboxSpec, *, resolv_conf: str = "") -> list[Step]:
    """The steps, in order. `resolv_conf` is given only with the host's network."""
    steps = host_steps(resolv_conf) if spec.image is None else [_image_step(spec.image)]
    steps += _device_steps()
    steps += [
        Step(
            StepKind.BIND,
            mount.target,
            str(mount.source.resolve()),
            BIND_READ_ONLY if mount.read_only else 0,
        )
        for mount in spec.mounts
    ]
    return steps


def _image_step(image: str) -> Step:
    return Step(StepKind.ROOT, "/", image)


def host_steps(resolv_conf: str) -> list[Step]:
    steps = [
        Step(StepKind.BIND, entry.path, entry.path, BIND_READ_ONLY)
        if entry.link_to is None
        else Step(StepKind.LINK, entry.path, entry.link_to)
        for entry in host_view.system_entries()
    ]
    steps += [Step(StepKind.DIR, path, mode=0o755) for path in host_view.EMPTY_DIRS]
    steps += [Step(StepKind.DIR, path, mode=0o1777) for path in ("/tmp", "/var/tmp")]
    steps += [Step(StepKind.LINK, "/var/run", "/run"), Step(StepKind.DIR, "/root", mode=0o700)]
    files = host_view.etc_files(hostname=HOSTNAME, agent=AGENT_NAME, uid=AGENT_UID, home=AGENT_HOME)
    if resolv_conf:
        files["/etc/resolv.conf"] = resolv_conf
    steps += [Step(StepKind.FILE, path, text, 0o644) for path, text in files.items()]
    steps += [Step(StepKind.LINK, "/etc/mtab", "/proc/self/mounts")]
    steps += [Step(StepKind.BIND, path, path, BIND_READ_ONLY) for path in host_view.etc_entries()]
    return steps


def _device_steps() -> list[Step]:
    steps = [Step(StepKind.TMPFS, "/dev", str(DEV_BYTES), 0o755)]
    steps += [Step(StepKind.TMPFS, "/dev/shm", str(SHM_BYTES), 0o1777)]
    steps += [
        Step(StepKind.BIND, f"/dev/{name}", f"/dev/{name}", BIND_DEVICE)
        for name in host_view.DEVICES
    ]
    steps += [Step(StepKind.LINK, f"/dev/{name}", to) for name, to in host_view.DEVICE_LINKS]
    return steps


def _files_bytes(limits: Limits) -> int:
    """Room for files; 0 is no bound. Seven eighths of the memory: a full disk is better than a kill."""
    bounds = [limits.disk_bytes, limits.memory_bytes and limits.memory_bytes * 7 // 8]
    return min((bound for bound in bounds if bound), default=0)
