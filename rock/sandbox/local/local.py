"""The `local` provider: sandboxes of Linux namespaces, without an engine and without root.

A sandbox is a process tree in user, mount, process, network, ipc, host-name and cgroup namespaces of
its own. Its files are on a tmpfs that only these namespaces know, so its end leaves nothing to
remove. The harness holds one end of the helper's control socket: when the harness goes, even by
SIGKILL, the kernel closes that end and the helper ends the sandbox. What is not isolated is listed
in `docs/sandbox.md`. Where the kernel refuses user namespaces, this raises `ProviderUnavailable` with
the remedy; it never runs a command without isolation.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import random
import resource
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rock import process
from rock.errors import ConfigError, ProviderUnavailable, SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.base import IMAGE_USER, Availability, Provider, Sandbox, SandboxSpec
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.box.layering import LocalLayer, LocalLayers
from rock.sandbox.box.rlimits import common_rlimits
from rock.sandbox.box.stateful import NETWORKS, Box, Enforced, StatefulSandbox
from rock.sandbox.capacity import LOCAL_COST, Admission, own_trouble
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import connect_by_control
from rock.sandbox.channel.pulse import UNANSWERED_SECONDS, Signs, signs_of
from rock.sandbox.command import Death, DeathCause
from rock.sandbox.ending import to_the_end
from rock.sandbox.helper import helper_path
from rock.sandbox.local import box_spec, cgroups
from rock.sandbox.local.box_spec import Ids, Step
from rock.sandbox.local.cgroups import Group
from rock.sandbox.mount_rules import check_spec
from rock.sandbox.owner import wall_seconds
from rock.sandbox.state import Capability, ResetTier, Snapshot

_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_DIAGNOSE_SECONDS = 2.0
_GROUP_SECONDS = 2.0
_HARNESS_FILES = 512
_FEWEST_FILES = 64
_KILLED = 128 + signal.SIGKILL
"""How the process outside tells of a PID 1 that was killed."""
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "sysctl -w kernel.unprivileged_userns_clone=1",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)
_IN_A_CONTAINER = (
    "inside a container, start that container with --security-opt seccomp=unconfined "
    "--security-opt systempaths=unconfined, or use the docker provider"
)


class LocalProvider(Provider):
    """Makes rootless sandboxes on this machine. Knows whom it made and stops them when closed."""

    name = "local"

    def __init__(
        self,
        *,
        admission: Admission | None = None,
        base: Path | None = None,
        unanswered_seconds: float = UNANSWERED_SECONDS,
    ) -> None:
        """`admission` says when this machine is full; by default what it measures.

        `base` is where the logs of its sandboxes are written, by default this user's directory. A
        sandbox that does not answer for `unanswered_seconds` while a command runs counts as dead.
        """
        self._unanswered_seconds = unanswered_seconds
        self._sandboxes: dict[str, StatefulSandbox] = {}
        self._admission = admission or Admission(LOCAL_COST, Path("/"))
        self._kept: set[LocalLayer] = set()
        """Of sandboxes and snapshots; a snapshot ends with its provider."""
        self._closed = False
        _raise_open_files()
        cgroups.remove_leftovers()
        self._base = base or host_dirs.default_base()
        self._logs = host_dirs.LogFolder(self._base)
        self._cleaned = False
        self._slots = random.Random(secrets.randbits(64))
        self._ids_of: dict[str, Ids] = {}

    async def probe(self) -> Availability:
        spec = SandboxSpec(lifetime_seconds=60)
        try:
            async with await self.create(spec) as sandbox:
                result = await sandbox.exec(["true"], timeout_seconds=20)
        except SandboxError as exc:
            return Availability(available=False, detail=exc.message, remedy=_remedy())
        if not result.ok:
            return Availability(
                available=False, detail=f"`true` in a sandbox ended as {result.status}"
            )
        return Availability(
            available=True, detail="user namespaces, overlays and private networks work"
        )

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None
    ) -> ChannelSandbox:
        """A running sandbox.

        Raises `CapacityExceeded`, `ConfigError` (a field that may not be so), `BadUser` (a user that this provider cannot
        be without root), `ProviderUnavailable` (the step that the kernel refused).
        """
        self._check_open()
        check_spec(spec)
        spec = _with_image_path(spec)
        if spec.user == IMAGE_USER:
            spec = replace(spec, user="root" if spec.image else None)
        try:
            ids = self._choose_ids(spec, snapshot)
            resolv_conf = _host_resolv_conf() if spec.network == "full" else ""
            steps = box_spec.root_steps(spec, resolv_conf=resolv_conf)
            with self._admission:
                return await self._make(spec, ids, steps, snapshot)
        except OSError as exc:
            raise own_trouble(exc, "make a sandbox") from exc

    async def _make(
        self, spec: SandboxSpec, ids: Ids, steps: Sequence[Step], snapshot: Snapshot | None
    ) -> ChannelSandbox:
        self._clean()
        sandbox_id = secrets.token_hex(6)
        group = cgroups.make(sandbox_id, spec.limits)
        try:
            box = _Box(group)
        except OSError:
            group.remove()
            raise
        log = self._logs.of(sandbox_id)
        try:
            await box.start(box_spec.encode(spec, ids, steps))
            channel = Channel(
                connect_by_control(box.control),
                unanswered_seconds=self._unanswered_seconds,
                looking=box.signs,
            )
            layers = LocalLayers(channel, self._kept)
            made_of = _made_of(spec, ids)
            self._ids_of[made_of] = ids
            made = Box(
                id=sandbox_id,
                channel=channel,
                state=BoxState(channel, made_of, layers),
                keep_book=functools.partial(self._sandboxes.__setitem__, sandbox_id),
                remove=functools.partial(self._discard, sandbox_id, box, layers),
                diagnose=functools.partial(box.diagnose, spec.lifetime_seconds),
            )
            sandbox = ChannelSandbox(
                made,
                spec,
                rlimits=_rlimits(spec, by_root=ids.by_root),
                enforced=_enforced(spec, box.group.enforced),
                replacement=self._replace,
                log=log,
            )
            await sandbox.prepare(snapshot)
            self._check_open()
        except BaseException:  # whatever it was, also a cancellation, nothing may be left
            await to_the_end(box.stop())
            if log is not None:
                log.remove()
            raise
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def close(self) -> None:
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        try:
            await asyncio.gather(*(sandbox.stop() for sandbox in list(self._sandboxes.values())))
        finally:
            for layer in list(self._kept):
                layer.take_tree()
            self._logs.close()

    def sandboxes(self) -> list[Sandbox]:
        return list(self._sandboxes.values())

    def _clean(self) -> None:
        """Once: the logs of harnesses that are gone."""
        if not self._cleaned:
            self._cleaned = True
            host_dirs.remove_orphans(self._base, "log", now_seconds=wall_seconds())

    async def _replace(self, sandbox: StatefulSandbox) -> tuple[StatefulSandbox, ResetTier]:
        return await self.create(sandbox.spec), ResetTier.REBUILD

    async def _discard(self, sandbox_id: str, box: _Box, layers: LocalLayers) -> None:
        await layers.end()
        await box.stop()
        self._sandboxes.pop(sandbox_id, None)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("this provider is closed; it makes no more sandboxes")

    def _choose_ids(self, spec: SandboxSpec, snapshot: Snapshot | None) -> Ids:
        if snapshot is not None and snapshot.made_of in self._ids_of:
            return self._ids_of[snapshot.made_of]  # what it has belongs to these ids
        if os.geteuid() == 0 and _owns_all_ids():
            return box_spec.ids_for_root(self._slots.randrange(1 << 20))
        return box_spec.ids_for_user(spec.user, os.geteuid(), os.getegid())


_STOPPED = "T"


class _Box:
    """The helper's process outside, and our end of its control socket."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.control, self._far_end = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._process: process.Process | None = None
        self._began = time.monotonic()

    async def start(self, spec: bytes) -> None:
        """Raises `ProviderUnavailable` with the step that the kernel refused."""
        spec_fd = os.memfd_create("rock-spec")
        try:
            written = os.write(spec_fd, spec)
            if written != len(spec):
                raise ProviderUnavailable("no memory for a sandbox's specification")
            os.lseek(spec_fd, 0, os.SEEK_SET)
            far = self._far_end.fileno()
            argv = ["local", "--spec-fd", str(spec_fd), "--control-fd", str(far)]
            for fd in self.group.joins:
                argv += ["--cgroup-fd", str(fd)]
            if self.group.oom >= 0:
                argv += ["--oom-fd", str(self.group.oom)]
            self._process = await process.start(
                [helper_path(), *argv],
                env={},
                stdout=process.DEVNULL,
                stderr=process.DEVNULL,
                pass_fds=(spec_fd, far, *self.group.passed),
            )
        finally:
            os.close(spec_fd)
            self.group.close()
            self._far_end.close()
        try:
            async with asyncio.timeout(_START_SECONDS):
                answer = await asyncio.get_running_loop().sock_recv(self.control, 4096)
        except TimeoutError:
            answer = b"start: no answer"
        if answer != b"ok":
            reason = answer.decode(errors="replace") or "the helper ended without an answer"
            raise ProviderUnavailable(f"the kernel does not make a local sandbox: {reason}")

    def signs(self) -> Signs | None:
        """Of the sandbox's first process: the only child of the one that was started here."""
        if self._process is None:
            return None
        pid = self._process.pid
        try:
            inside = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return signs_of(int(inside[0])) if inside else None

    async def diagnose(self, lifetime_seconds: float) -> Death:
        """Why the sandbox does not answer. Waits a moment for a process that is just ending."""
        if self._process is None:
            return Death(DeathCause.UNKNOWN, "it did not start")
        try:
            async with asyncio.timeout(_DIAGNOSE_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            if (signs := self.signs()) is not None and signs[0] == _STOPPED:
                return Death(DeathCause.PAUSED, "its first process is stopped")
            return Death(DeathCause.UNKNOWN, "its first process runs, but does not answer")
        if time.monotonic() - self._began >= lifetime_seconds:
            return Death(DeathCause.LIFETIME, f"its lifetime of {lifetime_seconds:g} s is over")
        if code == _KILLED or code == -signal.SIGKILL:
            return Death(DeathCause.KILLED, "its first process was killed from outside")
        return Death(DeathCause.GONE, f"its first process has ended with code {code}")

    async def stop(self) -> None:
        """The end of the control socket is the sandbox's end; the process outlives the last of it."""
        self.control.close()
        self._far_end.close()
        if self._process is not None:
            await process.stop(self._process, grace_seconds=_STOP_SECONDS)
        # A process that was waited for may be in its group for a moment more.
        deadline = time.monotonic() + _GROUP_SECONDS
        while not self.group.remove() and time.monotonic() < deadline:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.01)


