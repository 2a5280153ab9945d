"""What can be done to the state of a sandbox, and what is told about it: plain values, no I/O.

A sandbox's state has three layers. The *static* one is what it was made of: its image, and the
directories made ready for the agent. The *dynamic* one is what was written since. The *ephemeral*
one is its processes, shared memory and temporary files. A reset ends the last and drops the second; a
snapshot keeps the second; nothing but `mounts` of host directories is left out.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias


class Capability(enum.StrEnum):
    """What a sandbox can do beyond the contract that all keep."""

    RESET_IN_PLACE = "reset_in_place"
    """`reset` takes milliseconds and keeps the box, its network and its listening sockets."""
    SNAPSHOT = "snapshot"
    """`snapshot`, `restore` and creation from a snapshot."""
    PAUSE = "pause"
    MEMORY_LIMIT = "memory_limit"
    """Of all its processes together; without it, of each."""
    CPU_LIMIT = "cpu_limit"
    PIDS_LIMIT = "pids_limit"
    """Of all its processes together; without it, of each user."""
    DISK_LIMIT = "disk_limit"
    NETWORK_ALLOWLIST = "network_allowlist"
    NETWORK_FULL = "network_full"


class ResetTier(enum.StrEnum):
    """How a reset was done, the fastest first."""

    SWEEP = "sweep"
    """Every process ended, and another root put in place of the present one."""
    POOL = "pool"
    """Another box from the warm pool took its place."""
    REBUILD = "rebuild"
    """Another box was made and took its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetReceipt:
    """What a reset did and what it found afterwards."""

    tier: ResetTier
    seconds: float
    """Until the sandbox could be used again; what was dropped is freed later."""
    ended: int
    """Processes that ran and were ended."""
    leftovers: tuple[str, ...] = ()
    """Processes still there, as `pid name`: none, or the reset was not done by sweeping."""
    differences: tuple[str, ...] = ()
    """Names in the root that differ from the state gone back to: none, or it would not be used."""
    same_network: bool = True
    """False if listening sockets of before are no longer the sandbox's: listen again."""
    reason: str = ""
    """Why no faster tier was used."""

    @property
    def clean(self) -> bool:
        return not self.leftovers and not self.differences


ChangeKind: TypeAlias = Literal["file", "directory", "link", "other", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One name that was written or removed since the sandbox was made."""

    path: str
    """Absolute, inside."""
    kind: ChangeKind
    """What is there now. `removed` also if it had only been written before that."""
    size_bytes: int = 0
    """Of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a reset would undo: by path. Directories are there only if they are empty."""

    entries: tuple[Change, ...]
    complete: bool = True
    """False if there is more than was asked for, or something could not be read."""


class Layer(Protocol):
    """What was written during one stretch of a sandbox's life. Held by sandboxes and snapshots."""

    def hold(self) -> None: ...
    def release(self) -> None: ...


class Held:
    """A layer that is freed when nobody holds it any more. Made held once."""

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1

    def hold(self) -> None:
        self._holders += 1

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0:
            self._free()


class Snapshot:
    """The files of a sandbox at one moment. Keeps them until `release`, also after its sandbox.

    Only the provider that made it can use it, for sandboxes made of the same (`made_of`). It ends with
    the provider at the latest.
    """

    def __init__(self, snapshot_id: str, made_of: str, layers: Sequence[Layer]) -> None:
        """Takes over one hold of each of `layers`, the topmost first."""
        self.id = snapshot_id
        self.made_of = made_of
        self.layers = tuple(layers)
        self.released = False

    def release(self) -> None:
        """Free what only this snapshot kept. Safe to call twice."""
        if not self.released:
            self.released = True
            for layer in self.layers:
                layer.release()
