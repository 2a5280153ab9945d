"""What the engine is asked for: one sandbox's container, as plain values. No I/O.

No network (unless asked), no new privileges, no capabilities but the helper's few, bounded processes,
memory, CPU and descriptors, no log, nothing of the host but what `mounts` show, never privileged.
The engine removes the container by itself when its PID 1 ends.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.types import LogConfig, Ulimit
from docker.types import Mount as Bind

from rock.sandbox.box.rlimits import NO_CORE
from rock.sandbox.spec import Limits, SandboxSpec

HELPER_TARGET = "/rock/rock-init"
RUN_TARGET = "/rock/run"
SOCKET_NAME = "box.sock"

HELPER_CAPABILITIES = (
    "CHOWN",  # hand over the files it writes to the command's user
    "DAC_OVERRIDE",  # read and write files for the harness whatever their mode
    "FOWNER",  # give them their mode after handing them over
    "KILL",  # end commands of other users
    "SETGID",  # become the command's user
    "SETUID",
    "SETPCAP",  # empty the command's bounding set
)
"""Of the helper alone. A command has no capability, also as the sandbox's root."""

OOM_SCORE = 500
"""If the host runs out of memory, a sandbox goes before the harness does."""


def container_config(
    spec: SandboxSpec,
    *,
    programs: Sequence[Path],
    helper: Path,
    run_directory: Path | None,
    labels: Mapping[str, str],
    lease_seconds: float = 0.0,
) -> dict[str, Any]:
    """Arguments for the engine client's `create`.

    The spec is a checked one; `programs` are host directories to show read-only at their own place,
    `helper` the host's rock-init, `run_directory` the host directory for its socket. Without one
    there is no socket, and the helper must be put into the container before it starts. The helper
    ends the container when nobody has renewed its lease for `lease_seconds` (0: no lease).
    """
    binds = [
        *_helper_binds(helper, run_directory),
        *(Bind(str(path), str(path), type="bind", read_only=True) for path in programs),
        *(
            Bind(mount.target, str(mount.source.resolve()), type="bind", read_only=mount.read_only)
            for mount in spec.mounts
        ),
    ]
    socket = f"{RUN_TARGET}/{SOCKET_NAME}" if run_directory is not None else "-"
    command = ["serve", socket, "--lifetime", str(math.ceil(spec.lifetime_seconds))]
    if lease_seconds > 0:
        command += ["--lease", str(math.ceil(lease_seconds))]
    return {
        "entrypoint": [HELPER_TARGET],
        "command": command,
        # The helper must be able to become any user, whatever the image's own user is.
        "user": "0:0",
        "working_dir": "/",
        "hostname": "sandbox",
        "labels": {**spec.labels, **labels},
        "healthcheck": {"test": ["NONE"]},
        # The client's own proxy settings are not the sandbox's business.
        "use_config_proxy": False,
        "host_config": {
            "network_mode": "bridge" if spec.network == "full" else "none",
            "cap_drop": ["ALL"],
            "cap_add": list(HELPER_CAPABILITIES),
            "security_opt": ["no-new-privileges:true"],
            "privileged": False,
            "ipc_mode": "private",
            "init": False,
            "auto_remove": True,
            "oom_score_adj": OOM_SCORE,
            "log_config": LogConfig(type="none"),
            "mounts": binds,
            **_limits(spec.limits),
        },
    }


def _helper_binds(helper: Path, run_directory: Path | None) -> list[Bind]:
    if run_directory is None:
        return []
    return [
        Bind(HELPER_TARGET, str(helper), type="bind", read_only=True),
        Bind(RUN_TARGET, str(run_directory), type="bind"),
    ]


def helper_archive(helper: Path) -> bytes:
    """A tar that puts the helper where `HELPER_TARGET` is, for whoever cannot bind it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        folder = tarfile.TarInfo(HELPER_TARGET.strip("/").rpartition("/")[0])
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        data = helper.read_bytes()
        info = tarfile.TarInfo(HELPER_TARGET.lstrip("/"))
        info.size, info.mode = len(data), 0o755
        tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _limits(limits: Limits) -> dict[str, Any]:
    fields: dict[str, Any] = {"ulimits": [Ulimit(name="core", soft=NO_CORE, hard=NO_CORE)]}
    if limits.memory_bytes is not None:
        # Equal values mean no swap: a sandbox over its memory is told so, not slowed down.
        fields["mem_limit"] = fields["memswap_limit"] = limits.memory_bytes
    if limits.pids is not None:
        fields["pids_limit"] = limits.pids
    if limits.cpus is not None:
        fields["nano_cpus"] = int(limits.cpus * 1e9)
    if limits.open_files is not None:
        count = limits.open_files
        fields["ulimits"].append(Ulimit(name="nofile", soft=count, hard=count))
    return fields
