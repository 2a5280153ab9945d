"""The `remote` provider: sandboxes of a `rock sandbox serve` somewhere else.

They are made and ended by HTTP requests. Everything else goes to the sandbox's own helper, over one
WebSocket per sandbox that the server only passes on (`mux`), so a command is what it is locally.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import replace
from typing import Any, Literal, TypeVar

import aiohttp

from rock.errors import NotSupported, ProviderUnavailable, RockError, SandboxDied, SandboxError
from rock.sandbox import api
from rock.sandbox.base import Availability, Provider, Sandbox, SandboxSpec
from rock.sandbox.box_state import BoxState
from rock.sandbox.channel import Channel
from rock.sandbox.channel_sandbox import ChannelSandbox, Identity
from rock.sandbox.command import Death, DeathCause
from rock.sandbox.ending import to_the_end
from rock.sandbox.mux import MuxConnector
from rock.sandbox.state import Capability, ResetReceipt, Snapshot
from rock.sandbox.stateful import NETWORKS, Box, Enforced

log = logging.getLogger(__name__)
T = TypeVar("T")

_CALL_SECONDS = 120.0
_BEATS_PER_LEASE = 4
REMEDY = "start one with `rock sandbox serve`, and give its address and its key"


class _Api:
    """Requests to one server."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_CALL_SECONDS)
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                headers=self._headers, timeout=timeout, connector=connector
            )
        return self._session

    async def ask(self, method: str, path: str, kind: type[T], body: object = None) -> T:
        """Raises the error that the server answers with, or `ProviderUnavailable`."""
        data = None if body is None else api.encode(body)
        try:
            async with self.session.request(method, self.url + path, data=data) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ProviderUnavailable(
                f"no sandbox server answers at {self.url} ({exc}); {REMEDY}"
            ) from exc
        if answer.status >= 400:
            raise api.error_of(answer.status, content)
        return api.decode(content, kind)

    async def channel(self, sandbox_id: str) -> SocketStream:
        try:
            socket = await self.session.ws_connect(
                f"{self.url}/v1/sandboxes/{sandbox_id}/channel",
                max_msg_size=0,
                heartbeat=30.0,
            )
        except aiohttp.WSServerHandshakeError as exc:
            raise SandboxDied(f"the sandbox is gone (status {exc.status})") from exc
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise SandboxDied(f"its server does not answer: {exc}") from exc
        return SocketStream(socket)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class SocketStream:
    """A `mux.ByteStream` on a WebSocket. What is written is sent in order by a task."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._sending = asyncio.ensure_future(self._send())

    async def read(self) -> bytes:
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY:
                return message.data
            if message.type in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
                aiohttp.WSMsgType.ERROR,
            ):
                return b""

    def write(self, data: bytes) -> None:
        self._queue.put_nowait(data)

    async def _send(self) -> None:
        try:
            while True:
                data = bytearray(await self._queue.get())
                while not self._queue.empty():
                    data += self._queue.get_nowait()
                await self._socket.send_bytes(bytes(data))
        except (aiohttp.ClientError, ConnectionError) as exc:
            log.debug("a sandbox's stream has broken: %s", exc)

    async def close(self) -> None:
        self._sending.cancel()
        await asyncio.gather(self._sending, return_exceptions=True)
        await self._socket.close()


class RemoteSandbox(ChannelSandbox):
    """A sandbox elsewhere: its state is its server's to change."""

    def __init__(self, server: _Api, info: api.SandboxInfo, box: Box) -> None:
        profile = info.profile
        super().__init__(
            box,
            info.spec,
            rlimits=profile.rlimits,
            identity=Identity(profile.user, profile.home),
            variables=profile.variables,
            enforced=Enforced(
                frozenset(Capability(name) for name in profile.capabilities)
                - {Capability.SNAPSHOT, *NETWORKS},
                tuple(profile.not_enforced),
            ),
        )
        # The server has decided it; the spec would be asked again otherwise.
        self.identity = Identity(profile.user, profile.home)
        self._server = server

    async def reset(self) -> ResetReceipt:
        self._check_not_stopped()
        receipt = await self._server.ask("POST", f"/v1/sandboxes/{self.id}/reset", ResetReceipt)
        # Listeners hang on the stream to the helper, which a reset ends with all else.
        return replace(receipt, same_network=False)

    async def set_network(
        self,
        network: Literal["none", "model", "allowlist", "full"],
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        raise NotSupported("set_network: networks are the server's to change")

    async def network_of_the_spec(self) -> None:
        """Its server's to see to."""

    async def snapshot(self) -> Snapshot:
        raise NotSupported("snapshot: the remote provider keeps no states")

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        raise NotSupported("restore: the remote provider keeps no states")

    async def pause(self) -> None:
        self._check_not_stopped()
        await self._server.ask("POST", f"/v1/sandboxes/{self.id}/pause", dict[str, Any])
        self.state.paused = True

    async def resume(self) -> None:
        self._check_not_stopped()
        await self._server.ask("POST", f"/v1/sandboxes/{self.id}/resume", dict[str, Any])
        self.state.paused = False


class RemoteProvider(Provider):
    """Makes sandboxes on a server. If this process is killed, their leases run out there."""

    name = "remote"

    def __init__(self, url: str, key: str, *, lease_seconds: float = 60.0) -> None:
        self._server = _Api(url, key)
        self._lease_seconds = lease_seconds
        self._sandboxes: dict[str, RemoteSandbox] = {}
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
        if snapshot is not None:
            raise NotSupported("snapshot: the remote provider keeps no states")
        asked = api.CreateRequest(spec=spec, lease_seconds=self._lease_seconds)
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

    async def create_unowned(self, spec: SandboxSpec, lease_seconds: float) -> api.SandboxInfo:
        """A sandbox that stays when this provider is closed; its lease is nobody's to renew."""
        asked = api.CreateRequest(spec=spec, lease_seconds=lease_seconds)
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
        stream = MuxConnector(functools.partial(self._server.channel, info.id))
        channel = Channel(stream)
        box = Box(
            id=info.id,
            channel=channel,
            state=BoxState(channel, "remote", None, pausable=False),
            remove=functools.partial(self._stop, info.id, stream),
            diagnose=functools.partial(self._diagnose, info.id),
        )
        return RemoteSandbox(self._server, info, box)

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

    async def fall_silent(self) -> None:
        """Renew nothing any more and close every stream, as a process that is killed does."""
        await self._stop_beating()
        for sandbox in self._sandboxes.values():
            await sandbox.channel.close()
        await self._server.close()

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / _BEATS_PER_LEASE)
            for sandbox_id in list(self._sandboxes):
                try:
                    await self._server.ask(
                        "POST", f"/v1/sandboxes/{sandbox_id}/renew", dict[str, Any]
                    )
                except RockError as exc:
                    log.debug("the lease of %s was not renewed: %s", sandbox_id, exc.message)

    async def close(self) -> None:
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        await self._stop_beating()
        await asyncio.gather(*(box.stop() for box in list(self._sandboxes.values())))
        await self._server.close()
