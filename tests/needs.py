"""What a test may need of a machine, by its mark, and whether it is here.

`ROCK_REQUIRE=docker,userns,...` makes a failure of what is otherwise skipped, with the same reason."""

from __future__ import annotations

import asyncio
import functools
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from types import MappingProxyType

from rock.config import read_environment
from rock.errors import SandboxError
from rock.modelservice.hosting.form import compiled_modules
from rock.sandbox.base import Availability
from rock.sandbox.docker.engine import Engine
from rock.sandbox.local import LocalProvider

TEST_IMAGE = "rock-test:latest"
BUSYBOX_IMAGE = "rock-busybox:latest"
TCP_REPAIR = 19
MOUNTING: tuple[tuple[str, ...], ...] = (
    ("unshare", "--mount"),
    ("unshare", "--user", "--map-root-user", "--mount"),
)
"""Ways to a mount namespace of one's own: root's, and everybody's where user namespaces are allowed."""

Reason = str | None
"""Why something cannot be had here; None if it can."""


@functools.cache
def why_no_docker() -> Reason:
    return asyncio.run(_look_for_docker())


async def _look_for_docker() -> Reason:
    engine = Engine(read_environment().docker_host, timeout_seconds=20)
    try:
        for name in (TEST_IMAGE, BUSYBOX_IMAGE):
            if await engine.image(name) is None:
                return f"the image {name} is missing (tests/images/build.sh makes it)"
    except SandboxError as exc:
        return exc.message
    finally:
        await engine.close()
    return None


@functools.cache
def why_no_user_namespaces() -> Reason:
    found = asyncio.run(_look_for_user_namespaces())
    return None if found.available else f"{found.detail} ({found.remedy})"


async def _look_for_user_namespaces() -> Availability:
    async with LocalProvider() as provider:
        return await provider.probe()


@functools.cache
def way_to_mount() -> tuple[str, ...] | None:
    """The command that runs another one where it can mount file systems of its own."""
    if shutil.which("unshare") is None:
        return None
    for way in MOUNTING:
        argv = [*way, "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /tmp"]
        if subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0:
            return way
    return None


def why_no_mounts() -> Reason:
    if way_to_mount() is not None:
        return None
    return "nothing can be mounted here (be root, or allow unprivileged user namespaces)"


@functools.cache
def why_no_net_admin() -> Reason:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        except PermissionError:
            return "only root can close a TCP connection without a word (CAP_NET_ADMIN)"
    return None


def why_no_busybox() -> Reason:
    if shutil.which("busybox") is None:
        return "no static busybox on this machine (Debian: busybox-static)"
    return None


def why_not_compiled() -> Reason:
    if not compiled_modules():
        return "ModelService runs as Python source here (make test-compiled runs it compiled)"
    return None


NEEDS: Mapping[str, Callable[[], Reason]] = MappingProxyType(
    {
        "docker": why_no_docker,
        "userns": why_no_user_namespaces,
        "mounts": why_no_mounts,
        "netadmin": why_no_net_admin,
        "busybox": why_no_busybox,
        "compiled": why_not_compiled,
    }
)
"""By the mark of the tests that need it."""
