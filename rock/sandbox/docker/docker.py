"""The docker provider: one hardened container per sandbox, with the helper as its PID 1.

The engine only makes and removes containers. Commands, files and sockets go through the helper's unix
socket in a private host directory (`host_dirs`), so the engine is off the path and nothing is needed
from the image. `container` says what exactly is asked of the engine.

`spec.image` is an engine image reference: its variables are the base of the commands' environment,
and its user, if it names one other than root, is the default user. `spec.image=None` is `hostroot`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rock.errors import ProviderUnavailable, SandboxDied, SandboxError
from rock.sandbox import api, host_dirs
from rock.sandbox.base import (
    IMAGE_USER,
    Availability,
    BuildNetwork,
    Built,
    Provider,
    Sandbox,
    SandboxSpec,
)
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.box.identity import AGENT_HOME, Identity
from rock.sandbox.box.stateful import NETWORKS, Box, Enforced, StatefulSandbox
from rock.sandbox.capacity import DOCKER_COST, Admission, own_trouble
from rock.sandbox.channel.channel import KILL_GRACE_SECONDS, Channel
from rock.sandbox.channel.connect import PathConnector
from rock.sandbox.channel.mux import MuxConnector
from rock.sandbox.channel.pulse import UNANSWERED_SECONDS
from rock.sandbox.docker import host_layers, hostroot
from rock.sandbox.docker.autopsy import diagnose
from rock.sandbox.docker.container import SOCKET_NAME, container_config, helper_archive
from rock.sandbox.docker.engine import Engine, Image
from rock.sandbox.docker.engine_calls import REMEDY
from rock.sandbox.docker.engine_stream import open_stream
from rock.sandbox.docker.heartbeat import Heartbeat
from rock.sandbox.docker.host_layers import ContainerRoot, HostLayers
from rock.sandbox.docker.images import Images
from rock.sandbox.docker.keeper import Keeper
from rock.sandbox.docker.reaper import reap
from rock.sandbox.docker.removal import OwnEnd, Removal
from rock.sandbox.ending import to_the_end
from rock.sandbox.helper import helper_path
from rock.sandbox.mount_rules import check_spec
from rock.sandbox.owner import EXPIRES, RUN, Owner, wall_seconds
from rock.sandbox.state import Capability, ResetTier, Snapshot

log = logging.getLogger(__name__)


RESTART_REMEDY = "look at the engine's log; restarting it may help"
SHARE_REMEDY = (
    "run rock on the machine of the engine; an engine in a virtual machine or on another host does "
    'not share this one\'s directories (transport="stream" needs none). The local provider needs no '
    "engine"
)
LEASE_SECONDS = 120.0
"""A sandbox whose harness is killed is gone so much later, at the latest."""
AT_ONCE_SECONDS = 0.001
EXPIRY_MARGIN_SECONDS = 60.0
"""A container still there this long after its helper should have ended it is the reaper's."""


