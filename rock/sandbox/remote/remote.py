"""The `remote` provider: sandboxes of a `rock sandbox serve` somewhere else.

They are made and ended by HTTP requests. Everything else goes to the sandbox's own helper, over one
WebSocket per sandbox that the server only passes on (`mux`), so a command is what it is locally.
"""

from __future__ import annotations

import asyncio
import builtins
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rock.errors import ProviderUnavailable, RockError, SandboxError
from rock.sandbox import api
from rock.sandbox.base import (
    DEFAULT_DIFF_ENTRIES,
    Availability,
    Provider,
    Sandbox,
    SandboxSpec,
)
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.box.identity import Identity
from rock.sandbox.box.stateful import Box, Enforced
from rock.sandbox.box.variables import changed
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.mux import MuxConnector
from rock.sandbox.channel.recorder import Recorder
from rock.sandbox.command import Death, DeathCause
from rock.sandbox.ending import to_the_end
from rock.sandbox.logs import LogEntry, LogPage
from rock.sandbox.remote.asking import REMEDY, Known, ServerRequests
from rock.sandbox.remote.notes import NoteSink
from rock.sandbox.spec import NetworkName
from rock.sandbox.state import Capability, Changes, Held, ResetReceipt, Snapshot

log = logging.getLogger(__name__)

_BEATS_PER_LEASE = 4


class _Snapshots:
    """Snapshots that the server keeps for one provider, each until it is released here."""

    def __init__(self, server: ServerRequests, lease_seconds: float) -> None:
        self._server = server
        self._lease_seconds = lease_seconds
        self.kept: set[str] = set()
        self._dropping: set[asyncio.Task[None]] = set()

    async def ask_for(self, sandbox_id: str, *, lease_seconds: float) -> api.SnapshotInfo:
        return await self._server.ask(
            "POST",
            f"/v1/sandboxes/{sandbox_id}/snapshot",
            api.SnapshotInfo,
            api.SnapshotRequest(lease_seconds=lease_seconds),
        )

    async def take(self, sandbox_id: str) -> Snapshot:
        info = await self.ask_for(sandbox_id, lease_seconds=self._lease_seconds)
        self.kept.add(info.id)
        freed = Held(functools.partial(self._drop_later, info.id))
        return Snapshot(info.id, f"remote at {self._server.url}", (freed,))

    def id_of(self, snapshot: Snapshot) -> str:
        """Its name there. Raises `SandboxError` for one of another provider, or one released."""
        if snapshot.id not in self.kept:
            raise SandboxError(f"snapshot {snapshot.id} was released, or is another provider's")
        return snapshot.id

    def _drop_later(self, snapshot_id: str) -> None:
        if snapshot_id in self.kept:
            self.kept.discard(snapshot_id)
            task = asyncio.ensure_future(self._drop(snapshot_id))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop(self, snapshot_id: str) -> None:
        try:
            await self._server.ask("DELETE", f"/v1/snapshots/{snapshot_id}", dict[str, Any])
        except RockError as exc:
            log.debug("snapshot %s is left to its lease: %s", snapshot_id, exc.message)

    async def close(self) -> None:
        for snapshot_id in list(self.kept):
            self._drop_later(snapshot_id)
        if self._dropping:
            await asyncio.wait(self._dropping)


