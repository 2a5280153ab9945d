"""What works on this machine, found by trying it, and which provider is then used.

Each check says what was found and, where it falls short, what a person can do about it. Only the
providers decide whether sandboxes can run; the other checks tell how many.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rock.errors import ProviderUnavailable, RockError
from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider

WANTED_FREE_BYTES = 2 * 1024**3
WANTED_OPEN_FILES = 8192
WANTED_INOTIFY_INSTANCES = 512
WANTED_PIDS = 32768
LISTEN_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was tried. `remedy` is set only where something can be done."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None


def providers(docker_host: str | None = None) -> list[Provider]:
    """Every provider of this machine, best first. The caller closes them."""
    return [DockerProvider(host=docker_host), LocalProvider()]


async def choose_provider(docker_host: str | None = None) -> Provider:
    """The provider to use on this machine: docker where an engine works, else local.

    The caller closes it. Raises `ProviderUnavailable` with the reason and remedy of both; there is
    no fallback without isolation.
    """
    return await first_working(providers(docker_host))


async def first_working(candidates: Sequence[Provider]) -> Provider:
    """The first of `candidates` whose probe succeeds; the others are closed."""
    reasons: list[str] = []
    chosen: Provider | None = None
    try:
        for provider in candidates:
            found = await provider.probe()
            if found.available:
                chosen = provider
                break
            reasons.append(f"{provider.name}: {found.detail}; {found.remedy or 'no remedy known'}")
    finally:
        for provider in candidates:
            if provider is not chosen:
                await provider.close()
    if chosen is None:
        raise ProviderUnavailable("no sandbox can run here. " + " | ".join(reasons))
    return chosen


async def examine(docker_host: str | None = None) -> list[Check]:
    """Try everything, one after another; a check that fails does not stop the next."""
    checks: list[Check] = []
    for provider in providers(docker_host):
        async with provider:
            checks += await _provider_checks(provider)
    checks += [
        _temporary_space(),
        _open_files(),
        _kernel_number(
            "inotify instances", "fs/inotify/max_user_instances", WANTED_INOTIFY_INSTANCES
        ),
        _kernel_number("process ids", "kernel/pid_max", WANTED_PIDS),
        _control_group_pids(),
    ]
    return checks


async def _provider_checks(provider: Provider) -> list[Check]:
    found = await provider.probe()
    checks = [
        Check(
            name=f"{provider.name} sandboxes",
            ok=found.available,
            detail=found.detail,
            remedy=found.remedy,
        )
    ]
    if found.available:
        checks.append(await _listening_check(provider))
    return checks


async def _listening_check(provider: Provider) -> Check:
    """A socket made inside a sandbox without a network must not be reachable from the host."""
    name = f"{provider.name}: the model without a network"
    try:
        async with await provider.create(SandboxSpec()) as box:
            with await box.listen() as listener:
                host, port = listener.getsockname()[:2]
                if await _reachable(host, port):
                    return Check(name=name, ok=False, detail="the socket is in the host's network")
    except RockError as exc:
        return Check(name=name, ok=False, detail=exc.message)
    return Check(name=name, ok=True, detail=f"a socket at {host}:{port} inside, served from here")


async def _reachable(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(LISTEN_TIMEOUT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _temporary_space() -> Check:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    return _at_least(
        "space for temporary files",
        free,
        WANTED_FREE_BYTES,
        f"free space in {folder}, or set TMPDIR to a larger file system",
        show=lambda count: f"{count / 1024**3:.1f} GiB",
    )


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    return _at_least(
        "open files per process",
        2**62 if unlimited else soft,
        WANTED_OPEN_FILES,
        f"raise it with `ulimit -n` (hard limit {hard}) before starting hundreds of sandboxes",
    )


def _kernel_number(name: str, key: str, wanted: int) -> Check:
    path = Path("/proc/sys") / key
    try:
        value = int(path.read_text())
    except (OSError, ValueError) as exc:
        return Check(name=name, ok=False, detail=f"{path} cannot be read: {exc}")
    setting = key.replace("/", ".")
    return _at_least(name, value, wanted, f"as root: sysctl -w {setting}={wanted}")


def _control_group_pids() -> Check:
    """How many processes the group of this process may hold: sandboxes of `local` count in it."""
    name = "processes in this control group"
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        try:
            text = (root / group.lstrip("/") / "pids.max").read_text().strip()
        except OSError:
            continue
        if text != "max":
            return _at_least(
                name, int(text), WANTED_PIDS, "raise pids.max of this service or slice"
            )
    return Check(name=name, ok=True, detail="no bound")


def _at_least(
    name: str, value: int, wanted: int, remedy: str, *, show: Callable[[int], str] = str
) -> Check:
    if value >= wanted:
        return Check(name=name, ok=True, detail=show(value) if value < 2**62 else "no bound")
    detail = f"{show(value)}, at least {show(wanted)} is wanted for many sandboxes"
    return Check(name=name, ok=False, detail=detail, remedy=remedy)
