"""What a sandbox is made of: plain values, checked by whoever makes it. `base` has all of them, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

IMAGE_USER = "image"
BuildNetwork: TypeAlias = Literal["engine", "none", "host"]
"""What the commands of a Dockerfile may reach: what the engine's containers do by default, nothing, or
all that the engine's machine does."""
NetworkName: TypeAlias = Literal["none", "model", "allowlist", "full"]
"""See `SandboxSpec.network`; as an object with its rules, `network.Network`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path shown inside the sandbox at `target` (absolute).

    The sandbox's user is nobody on the host: it reads what others may read, so a private directory
    (mode 0700, as temporary ones are) must be opened first. Directories above `source` do not matter.
    """

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds on one sandbox. A provider that cannot enforce one says so in `capabilities`."""

    memory_bytes: int | None = 2 * 1024**3
    pids: int | None = 512
    cpus: float | None = None
    open_files: int | None = 4096
    disk_bytes: int | None = None
    """Of all that is written in the sandbox, snapshots of it included; writable mounts are the host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """What a sandbox is made of.

    `image=None` means the host's own system directories, read-only underneath and private on top:
    the host's programs are there, its secrets, homes and project files are not. Both the docker and
    the local provider understand it, so work that needs no special image runs without a registry.
    For docker, `image` is an engine image reference; for local, the path of an unpacked root.
    """

    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    workdir: str = "/workspace"
    """Created empty and writable; the default working directory of commands."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """The whole environment of commands, on top of PATH, HOME, LANG and TMPDIR."""
    user: str | None = None
    """User of commands inside the sandbox (name or uid); None is the provider's safe default, and
    `IMAGE_USER` the image's own, which is root where it names none."""
    network: NetworkName = "none"
    """`none` and `model`: nothing but what the harness serves by `listen`. `allowlist`: also
    `allowed_hosts`, by HTTP and TLS through a proxy of the harness. `full`: the provider's own network."""
    allowed_hosts: tuple[str, ...] = ()
    """`name`, or `*.name` for all below it, either with `:port`; without, ports 80 and 443."""
    limits: Limits = Limits()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    lifetime_seconds: float = 6 * 3600.0
    """The sandbox ends itself after this long, whatever became of its owner."""
