"""Who a sandbox belongs to, written on it so that its leftovers can be told from a living one's.

A process is named by the host (its name and pid namespace), its pid, and when it began (boot id and
start tick): pids are used again, the four together are not. Only a process that could see the owner
may call it dead: on another host, or in another pid namespace, the answer is always "alive".
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

RUN = "rock.run"
HOST = "rock.host"
OWNER_PID = "rock.owner-pid"
OWNER_START = "rock.owner-start"
EXPIRES = "rock.expires"
"""Label names; `rock.expires` is in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One process of one host, not to be confused with a later one of the same pid."""

    host: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Self:
        """The calling process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """A live process of this pid namespace."""
        return cls(host=this_host(), pid=pid, start=_start_of(pid) or "")

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Self | None:
        """The owner that `labels` name, or None if they name none."""
        try:
            return cls(labels[HOST], int(labels[OWNER_PID]), labels[OWNER_START])
        except (KeyError, ValueError):
            return None

    def labels(self) -> dict[str, str]:
        return {HOST: self.host, OWNER_PID: str(self.pid), OWNER_START: self.start}

    def is_dead(self) -> bool:
        """True only if this process can see that the owner is gone; a zombie is gone."""
        if self.host != this_host():
            return False
        return _start_of(self.pid) != self.start


def this_host() -> str:
    """This machine's name and this process's pid namespace."""
    return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (the namespace itself, not a path)


def wall_seconds() -> float:
    """Seconds since 1970, for expiry dates that outlive this process."""
    return datetime.now(UTC).timestamp()


def _start_of(pid: int) -> str | None:
    """Boot id and start tick of a live process, None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    state, tick = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}/{tick}"
