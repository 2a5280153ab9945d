"""What may be shown inside a sandbox from the host: checked before anything is started.

Whoever reaches a container engine's socket owns the host, so no mount may hold one, under whatever
name. A mount must not cover the sandbox's own root or control directory.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path

from rock.config import kind_of
from rock.errors import ConfigError
from rock.sandbox.base import Mount

SOCKET_NAMES = ("containerd.sock", "crio.sock", "docker.sock", "podman.sock")
"""A socket of such a name is refused wherever it is: engines of users have theirs in many places."""

ENGINE_SOCKETS = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/docker.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/var/run/docker.sock",
)

RESERVED = ("/", "/rock", "/proc", "/sys", "/dev")
"""Targets that belong to the sandbox itself; all but the first with everything below them."""


def checked(mounts: Sequence[Mount], *, sockets: Iterable[str] = ()) -> list[Mount]:
    """The mounts with their sources resolved and their targets in plain form.

    `sockets` are engine sockets to refuse on top of the usual ones. Raises `ConfigError` naming the
    field, what was given and what was expected.
    """
    guarded = {Path(name).resolve() for name in (*ENGINE_SOCKETS, *sockets)}
    return [_checked(mount, f"mounts[{index}]", guarded) for index, mount in enumerate(mounts)]


def _checked(mount: Mount, field: str, guarded: set[Path]) -> Mount:
    source = _source(mount.source, f"{field}.source", guarded)
    return Mount(
        source=source, target=_target(mount.target, f"{field}.target"), read_only=mount.read_only
    )


def _source(given: Path, field: str, guarded: set[Path]) -> Path:
    if not given.is_absolute():
        raise ConfigError(f"{field}: expected an absolute host path (given: {kind_of(str(given))})")
    try:
        source = given.resolve(strict=True)
    except OSError as exc:
        raise ConfigError(f"{field}: {given} is not there or cannot be read: {exc}") from exc
    own_name = {source} if source.name in SOCKET_NAMES else set[Path]()
    for socket in guarded | own_name:
        # A directory above the socket shows it just as well, so /run and / are refused too; one
        # that is not there now can appear later.
        if socket.is_relative_to(source):
            raise ConfigError(
                f"{field}: {given} would show the container engine's socket {socket} to the "
                "sandbox, and with it the whole host; mount a directory without it"
            )
    return source


def _target(given: str, field: str) -> str:
    plain = posixpath.normpath(given) if given else given
    if not given.startswith("/") or ".." in given.split("/") or "\0" in given or ":" in given:
        raise ConfigError(
            f"{field}: expected an absolute path without '..' or ':' (given: {kind_of(given)})"
        )
    top = "/" + plain.lstrip("/").split("/")[0]
    if plain in ("/", "//") or top in RESERVED:
        raise ConfigError(f"{field}: {given} belongs to the sandbox itself; choose another target")
    return plain