class RemoteSandbox(ChannelSandbox):
    """A sandbox elsewhere: its state is its server's to change."""

    def __init__(
        self,
        server: ServerRequests,
        info: api.SandboxInfo,
        box: Box,
        snapshots: _Snapshots,
        known: Known,
    ) -> None:
        profile = info.profile
        super().__init__(
            box,
            info.spec,
            rlimits=profile.rlimits,
            identity=Identity(profile.user, profile.home),
            variables=profile.variables,
            enforced=Enforced(
                # A reset there ends the stream, and with it what `listen` gave here.
                frozenset(Capability(name) for name in profile.capabilities)
                - {Capability.RESET_IN_PLACE},
                tuple(profile.not_enforced),
            ),
        )
        # The server has decided it; the spec would be asked again otherwise.
        self.identity = Identity(profile.user, profile.home)
        self._server = server
        self._snapshots = snapshots
        self._known = known
        self.env_changes = known.env_changes
        self._notes = NoteSink(functools.partial(self._send_notes, info.id))
        self.recorder = Recorder(self._notes, "client")

    async def _send_notes(self, sandbox_id: str, entries: list[LogEntry]) -> None:
        path = f"/v1/sandboxes/{sandbox_id}/log"
        await self._server.ask("POST", path, dict[str, Any], api.Notes(entries=entries))

    async def detach(self) -> None:
        await self._notes.close()
        await super().detach()

    async def stop(self) -> None:
        self._notes.drop()
        await super().stop()

    async def read_log(
        self, *, after: str = "", tail: int | None = None, wait_seconds: float = 0.0
    ) -> LogPage:
        await self._notes.flush()
        query = {"after": after, "wait_seconds": f"{wait_seconds:g}"}
        if tail is not None:
            query["tail"] = str(tail)
        path = f"/v1/sandboxes/{self.id}/log?{urlencode(query)}"
        return await self._server.ask("GET", path, LogPage)

    async def set_env(self, changes: Mapping[str, str | None]) -> None:
        self._check_not_stopped()
        changed(self.env_changes, changes)  # what is wrong with them is said here, too
        path = f"/v1/sandboxes/{self.id}/env"
        asked = api.EnvRequest(changes=dict(changes))
        found = await self._server.ask("PATCH", path, api.Variables, asked)
        self._known.take(found.changes, found.proxy)

    @property
    def proxy_variables(self) -> Mapping[str, str]:
        return self._known.proxy

    async def reset(self) -> ResetReceipt:
        self._check_not_stopped()
        receipt = await self._server.ask("POST", f"/v1/sandboxes/{self.id}/reset", ResetReceipt)
        self.state.paused = False
        found = await self._server.ask("GET", f"/v1/sandboxes/{self.id}/env", api.Variables)
        self._known.take(found.changes, found.proxy)
        return _over_a_stream(receipt)

    async def set_network(
        self,
        network: NetworkName,
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        self._check_not_stopped()
        path = f"/v1/sandboxes/{self.id}/network"
        asked = api.NetworkRequest(network=network, allowed_hosts=tuple(allowed_hosts))
        found = await self._server.ask("PUT", path, api.Variables, asked)
        self._known.take(found.changes, found.proxy)

    async def network_of_the_spec(self) -> None:
        """Its server's to see to."""

    async def snapshot(self) -> Snapshot:
        self._check_not_stopped()
        return await self._snapshots.take(self.id)

    async def diff(self, *, max_entries: int = DEFAULT_DIFF_ENTRIES) -> Changes:
        self._check_not_stopped()
        found = await self._server.ask("GET", f"/v1/sandboxes/{self.id}/diff", Changes)
        if len(found.entries) <= max_entries:
            return found
        return Changes(entries=found.entries[:max_entries], complete=False)

    async def keep_snapshot(self) -> api.SnapshotInfo:
        """A snapshot that the server keeps until somebody drops it."""
        self._check_not_stopped()
        return await self._snapshots.ask_for(self.id, lease_seconds=0.0)

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        self._check_not_stopped()
        return await self.restore_kept(self._snapshots.id_of(snapshot))

    async def restore_kept(self, snapshot_id: str) -> ResetReceipt:
        """Like `restore`, of one that the server keeps under this name."""
        receipt = await self._server.ask(
            "POST",
            f"/v1/sandboxes/{self.id}/restore",
            ResetReceipt,
            api.RestoreRequest(snapshot=snapshot_id),
        )
        self.state.paused = False
        return _over_a_stream(receipt)

    async def pause(self) -> None:
        self._check_not_stopped()
        await self._server.ask("POST", f"/v1/sandboxes/{self.id}/pause", dict[str, Any])
        self.state.paused = True

    async def resume(self) -> None:
        self._check_not_stopped()
        await self._server.ask("POST", f"/v1/sandboxes/{self.id}/resume", dict[str, Any])
        self.state.paused = False


def _over_a_stream(receipt: ResetReceipt) -> ResetReceipt:
    """Listeners hang on the stream to the helper, which a reset ends with all else."""
    reason = receipt.reason or "a server's sandbox: listeners end with the stream to it"
    return replace(receipt, same_network=False, reason=reason)


class RemoteProvider(Provider):
    """Makes sandboxes on a server. If this process is killed, their leases run out there."""

    name = "remote"

    def __init__(
        self, url: str, key: str, *, lease_seconds: float = 60.0, socket: Path | None = None
    ) -> None:
        """`socket` is a unix socket on which the server of `url` is reached (`door`)."""
        self._server = ServerRequests(url, key, socket)
        self._lease_seconds = lease_seconds
        self._sandboxes: dict[str, RemoteSandbox] = {}
        self._snapshots = _Snapshots(self._server, lease_seconds)
        self._beating: asyncio.Task[None] | None = None
        self._closed = False

    async def probe(self) -> Availability:
        try:
            found = await self._server.ask("GET", "/v1/health", api.Health)
        except RockError as exc:
            return Availability(available=False, detail=exc.message, remedy=REMEDY)
        detail = f"{found.provider} at {self._server.url}: {found.detail}"
        return Availability(available=found.available, detail=detail, remedy=found.remedy)

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A running sandbox. Raises what the server's provider does, and `ProviderUnavailable`."""
        if self._closed:
            raise SandboxError("this provider is closed; it makes no more sandboxes")
        start = None if snapshot is None else self._snapshots.id_of(snapshot)
        asked = api.CreateRequest(spec=spec, lease_seconds=self._lease_seconds, snapshot=start)
        # A cancelled request may have made one: it is waited for, and then ended.
        asking = asyncio.ensure_future(
            self._server.ask("POST", "/v1/sandboxes", api.SandboxInfo, asked)
        )
        try:
            info = await asyncio.shield(asking)
        except asyncio.CancelledError:
            await to_the_end(self._discard_asked(asking))
            raise
        sandbox = self.attach(info)
        try:
            await sandbox.channel.ping()
        except BaseException:  # whatever it was, also a cancellation, nothing may be left
            await sandbox.stop()
            raise
        self._sandboxes[info.id] = sandbox
        if self._beating is None and self._lease_seconds:
            self._beating = asyncio.ensure_future(self._beat())
        return sandbox

    async def create_unowned(
        self, spec: SandboxSpec, lease_seconds: float, *, snapshot_id: str | None = None
    ) -> api.SandboxInfo:
        """A sandbox that stays when this provider is closed; its lease is nobody's to renew."""
        asked = api.CreateRequest(spec=spec, lease_seconds=lease_seconds, snapshot=snapshot_id)
        return await self._server.ask("POST", "/v1/sandboxes", api.SandboxInfo, asked)

    async def _discard_asked(self, asking: asyncio.Future[api.SandboxInfo]) -> None:
        try:
            info = await asking
        except RockError:
            return
        await self._stop(info.id, None)

    async def list(self) -> list[api.SandboxInfo]:
        """Every sandbox of the server, whoever made it."""
        return await self._server.ask("GET", "/v1/sandboxes", list[api.SandboxInfo])

    def attach(self, info: api.SandboxInfo) -> RemoteSandbox:
        """A handle on a sandbox of the server; `stop` stops it there."""
        known = Known(dict(info.profile.env_changes), info.profile.proxy)
        stream = MuxConnector(functools.partial(self._server.channel, info.id, known))
        channel = Channel(stream)
        box = Box(
            id=info.id,
            channel=channel,
            state=BoxState(channel, "remote", None, pausable=False),
            remove=functools.partial(self._stop, info.id, stream),
            diagnose=functools.partial(self._diagnose, info.id),
        )
        return RemoteSandbox(self._server, info, box, self._snapshots, known)

    def sandboxes(self) -> builtins.list[Sandbox]:
        return builtins.list(self._sandboxes.values())

    async def snapshots(self) -> builtins.list[api.SnapshotInfo]:
        """Every snapshot that the server keeps, for whomever."""
        return await self._server.ask("GET", "/v1/snapshots", builtins.list[api.SnapshotInfo])

    async def drop_snapshot(self, snapshot_id: str) -> None:
        await self._server.ask("DELETE", f"/v1/snapshots/{snapshot_id}", dict[str, Any])

    async def _stop(self, sandbox_id: str, stream: MuxConnector | None) -> None:
        try:
            await self._server.ask("DELETE", f"/v1/sandboxes/{sandbox_id}", dict[str, Any])
        except ProviderUnavailable as exc:
            log.warning("sandbox %s is left to its lease: %s", sandbox_id, exc.message)
        finally:
            if stream is not None:
                await stream.close()
            self._sandboxes.pop(sandbox_id, None)

    async def _diagnose(self, sandbox_id: str) -> Death:
        try:
            return await self._server.ask("GET", f"/v1/sandboxes/{sandbox_id}/death", Death)
        except ProviderUnavailable as exc:
            return Death(DeathCause.ENGINE_GONE, exc.message)
        except RockError as exc:
            return Death(DeathCause.GONE, f"its server has it no more: {exc.message}")

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / _BEATS_PER_LEASE)
            ours = [f"sandboxes/{name}" for name in self._sandboxes]
            for what in [*ours, *(f"snapshots/{name}" for name in self._snapshots.kept)]:
                try:
                    await self._server.ask("POST", f"/v1/{what}/renew", dict[str, Any])
                except RockError as exc:
                    log.debug("the lease of %s was not renewed: %s", what, exc.message)

    async def close(self) -> None:
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        await self._stop_beating()
        await asyncio.gather(*(box.stop() for box in list(self._sandboxes.values())))
        await self._snapshots.close()
        await self._server.close()