def _owns_all_ids() -> bool:
    """False for the root of a user namespace, which is somebody ordinary outside it."""
    return Path("/proc/self/uid_map").read_text().split()[2:3] == ["4294967295"]


def _with_image_path(spec: SandboxSpec) -> SandboxSpec:
    if spec.image is None:
        return spec
    path = Path(spec.image).resolve()
    if not path.is_dir() or path == Path("/"):
        raise ConfigError(
            f"image: got {spec.image!r}; the local provider expects the directory of an unpacked "
            "root filesystem, or no image for the host's own programs"
        )
    return replace(spec, image=str(path))


def _made_of(spec: SandboxSpec, ids: Ids) -> str:
    """What a snapshot needs to be the same in the sandbox it is restored in."""
    parts = (spec.image, spec.workdir, spec.user, spec.mounts, ids)
    return f"local-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _raise_open_files() -> None:
    """As far as this process may: each sandbox needs some, and `_rlimits` wants to be below."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _rlimits(spec: SandboxSpec, *, by_root: bool) -> tuple[tuple[int, int], ...]:
    """Processes are counted per user of the sandbox, memory per process: all that needs no cgroup.

    The kernel lets a user have as many descriptors on their way through sockets as the sender may have
    open. Not started by root, sandboxes share that count with the harness, so they may have fewer.
    """
    limits = spec.limits
    if not by_root:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        bound = max(_FEWEST_FILES, soft - _HARNESS_FILES)
        limits = replace(limits, open_files=min(limits.open_files or bound, bound))
    pairs = list(common_rlimits(limits))
    if spec.limits.pids is not None:
        pairs.append((resource.RLIMIT_NPROC, spec.limits.pids))
    if spec.limits.memory_bytes is not None:
        pairs.append((resource.RLIMIT_DATA, spec.limits.memory_bytes))
    return tuple(pairs)


def _enforced(spec: SandboxSpec, grouped: frozenset[Capability]) -> Enforced:
    """Files are bounded by the size of the sandbox's tmpfs, so a bound on memory is one on disk."""
    limits = spec.limits
    found, missing = set(grouped), list[str]()
    if limits.memory_bytes is not None or limits.disk_bytes is not None:
        found.add(Capability.DISK_LIMIT)
    if limits.disk_bytes is not None:
        missing.append(
            "disk_bytes bounds what is written after each snapshot, not all of it together"
        )
    if limits.memory_bytes is not None and Capability.MEMORY_LIMIT not in grouped:
        missing.append("memory_bytes bounds each process and the files, not all processes together")
    if limits.pids is not None and Capability.PIDS_LIMIT not in grouped:
        missing.append("pids bounds the processes of each user inside, not all together")
    if limits.cpus is not None and Capability.CPU_LIMIT not in grouped:
        missing.append("cpus is not enforced")
    if os.statvfs("/proc/sys").f_flag & os.ST_RDONLY:
        missing.append("inotify instances are shared with other sandboxes: /proc/sys is read-only")
    return Enforced(frozenset(found | NETWORKS), tuple(missing))


def _host_resolv_conf() -> str:
    path = Path("/etc/resolv.conf")
    return path.read_text(errors="replace") if path.exists() else ""


def _remedy() -> str:
    commands = [
        command
        for path, refusing, command in _SWITCHES
        if Path(path).exists() and Path(path).read_text().strip() == refusing
    ]
    if commands:
        return "as root: " + "; ".join(commands)
    return _IN_A_CONTAINER
