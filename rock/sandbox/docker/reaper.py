"""Removes what dead processes left behind, and nothing else.

A container is removed if its labels say that its owner is gone from this very host, or that its time
is over. Whatever has no such labels, or belongs to a living process or to another host, stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rock.errors import ProviderUnavailable, SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.docker.engine import Engine
from rock.sandbox.owner import EXPIRES, OWNER_PID, Owner, wall_seconds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What was removed: container names and directories."""

    containers: tuple[str, ...]
    directories: tuple[Path, ...]


async def reap(
    engine: Engine,
    *,
    base: Path | None = None,
    now: Callable[[], float] = wall_seconds,
) -> Reaped:
    """Remove the containers and socket directories of dead owners. `now` is in seconds since 1970."""
    removed: list[str] = []
    try:
        containers = await engine.containers(OWNER_PID)
    except ProviderUnavailable as exc:
        log.warning("containers were not looked at: %s", exc.message)
        containers = []
    for container in containers:
        if not is_leftover(container.labels, now_seconds=now()):
            continue
        try:
            if await engine.remove(container.name):
                removed.append(container.name)
        except SandboxError as exc:
            # The next one may still go; this one is found again by the next call.
            log.warning("a leftover stays: %s", exc.message)
    folders = host_dirs.orphans(base or host_dirs.default_base(), now_seconds=now())
    for folder in folders:
        host_dirs.remove(folder)
    return Reaped(containers=tuple(removed), directories=tuple(folders))


def is_leftover(labels: Mapping[str, str], *, now_seconds: float) -> bool:
    """Whether a sandbox with these labels has outlived its owner or its time."""
    owner = Owner.from_labels(labels)
    if owner is None:
        return False
    if owner.is_dead():
        return True
    try:
        return now_seconds > float(labels.get(EXPIRES, "inf"))
    except ValueError:
        return False