class DockerProvider(Provider):
    """Sandboxes as containers of one engine on this machine. `close` stops those still there.

    `host` is the engine's address (default: its usual socket). A missing image is an error that
    names the command to get it; with `pull=True` it is fetched instead. `run_id` is written on the
    containers for people. `base` is where control sockets go; it must be short. `transport="stream"`
    needs no directory that engine and harness share: the helper is sent to the engine, and everything
    goes over one stream through it. A container whose harness is killed ends itself after
    `lease_seconds` (0: only after its lifetime).
    """

    name = "docker"
    builds_images = True

    def __init__(
        self,
        *,
        host: str | None = None,
        run_id: str = "",
        base: Path | None = None,
        transport: Literal["socket", "stream"] = "socket",
        pull: bool = False,
        pull_timeout_seconds: float = 900.0,
        start_timeout_seconds: float = 30.0,
        silence_seconds: float = KILL_GRACE_SECONDS,
        unanswered_seconds: float = UNANSWERED_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
        now: Callable[[], float] = wall_seconds,
    ) -> None:
        self.engine = Engine(host)
        self.run_id = run_id
        self.base = base or host_dirs.default_base()
        self._transport = transport
        self.images = Images(
            self.engine, self.base, pull=pull, pull_timeout_seconds=pull_timeout_seconds
        )
        self._start_timeout_seconds = start_timeout_seconds
        self._silence_seconds = silence_seconds
        self._unanswered_seconds = unanswered_seconds
        self._now = now
        self._owner = Owner.current()
        self._sandboxes: dict[str, StatefulSandbox] = {}
        self._streams: dict[str, MuxConnector] = {}
        self._removal = Removal(self.engine)
        self._keeper = Keeper(self.base)
        self._no_layers = host_layers.why_impossible()
        if transport == "stream":
            self._no_layers = "the engine may be on another machine"
        # Over a stream the helper that answers is not PID 1, which a lease would be about.
        self._lease_seconds = lease_seconds if transport == "socket" else 0.0
        self._heartbeat = Heartbeat(self._sandboxes.values, lease_seconds=self._lease_seconds)
        self._admission = Admission(DOCKER_COST, self.base)
        self._logs = host_dirs.LogFolder(self.base)
        self._closed = False

    async def probe(self) -> Availability:
        """Ask the engine, then really start a sandbox and speak to it through its socket.

        In between, what harnesses that were killed left on this engine is removed.
        """
        try:
            info = await self.engine.info()
        except ProviderUnavailable as exc:
            reason = exc.message.removesuffix(f"; {REMEDY}")
            return Availability(available=False, detail=reason, remedy=REMEDY)
        except SandboxError as exc:
            return Availability(available=False, detail=exc.message, remedy=RESTART_REMEDY)
        await self._remove_leftovers()
        try:
            async with await self.create(SandboxSpec()):
                pass
        except ProviderUnavailable as exc:
            return Availability(available=False, detail=exc.message, remedy=SHARE_REMEDY)
        except SandboxError as exc:
            return Availability(available=False, detail=exc.message, remedy=RESTART_REMEDY)
        detail = f"engine {info.version} (API {info.api_version}) at {info.address}"
        return Availability(available=True, detail=detail)

    async def _remove_leftovers(self) -> None:
        try:
            removed = await reap(self.engine, base=self.base, now=self._now)
        except (SandboxError, OSError) as exc:
            log.warning("leftovers of other harnesses were not looked for: %s", exc)
            return
        for name in removed.containers:
            log.info("removed %s, whose harness is gone", name)

    async def create(
        self, spec: SandboxSpec, *, snapshot: Snapshot | None = None
    ) -> ChannelSandbox:
        """A running container with its helper answering.

        Raises `CapacityExceeded`, `ConfigError` (a field that may not be so), `ProviderUnavailable` (no engine, no such
        image, an engine on another machine), `SandboxError` (the engine refused, in its words).
        """
        self._check_open()
        check_spec(spec, engine_sockets=[self.engine.address.removeprefix("unix://")])
        try:
            image = await self.images.find(spec.image)
            if spec.user == IMAGE_USER:
                spec = replace(spec, user=image.user or ("root" if spec.image else None))
            with self._admission:
                sandbox = await self._make(spec, image, snapshot)
        except OSError as exc:
            raise own_trouble(exc, "make a sandbox") from exc
        self._heartbeat.start()
        return sandbox

    async def build_image(
        self,
        context: Path,
        *,
        dockerfile: str = "Dockerfile",
        timeout_seconds: float = 600.0,
        network: BuildNetwork = "engine",
    ) -> Built:
        self._check_open()
        return await self.images.build(
            context, dockerfile=dockerfile, timeout_seconds=timeout_seconds, network=network
        )

    async def _make(
        self, spec: SandboxSpec, image: Image, snapshot: Snapshot | None
    ) -> ChannelSandbox:
        sandbox_id = secrets.token_hex(6)
        layers: HostLayers | None = None
        own_end: OwnEnd | None = None
        log_files = self._logs.of(sandbox_id)
        try:
            shared = None
            if self._transport == "socket":
                shared = host_dirs.make(self.base, sandbox_id, self._owner) / "run"
            config = container_config(
                spec,
                programs=hostroot.program_directories() if spec.image is None else [],
                helper=helper_path(),
                run_directory=shared,
                lease_seconds=self._lease_seconds,
                labels=self._labels(spec),
            )
            image = await self._start(image, spec, f"rock-{sandbox_id}", config)
            connector = None if shared is None else PathConnector(shared / SOCKET_NAME)
            channel = self._channel(sandbox_id, connector)
            await self._reach(sandbox_id, channel)
            layers, unbounded = await self._layers(sandbox_id, spec.limits.disk_bytes)
            state = BoxState(
                channel,
                _made_of(spec, image),
                layers,
                why_not=self._no_layers,
                pausable=shared is not None,
            )
            if shared is not None:
                ask = functools.partial(state.renew, lifetime_seconds=AT_ONCE_SECONDS)
                own_end = OwnEnd(ask, shared / SOCKET_NAME)
            box = Box(
                id=sandbox_id,
                channel=channel,
                state=state,
                keep_book=functools.partial(self._sandboxes.__setitem__, sandbox_id),
                remove=functools.partial(self._discard, sandbox_id, layers, own_end),
                diagnose=functools.partial(
                    diagnose, self.engine, f"rock-{sandbox_id}", spec, self._now(), self._now
                ),
            )
            sandbox = ChannelSandbox(
                box,
                spec,
                identity=_identity(image),
                variables=image.env,
                enforced=_enforced(spec, unbounded),
                replacement=self._replace,
                log=log_files,
            )
            await sandbox.prepare(snapshot)
            if not sandbox.state.in_place:
                sandbox.enforced = _enforced(spec, sandbox.state.why_not)
            if shared is not None and connector is not None:
                info = api.info_of(
                    sandbox, sandbox_id=sandbox_id, provider=self.name, age_seconds=0.0
                )
                host_dirs.describe(shared.parent, api.encode(info), connector.helper_pid)
            self._check_open()
        except BaseException:  # whatever it was, also a cancellation, nothing may be left
            await to_the_end(self._discard_quietly(sandbox_id, layers, own_end))
            if log_files is not None:
                log_files.remove()
            raise
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def _layers(
        self, sandbox_id: str, disk_bytes: int | None
    ) -> tuple[HostLayers | None, str]:
        """The container's files in layers, or None, with the reason in `_no_layers`.

        And why they are not within `disk_bytes`; nothing if they are.
        """
        if self._no_layers:
            return None, self._no_layers
        name = f"rock-{sandbox_id}"
        found = await self.engine.storage(name)
        if not found.lower or not host_layers.all_here(found.lower):
            # What has just ended has no layers any more, and says nothing about the others.
            if not await self.engine.running(name):
                raise SandboxDied(f"{name} ended while it was made")
            self._no_layers = (
                f"the engine's images ({found.driver}) are no directories seen from here"
            )
            return None, self._no_layers
        root = ContainerRoot(pid=found.pid, lower=found.lower)
        if disk_bytes is None:
            return HostLayers(self._keeper, root), "no disk_bytes were given"
        try:
            storage = await self._keeper.store(disk_bytes)
        except SandboxDied:
            raise
        except SandboxError as exc:
            return HostLayers(self._keeper, root), exc.message
        return HostLayers(self._keeper, root, storage), ""

    async def _replace(self, sandbox: StatefulSandbox) -> tuple[StatefulSandbox, ResetTier]:
        return await self.create(sandbox.spec), ResetTier.REBUILD

    async def _start(
        self, image: Image, spec: SandboxSpec, name: str, config: Mapping[str, Any]
    ) -> Image:
        """Start the container; the host image is made again if somebody has removed it."""
        archive = None if self._transport == "socket" else helper_archive(helper_path())
        try:
            await self.engine.create(image.id, name, config, archive=archive)
        except ProviderUnavailable:
            if spec.image is not None:
                raise
            self.images.forget_host_image()
            image = await self.images.find(None)
            await self.engine.create(image.id, name, config, archive=archive)
        return image

    async def close(self) -> None:
        """Stop every sandbox still there, then the engine client's threads."""
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        stops = [sandbox.stop() for sandbox in self._sandboxes.values()]
        for error in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(error, BaseException):
                log.warning("a sandbox could not be stopped and is left to the reaper: %s", error)
        await self.images.close()
        await self._heartbeat.stop()
        self._logs.close()
        await self._keeper.close()
        await self._removal.close()
        await self.engine.close()

    def sandboxes(self) -> list[Sandbox]:
        return list(self._sandboxes.values())

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("this provider is closed; it makes no more sandboxes")

    def _labels(self, spec: SandboxSpec) -> dict[str, str]:
        expires = self._now() + spec.lifetime_seconds + EXPIRY_MARGIN_SECONDS
        return {RUN: self.run_id, EXPIRES: f"{expires:.0f}", **self._owner.labels()}

    async def _discard(
        self, sandbox_id: str, layers: HostLayers | None, own_end: OwnEnd | None
    ) -> None:
        """Remove a sandbox's container and directory; the directory also if the engine fails."""
        if layers is not None:
            await layers.end()
        try:
            await self._removal.remove(f"rock-{sandbox_id}", own_end)
        finally:
            if (stream := self._streams.pop(sandbox_id, None)) is not None:
                await stream.close()
            host_dirs.remove(self.base / sandbox_id)
            self._sandboxes.pop(sandbox_id, None)

    async def _discard_quietly(
        self, sandbox_id: str, layers: HostLayers | None, own_end: OwnEnd | None
    ) -> None:
        """Clean up after a failure that is already on its way to the caller."""
        try:
            await self._discard(sandbox_id, layers, own_end)
        except SandboxError as exc:
            log.warning("sandbox %s is not removed yet: %s", sandbox_id, exc.message)

    def _channel(self, sandbox_id: str, connector: PathConnector | None) -> Channel:
        """Through the shared directory; without one, over a stream of the engine."""
        if connector is not None:
            return Channel(
                connector,
                silence_seconds=self._silence_seconds,
                unanswered_seconds=self._unanswered_seconds,
                looking=connector.signs,
            )
        stream = MuxConnector(functools.partial(open_stream, self.engine, f"rock-{sandbox_id}"))
        self._streams[sandbox_id] = stream
        return Channel(
            stream,
            silence_seconds=self._silence_seconds,
            unanswered_seconds=self._unanswered_seconds,
        )

    async def _reach(self, sandbox_id: str, channel: Channel) -> None:
        """Wait until a helper that has just been started answers."""
        container = f"rock-{sandbox_id}"
        deadline = time.monotonic() + self._start_timeout_seconds
        while True:
            try:
                await channel.ping()
            except SandboxDied:
                await asyncio.sleep(0.01)
            else:
                return
            if not await self.engine.running(container):
                raise SandboxDied(f"the helper of {container} ended before it answered")
            if time.monotonic() > deadline:
                raise ProviderUnavailable(
                    f"{container} runs, but its helper does not answer within "
                    f"{self._start_timeout_seconds:g} s: the engine does not share this machine's "
                    f"directories; {SHARE_REMEDY}"
                )


