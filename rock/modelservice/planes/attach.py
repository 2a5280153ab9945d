"""Lend a listening socket to the service, bound to one session: `attach.sock` in the state directory.

A sandbox without a network gets a listening socket inside its own network namespace; the harness
passes that descriptor here and the service answers the agents that connect to it. The connection
to `attach.sock` *is* the attachment: the service serves the listener until that connection ends or
the session is closed, so nothing is left when a harness dies. The harness keeps its own copy of the
descriptor, so while the service restarts, agents wait in the backlog and are not refused.

On the wire: one JSON line `{"session_id": ...}` with the descriptor in its ancillary data; the
reply is `{"ok": true}` or the error body of the control plane, then silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import tenacity

from rock.errors import BadRequest, RockError, ServiceUnavailable, error_for

log = logging.getLogger(__name__)

Serve: TypeAlias = Callable[[socket.socket, str], AbstractAsyncContextManager[None]]
"""Serves the agent plane on a listening socket for a session id; closes the socket at the end."""

MAX_LINE_BYTES = 4096
HANDSHAKE_SECONDS = 10.0
_MAX_PATH_BYTES = 100


class AttachPoint:
    """The service's side. Use `open` as `async with`."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._attached: dict[str, set[asyncio.Task[None]]] = {}
        self._talks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, path: Path) -> AsyncGenerator[None, None]:
        """Take attachments at `path`; what was left there by a dead service is replaced."""
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        accepting: asyncio.Task[None] | None = None
        try:
            _bind(door, path)
            accepting = asyncio.ensure_future(self._accept(door))
            yield
        finally:
            tasks = [*self._talks, *([accepting] if accepting else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _unbind(door, path)

    async def detach(self, session_id: str) -> None:
        """Stop serving what is attached to a session."""
        tasks = self._attached.pop(session_id, set())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, door: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(door)
            connection.setblocking(False)
            task = asyncio.ensure_future(self._talk(connection))
            self._talks.add(task)
            task.add_done_callback(self._talks.discard)

    async def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    listener, session_id = await _receive(connection)
                await self._hold(connection, listener, session_id)
            except RockError as exc:
                log.warning("attachment refused: %s", exc.message)
                body = {"error": {"code": exc.code, "message": exc.message, "param": None}}
                with contextlib.suppress(OSError):
                    await _send(connection, json.dumps(body).encode() + b"\n")
            except (OSError, TimeoutError) as exc:
                log.warning("attachment broke off: %s", exc)

    async def _hold(
        self, connection: socket.socket, listener: socket.socket, session_id: str
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        async with self._serve(listener, session_id):
            self._attached.setdefault(session_id, set()).add(task)
            try:
                await _send(connection, b'{"ok": true}\n')
                await _wait_for_end(connection)
            finally:
                self._attached.get(session_id, set()).discard(task)
                if not self._attached.get(session_id):
                    self._attached.pop(session_id, None)


def _bind(door: socket.socket, path: Path) -> None:
    path.unlink(missing_ok=True)
    with reachable(path) as name:
        door.bind(name)
    path.chmod(0o600)
    door.listen(64)
    door.setblocking(False)


def _unbind(door: socket.socket, path: Path) -> None:
    door.close()
    path.unlink(missing_ok=True)


async def _receive(connection: socket.socket) -> tuple[socket.socket, str]:
    """The lent listener and its session id. Raises BadRequest; closes what it does not return."""
    line, fds = b"", list[int]()
    try:
        while not line.endswith(b"\n"):
            chunk, more = await _recv_fds(connection)
            fds += more
            line += chunk
            if not chunk or len(line) > MAX_LINE_BYTES:
                raise BadRequest("attach: expected one JSON line with a session_id")
        session_id = _session_id(line)
        if len(fds) != 1:
            raise BadRequest(f"attach: expected one descriptor, got {len(fds)}")
        listener = socket.socket(fileno=fds.pop())
    finally:
        for fd in fds:
            os.close(fd)
    if not _listens(listener):
        listener.close()
        raise BadRequest("attach: the descriptor is not a listening stream socket")
    listener.setblocking(False)
    return listener, session_id


def _session_id(line: bytes) -> str:
    try:
        value = json.loads(line)["session_id"]
    except (ValueError, KeyError, TypeError) as exc:
        raise BadRequest("attach: expected one JSON line with a session_id") from exc
    if not isinstance(value, str):
        raise BadRequest("attach: session_id must be a string", param="session_id")
    return value


def _listens(listener: socket.socket) -> bool:
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


class Attachment:
    """The harness's side: `async with Attachment(path, listener, session_id):`.

    Entering returns once the service answers on the listener, or raises its error. If the service
    goes away it is attached again, for up to `retry_seconds`. The listener stays the caller's.
    """

    def __init__(
        self, path: Path, listener: socket.socket, session_id: str, *, retry_seconds: float = 60.0
    ) -> None:
        self._path = path
        self._listener = listener
        self._session_id = session_id
        self._retry_seconds = retry_seconds
        self._connection: socket.socket | None = None
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Attachment:
        self._connection = await self._attach()
        self._watch = asyncio.ensure_future(self._keep())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def ended(self) -> None:
        """Wait until the service gives the listener up for good, as when its session closes."""
        if self._watch is not None:
            await asyncio.wait({self._watch})

    async def close(self) -> None:
        """Detach. Idempotent."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()

    async def _attach(self) -> socket.socket:
        async for attempt in tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type((OSError, TimeoutError)),
            wait=tenacity.wait_exponential(multiplier=0.05, max=1.0)
            + tenacity.wait_random(0, 0.05),
            stop=tenacity.stop_after_delay(self._retry_seconds),
            retry_error_callback=self._unreachable,
        ):
            with attempt:
                return await self._attach_once()
        raise ServiceUnavailable(f"{self._path}: no attempt was made")

    def _unreachable(self, state: tenacity.RetryCallState) -> Any:
        cause = state.outcome.exception() if state.outcome else None
        raise ServiceUnavailable(f"no ModelService at {self._path}: {cause}") from cause

    async def _attach_once(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                connection.setblocking(False)
                with reachable(self._path) as name:
                    connection.connect(name)  # local: succeeds at once, or fails and is tried again
                line = json.dumps({"session_id": self._session_id}).encode() + b"\n"
                socket.send_fds(connection, [line], [self._listener.fileno()])
                _raise_error(await _read_line(connection))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _keep(self) -> None:
        while self._connection is not None:
            await _wait_for_end(self._connection)
            self._connection.close()
            self._connection = None
            try:
                self._connection = await self._attach()
            except RockError as exc:
                # Its session is over, or the service is gone for good; agents will notice.
                log.info("no longer attached to session %s: %s", self._session_id, exc.message)


def _raise_error(line: bytes) -> None:
    reply: Any = json.loads(line)
    error = reply.get("error")
    if error is not None:
        raise error_for(error["code"], error["message"])


async def _read_line(connection: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    line = b""
    while not line.endswith(b"\n"):
        chunk = await loop.sock_recv(connection, MAX_LINE_BYTES)
        if not chunk:
            raise ConnectionResetError("the service closed the attachment")
        line += chunk
    return line


async def _send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def _wait_for_end(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while await loop.sock_recv(connection, MAX_LINE_BYTES):
            pass


async def _recv_fds(connection: socket.socket) -> tuple[bytes, list[int]]:
    """One read with its descriptors, which asyncio has no call for."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    data, fds, _, _ = socket.recv_fds(connection, MAX_LINE_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    return data, fds


@contextlib.contextmanager
def reachable(path: Path) -> Generator[str, None, None]:
    """A name for a unix socket that fits the kernel's 108 bytes, however deep its directory is."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
