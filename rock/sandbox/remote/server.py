"""A provider's sandboxes over HTTP, for harnesses and people on other machines.

Whoever has the key can do with a sandbox what its owner can, and with this host no more: host directories
are mounted only if the server was told that they may be. A sandbox whose client has gone is stopped when
its lease runs out. Handlers parse, call and render (`translating`); errors become answers in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import WSCloseCode, web

import rock
from rock.errors import ConfigError, RockError, SandboxError, Unauthorized
from rock.sandbox import api
from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.remote.relay import relayed
from rock.sandbox.remote.served import Book, OwnBook, Served, get
from rock.sandbox.remote.snapshot_book import SnapshotBook
from rock.sandbox.remote.translating import (
    http_error,
    json_answer,
    mode_in,
    number_in,
    overflow_of,
    path_in,
    refusal,
)

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_WAIT_SECONDS = 30.0
MAX_NOTES = 10_000
_SWEEP_SECONDS = 1.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SandboxServer:
    """The application. `async with`; leaving it stops every sandbox that it made."""

    def __init__(
        self,
        provider: Provider,
        *,
        key: str | None,
        allow_mounts: bool = False,
        book: Book | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`key` None asks nobody for one: for a socket that only its user can reach.

        `book` says whose sandboxes these are; with one given, the provider is somebody else's to close.
        """
        self._provider = provider
        self._key = key
        self._allow_mounts = allow_mounts
        self._max_body_bytes = max_body_bytes
        self._owns_provider = book is None
        self._served = book or OwnBook()
        self._snapshots = SnapshotBook(time.monotonic)
        self._sockets: set[web.WebSocketResponse] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._checked], client_max_size=self._max_body_bytes)
        app.on_shutdown.append(self._hang_up)
        one = "/v1/sandboxes/{id}"
        app.add_routes(
            [
                web.get("/openapi.json", self._document),
                web.get("/v1/health", self._health),
                web.get("/v1/sandboxes", self._list),
                web.post("/v1/sandboxes", self._create),
                web.get(one, self._show),
                web.delete(one, self._stop),
                web.post(f"{one}/exec", self._exec),
                web.get(f"{one}/log", self._log),
                web.post(f"{one}/log", self._note),
                web.get(f"{one}/env", self._env),
                web.patch(f"{one}/env", self._change_env),
                web.put(f"{one}/network", self._change_network),
                web.get(f"{one}/processes", self._processes),
                web.get(f"{one}/file", self._read),
                web.put(f"{one}/file", self._write),
                web.get(f"{one}/channel", self._channel),
                web.get(f"{one}/death", self._death),
                web.post(f"{one}/renew", self._renew),
                web.post(f"{one}/reset", self._reset),
                web.get(f"{one}/diff", self._diff),
                web.post(f"{one}/snapshot", self._snapshot),
                web.post(f"{one}/restore", self._restore),
                web.get("/v1/snapshots", self._list_snapshots),
                web.delete("/v1/snapshots/{id}", self._drop_snapshot),
                web.post("/v1/snapshots/{id}/renew", self._renew_snapshot),
                web.post(f"{one}/pause", self._pause),
                web.post(f"{one}/resume", self._resume),
            ]
        )
        return app

    async def __aenter__(self) -> SandboxServer:
        self._sweeping = asyncio.ensure_future(self._sweep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        self._snapshots.drop_all()
        if self._owns_provider:
            await self._provider.close()

    async def _hang_up(self, app: web.Application) -> None:
        """Streams have no end of their own that a shutdown could wait for; commands may have a late one.

        A client that waits for a command is told that its sandbox has died.
        """
        if self._owns_provider:
            await asyncio.gather(*(self._forget(name) for name, _ in self._served))
        for socket in list(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)

    async def _sweep(self) -> None:
        """Stop what no client has asked for during its lease."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._snapshots.drop_expired()
            now = time.monotonic()
            for name, served in self._served:
                if served.expired(now):
                    log.info("sandbox %s is stopped: its client is gone", name)
                    await self._forget(name)

    async def _forget(self, name: str) -> None:
        served = self._served.forget(name)
        if served is not None:
            try:
                await served.sandbox.stop()
            except SandboxError as exc:
                log.warning("sandbox %s is left to the reaper: %s", name, exc.message)

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The key first; then errors as JSON, as long as nothing was sent."""
        try:
            self._check_key(request)
            return await handler(request)
        except RockError as exc:
            return refusal(exc, exc.status)
        except web.HTTPException as exc:  # the library's own: no such path, a body too large
            if exc.status < 400:
                raise
            return refusal(http_error(exc, self._max_body_bytes), exc.status)

    def _check_key(self, request: web.Request) -> None:
        if self._key is None:
            return
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self._key.encode()):
            raise Unauthorized("the key is missing or wrong (Authorization: Bearer KEY)")

    def _of(self, request: web.Request, *, renews: bool = True) -> Served:
        """The sandbox that a request is about; who asks for it renews its lease."""
        served = get(self._served, request.match_info["id"])
        if renews:
            served.seen = time.monotonic()
        return served

    def _info(self, name: str, served: Served) -> api.SandboxInfo:
        return api.info_of(
            served.sandbox,
            sandbox_id=name,
            provider=self._provider.name,
            age_seconds=time.monotonic() - served.sandbox.born,
            box=served.sandbox.id,
        )

    async def _document(self, request: web.Request) -> web.Response:
        return json_answer(api.document(rock.__version__))

    async def _health(self, request: web.Request) -> web.Response:
        found = await self._provider.probe()
        return json_answer(
            api.Health(
                provider=self._provider.name,
                available=found.available,
                detail=found.detail,
                remedy=found.remedy,
                sandboxes=len(list(self._served)),
            )
        )

    async def _list(self, request: web.Request) -> web.Response:
        return json_answer([self._info(name, served) for name, served in self._served])

    async def _create(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.CreateRequest)
        self._served.check_may_create()
        self._check_mounts(asked.spec)
        kept = None if asked.snapshot is None else self._snapshots.get(asked.snapshot).snapshot
        sandbox = await self._provider.create(asked.spec, snapshot=kept)
        if not isinstance(sandbox, ChannelSandbox):
            await sandbox.stop()
            raise SandboxError(f"the provider {self._provider.name} cannot be served")
        sandbox.recorder.by = "server"
        served = Served(sandbox, asked.lease_seconds)
        return json_answer(self._info(self._served.add(served), served))

    def _check_mounts(self, spec: SandboxSpec) -> None:
        if spec.mounts and not self._allow_mounts:
            raise ConfigError("mounts: this server shows none of its host's directories")

    async def _show(self, request: web.Request) -> web.Response:
        return json_answer(self._info(request.match_info["id"], self._of(request)))

    async def _stop(self, request: web.Request) -> web.Response:
        await self._forget(request.match_info["id"])
        return json_answer({})

    async def _exec(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.ExecRequestBody)
        served = self._of(request)
        result = await served.sandbox.exec(
            asked.argv,
            timeout_seconds=asked.timeout_seconds,
            cwd=asked.cwd,
            env=asked.env,
            user=asked.user,
            stdin=asked.stdin,
            output_limit_bytes=asked.output_limit_bytes,
            overflow=overflow_of(asked.overflow),
        )
        served.seen = time.monotonic()
        return json_answer(result)

    async def _log(self, request: web.Request) -> web.Response:
        # Whoever watches a sandbox does not keep it.
        sandbox = self._of(request, renews=False).sandbox
        tail = number_in(request, "tail", int)
        wait = min(number_in(request, "wait_seconds", float) or 0.0, MAX_WAIT_SECONDS)
        after = request.query.get("after", "")
        return json_answer(await sandbox.read_log(after=after, tail=tail, wait_seconds=wait))

    async def _note(self, request: web.Request) -> web.Response:
        notes = api.decode(await request.read(), api.Notes)
        sink = self._of(request).sandbox.recorder.sink
        for entry in notes.entries[:MAX_NOTES]:
            sink.add(api.bounded(entry))
        return json_answer({})

    async def _env(self, request: web.Request) -> web.Response:
        return json_answer(_variables(self._of(request).sandbox))

    async def _change_env(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.EnvRequest)
        served = self._of(request)
        await served.sandbox.set_env(asked.changes)
        await self._tell_env(served)
        return json_answer(_variables(served.sandbox))

    async def _change_network(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.NetworkRequest)
        served = self._of(request)
        await served.sandbox.set_network(asked.network, asked.allowed_hosts)
        await self._tell_env(served)
        return json_answer(_variables(served.sandbox))

    async def _tell_env(self, served: Served) -> None:
        """Every client builds the environment of its commands by itself."""
        for socket in list(served.sockets):
            with contextlib.suppress(ConnectionError, RuntimeError):  # it is closing
                await socket.send_str(_told(served.sandbox))

    async def _processes(self, request: web.Request) -> web.Response:
        return json_answer(await self._of(request).sandbox.list_processes())

    async def _read(self, request: web.Request) -> web.Response:
        data = await self._of(request).sandbox.read_file(path_in(request))
        return web.Response(body=data, content_type="application/octet-stream")

    async def _write(self, request: web.Request) -> web.Response:
        mode, sandbox = mode_in(request), self._of(request).sandbox
        await sandbox.write_file(path_in(request), await request.read(), mode=mode)
        return json_answer({})

    async def _death(self, request: web.Request) -> web.Response:
        return json_answer(await self._of(request).sandbox.death())

    async def _renew(self, request: web.Request) -> web.Response:
        self._of(request)
        return json_answer({})

    async def _reset(self, request: web.Request) -> web.Response:
        served = self._of(request)
        receipt = await served.sandbox.reset()
        await self._tell_env(served)
        return json_answer(receipt)

    async def _diff(self, request: web.Request) -> web.Response:
        return json_answer(await self._of(request).sandbox.diff())

    async def _snapshot(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.SnapshotRequest)
        name, served = request.match_info["id"], self._of(request)
        self._snapshots.check_room()
        snapshot = await served.sandbox.snapshot()
        kept = self._snapshots.keep(snapshot, sandbox=name, lease_seconds=asked.lease_seconds)
        return json_answer(api.SnapshotInfo(id=kept, sandbox=name, age_seconds=0.0))

    async def _restore(self, request: web.Request) -> web.Response:
        asked = api.decode(await request.read(), api.RestoreRequest)
        kept = self._snapshots.get(asked.snapshot)
        return json_answer(await self._of(request).sandbox.restore(kept.snapshot))

    async def _list_snapshots(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        return json_answer(
            [
                api.SnapshotInfo(id=name, sandbox=kept.sandbox, age_seconds=now - kept.born)
                for name, kept in self._snapshots
            ]
        )

    async def _drop_snapshot(self, request: web.Request) -> web.Response:
        self._snapshots.drop(request.match_info["id"])
        return json_answer({})

    async def _renew_snapshot(self, request: web.Request) -> web.Response:
        self._snapshots.get(request.match_info["id"])
        return json_answer({})

    async def _pause(self, request: web.Request) -> web.Response:
        await self._of(request).sandbox.pause()
        return json_answer({})

    async def _resume(self, request: web.Request) -> web.Response:
        await self._of(request).sandbox.resume()
        return json_answer({})

    async def _channel(self, request: web.Request) -> web.StreamResponse:
        """A stream to the helper; as long as there is one, the lease does not run."""
        served = self._of(request)
        conn = await served.sandbox.channel.tunnel()
        socket = web.WebSocketResponse(max_msg_size=0, heartbeat=30.0)
        served.sockets.add(socket)
        self._sockets.add(socket)
        try:
            await socket.prepare(request)
            await socket.send_str(_told(served.sandbox))
            await relayed(socket, conn)
        finally:
            conn.close()
            self._sockets.discard(socket)
            served.sockets.discard(socket)
            served.seen = time.monotonic()
        return socket


def _variables(sandbox: ChannelSandbox) -> api.Variables:
    return api.Variables(
        variables=sandbox.environment(),
        changes=dict(sandbox.env_changes),
        proxy=dict(sandbox.proxy_variables),
    )


def _told(sandbox: ChannelSandbox) -> str:
    changes, proxy = dict(sandbox.env_changes), dict(sandbox.proxy_variables)
    return api.encode(api.Told(changes=changes, proxy=proxy)).decode()


@asynccontextmanager
async def serving(
    server: SandboxServer, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[str]:
    """The server's address, while it listens."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=5.0)
    async with server:
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            name, number = runner.addresses[0][:2]
            yield f"http://{name}:{number}"
        finally:
            await runner.cleanup()
