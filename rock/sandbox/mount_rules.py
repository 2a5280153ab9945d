"""Which host paths may be shown in a sandbox, and where: the same rules for every provider.

Whoever reaches a container engine's socket owns the host, so no mount may show one, under whatever
name, by itself or in a directory above it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from rock.errors import ConfigError
from rock.sandbox.network import check_hosts
from rock.sandbox.spec import Mount, SandboxSpec

_ENGINE_SOCKETS = (
    "/run/docker.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
)
_OURS = ("/proc", "/dev", "/sys", "/rock")


MIN_DISK_BYTES = 16 * 1024**2


def check_spec(spec: SandboxSpec, *, engine_sockets: Sequence[str] = ()) -> None:
    """Raises `ConfigError` naming the field, what was given and what was expected.

    `engine_sockets` are further paths to keep out of the sandbox, besides the usual ones.
    """
    _check_absolute("workdir", spec.workdir)
    for index, mount in enumerate(spec.mounts):
        check_mount(f"mounts[{index}]", mount, engine_sockets=engine_sockets)
    check_hosts("allowed_hosts", spec.allowed_hosts)
    if spec.allowed_hosts and spec.network != "allowlist":
        raise ConfigError(f"allowed_hosts: network is {spec.network!r}, expected 'allowlist'")
    disk_bytes = spec.limits.disk_bytes
    if disk_bytes is not None and disk_bytes < MIN_DISK_BYTES:
        raise ConfigError(
            f"limits.disk_bytes: got {disk_bytes}, expected at least {MIN_DISK_BYTES} (16 MiB)"
        )
    if spec.lifetime_seconds <= 0:
        raise ConfigError(f"lifetime_seconds: got {spec.lifetime_seconds}, expected more than 0")


def check_mount(field: str, mount: Mount, *, engine_sockets: Sequence[str] = ()) -> None:
    _check_absolute(f"{field}.target", mount.target)
    if any(_is_within(mount.target, path) for path in _OURS):
        raise ConfigError(f"{field}.target: {mount.target} belongs to the sandbox itself")
    if not mount.source.is_absolute():
        raise ConfigError(f"{field}.source: got {str(mount.source)!r}, expected an absolute path")
    if not mount.source.exists():
        raise ConfigError(f"{field}.source: {mount.source} does not exist on this host")
    source = mount.source.resolve()
    if source.is_socket():
        raise ConfigError(f"{field}.source: {source} is a socket; sandboxes get none of the host's")
    for path in (*_ENGINE_SOCKETS, *engine_sockets):
        # Also where there is no such socket now: an engine may start while the sandbox runs.
        if Path(path).resolve().is_relative_to(source):
            raise ConfigError(
                f"{field}.source: {source} is where the container engine's socket {path} is, which "
                "would give the sandbox the whole host"
            )


def _check_absolute(field: str, path: str) -> None:
    clean = (
        path.startswith("/")
        and path[1:2] != "/"
        and posixpath.normpath(path) == path
        and path.strip("/")
    )
    if not clean or "\0" in path:
        raise ConfigError(f"{field}: got {path!r}, expected an absolute path such as /opt/tool")


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
