"""Control groups for local sandboxes: bounds on all processes together, where this process may set them.

Root may make groups below `rock` in each hierarchy (version 1) or in the one tree (version 2). Anybody
else, and root in most containers, may not: then limits hold per process or per user, and the sandbox
says so (`not_enforced`). A group is named after its owner, so that one left by a killed harness can be
told and removed: the kernel removes only groups without processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rock.sandbox.owner import Owner
from rock.sandbox.spec import Limits
from rock.sandbox.state import Capability

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
PARENT = "rock"
_PERIOD_MICROSECONDS = 100_000
_CONTROLLERS = {
    "memory": Capability.MEMORY_LIMIT,
    "pids": Capability.PIDS_LIMIT,
    "cpu": Capability.CPU_LIMIT,
}


@dataclass(slots=True)
class Group:
    """The group of one sandbox: `joins` are descriptors to pass to its helper, `oom` counts its kills."""

    folders: list[Path] = field(default_factory=list[Path])
    joins: list[int] = field(default_factory=list[int])
    oom: int = -1
    enforced: frozenset[Capability] = frozenset()

    @property
    def passed(self) -> tuple[int, ...]:
        """Descriptors that the helper must inherit."""
        return (*self.joins, *((self.oom,) if self.oom >= 0 else ()))

    def close(self) -> None:
        """Close what was passed on. Safe to call twice."""
        for fd in self.passed:
            os.close(fd)
        self.joins, self.oom = [], -1

    def remove(self) -> bool:
        """After the last process has ended. True if nothing is left. Safe to call twice."""
        self.close()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
        self.folders = [folder for folder in self.folders if folder.exists()]
        return not self.folders


def make(name: str, limits: Limits, *, root: Path = ROOT) -> Group:
    """A group that bounds what it can; none of it is an error."""
    group = Group()
    for controller, capability in _CONTROLLERS.items():
        settings = _settings(controller, limits, version_2=_is_version_2(root))
        if not settings:
            continue
        try:
            _join(group, _folder(root, controller) / PARENT / _full_name(name), settings)
        except OSError as exc:
            log.debug("no control group for %s: %s", controller, exc)
        else:
            group.enforced |= {capability}
    return group


def remove_leftovers(*, root: Path = ROOT) -> None:
    """Remove the groups of owners that are gone."""
    for controller in _CONTROLLERS:
        parent = _folder(root, controller) / PARENT
        for folder in parent.iterdir() if parent.is_dir() else ():
            owner = _owner_of(folder.name)
            if folder.is_dir() and owner is not None and owner.is_dead():
                with contextlib.suppress(OSError):
                    folder.rmdir()


def _join(group: Group, folder: Path, settings: Mapping[str, str]) -> None:
    if folder not in group.folders:
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
        group.folders.append(folder)
        group.joins.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
    for name, value in settings.items():
        if (folder / name).exists() or not name.startswith("memory.memsw"):
            (folder / name).write_text(value)
    for name in ("memory.events", "memory.oom_control"):
        if group.oom < 0 and (folder / name).exists():
            group.oom = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)


def _settings(controller: str, limits: Limits, *, version_2: bool) -> dict[str, str]:
    """Files to write, in this order; nothing if the spec bounds nothing."""
    if controller == "pids" and limits.pids is not None:
        return {"pids.max": str(limits.pids)}
    if controller == "cpu" and limits.cpus is not None:
        quota = str(round(limits.cpus * _PERIOD_MICROSECONDS))
        if version_2:
            return {"cpu.max": f"{quota} {_PERIOD_MICROSECONDS}"}
        return {"cpu.cfs_period_us": str(_PERIOD_MICROSECONDS), "cpu.cfs_quota_us": quota}
    if controller == "memory" and limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        if version_2:
            return {"memory.max": size, "memory.swap.max": "0"}
        return {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
    return {}


def _is_version_2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _folder(root: Path, controller: str) -> Path:
    return root if _is_version_2(root) else root / controller


def _full_name(name: str) -> str:
    owner = Owner.current()
    return f"{name}.{owner.pid}.{owner.start.rpartition('/')[2]}"


def _owner_of(folder_name: str) -> Owner | None:
    """The owner in a folder's name: this machine's, since control groups end with it."""
    parts = folder_name.split(".")
    if len(parts) != 3 or not parts[1].isdecimal():
        return None
    here = Owner.current()
    boot = here.start.rpartition("/")[0]
    return Owner(host=here.host, pid=int(parts[1]), start=f"{boot}/{parts[2]}")