def _enforced(spec: SandboxSpec, unbounded: str) -> Enforced:
    """The engine keeps the limits of processes, memory and CPU; layers in a storage that of the disk.

    `unbounded` is why there is no storage.
    """
    asked = {
        Capability.MEMORY_LIMIT: spec.limits.memory_bytes,
        Capability.PIDS_LIMIT: spec.limits.pids,
        Capability.CPU_LIMIT: spec.limits.cpus,
    }
    found = frozenset(capability for capability, bound in asked.items() if bound is not None)
    shared = (
        "inotify instances and what else the kernel counts by user are shared with other containers"
    )
    if not unbounded:
        return Enforced(found | NETWORKS | {Capability.DISK_LIMIT}, (shared,))
    disk = f"disk space is bounded by the engine's disk only: {unbounded}"
    return Enforced(found | NETWORKS, (disk, shared))


def _made_of(spec: SandboxSpec, image: Image) -> str:
    """What a snapshot needs to be the same in the sandbox it is restored in."""
    parts = (image.id, spec.workdir, spec.user, spec.mounts)
    return f"docker-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _identity(image: Image) -> Identity | None:
    """The image's own user, unless it is root: then the provider's safe default applies."""
    name = image.user.partition(":")[0]
    return None if name in ("", "root", "0") else Identity(image.user, AGENT_HOME)
