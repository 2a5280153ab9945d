"""Many connections to a helper over one byte stream, where no descriptor can cross.

The other end is `native/mux.c`, which documents the frames. To the layers above, a connection made here
is a socket like any other: they send pipes with their first bytes, and this side pumps those pipes.
So everything about commands, files and shells is written once, for descriptors.
"""

from __future__ import annotations

import array
import asyncio
import enum
import fcntl
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

from rock.errors import SandboxDied
from rock.sandbox.channel import frames
from rock.sandbox.channel.connect import address_of
from rock.sandbox.channel.tunnel import Tunnel

_READ_BYTES = 64 * 1024
_MAX_PASSED = 4
_HELLO_SECONDS = 30.0
_ACCEPTED = 0x80000000
_HEAD = struct.Struct("<IBI")


class MuxType(enum.IntEnum):
    HELLO = ord("h")
    OPEN = ord("O")
    DATA = ord("D")
    END = ord("E")
    CREDIT = ord("C")
    CLOSE = ord("X")
    ACCEPT = ord("A")


class ByteStream(Protocol):
    """What carries the frames. `read` gives b"" at its end; `write` never waits."""

    async def read(self) -> bytes: ...
    def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class RelayedListener(socket.socket):
    """A listener on this side whose callers are those of a port inside; it says the port's name."""

    inside: tuple[str, int] = ("127.0.0.1", 0)

    def getsockname(self) -> tuple[str, int]:
        return self.inside


class Mux:
    """One byte stream to a helper and the connections over it. `close` ends them all."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._decoder = _Decoder()
        self._tunnels: dict[int, Tunnel] = {}
        self._fresh: set[socket.socket] = set()
        self._listeners: dict[int, Path] = {}
        self._asked: dict[int, asyncio.Future[frames.Frame]] = {}
        self._answers: dict[int, frames.Decoder] = {}
        self._next_id = 0
        self._hello: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.ensure_future(self._read())
        self.closed = False

    async def hello(self) -> None:
        """Greet the other end and wait until it answers. Raises `SandboxDied`."""
        self._send(MuxType.HELLO, frames.PROTOCOL_VERSION)
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                version = await asyncio.shield(self._hello)
        except TimeoutError as exc:
            raise SandboxDied("the helper says nothing on its stream") from exc
        if version != frames.PROTOCOL_VERSION:
            raise SandboxDied(f"the helper speaks version {version}, not {frames.PROTOCOL_VERSION}")

    def connect(self) -> socket.socket:
        """A new connection to the helper, as `channel.Connector` wants it."""
        if self.closed:
            raise ConnectionResetError("the stream to the helper has ended")
        near, far = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._fresh.add(far)
        asyncio.get_running_loop().add_reader(far, self._begin, far)
        return near

    def _begin(self, far: socket.socket) -> None:
        """The first bytes of a connection, and the pipes that come with them."""
        room = socket.CMSG_SPACE(_MAX_PASSED * array.array("i").itemsize)
        try:
            data, parts, _, _ = far.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, parts = b"", []
        asyncio.get_running_loop().remove_reader(far)
        self._fresh.discard(far)
        given = array.array("i")
        for level, kind, content in parts:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                given.frombytes(content)
        if not data or self.closed:
            for fd in given:
                os.close(fd)
            far.close()
            return
        tunnel = self._add()
        tunnel.add(far.detach(), "c")
        for fd in given:
            tunnel.add(fd, _kind_of(fd, sum(pump.kind == "w" for pump in tunnel.pumps)))
        kinds = "".join(pump.kind for pump in tunnel.pumps[1:])
        self._send(MuxType.OPEN, tunnel.id, kinds.encode())
        tunnel.pumps[0].credit -= len(data)
        self.send_data(tunnel.id, 0, data)
        tunnel.read_all()

    def _add(self, tunnel_id: int | None = None) -> Tunnel:
        if tunnel_id is None:
            self._next_id = tunnel_id = (self._next_id + 1) % _ACCEPTED
        tunnel = self._tunnels[tunnel_id] = Tunnel(tunnel_id, self, is_raw=tunnel_id >= _ACCEPTED)
        return tunnel

    async def listen(self, port: int) -> socket.socket:
        """A listener whose callers are those of that port inside. Raises what the reply refuses."""
        if self.closed:
            raise ConnectionResetError("the stream to the helper has ended")
        self._next_id = tunnel_id = (self._next_id + 1) % _ACCEPTED
        answer = self._asked[tunnel_id] = asyncio.get_running_loop().create_future()
        self._answers[tunnel_id] = frames.Decoder()
        self._send(MuxType.OPEN, tunnel_id)
        self.send_data(tunnel_id, 0, frames.encode(frames.FrameType.LISTEN, frames.u32(port)))
        try:
            async with asyncio.timeout(_HELLO_SECONDS):
                frame = await answer
        except TimeoutError as exc:
            raise SandboxDied(f"listen on port {port}: no answer") from exc
        finally:
            self._asked.pop(tunnel_id, None)
            self._answers.pop(tunnel_id, None)
        if frame.type is not frames.FrameType.FD:
            raise Refused(frame)
        port_inside = frames.take_u64(frame.body)
        folder = Path(tempfile.mkdtemp(prefix="rock-listen-"))  # 0700: callers are this user's
        self._listeners[tunnel_id] = folder / "door"
        listener = RelayedListener(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        with address_of(folder / "door") as address:
            listener.bind(address)
        listener.listen(1024)
        listener.inside = ("127.0.0.1", port_inside)
        return listener

    def _accept(self, listener_id: int, tunnel_id: int) -> None:
        if tunnel_id < _ACCEPTED or tunnel_id in self._tunnels:
            raise frames.ProtocolError(f"a caller by the number {tunnel_id}")
        path = self._listeners.get(listener_id)
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            if path is None:
                raise ConnectionRefusedError
            with address_of(path) as address:
                conn.connect(address)
        except OSError as exc:
            conn.close()
            self._send(MuxType.CLOSE, tunnel_id)
            if not isinstance(exc, BlockingIOError):  # that is only a full queue
                self._stop_listening(listener_id)
            return
        tunnel = self._add(tunnel_id)
        tunnel.add(conn.detach(), "c")
        tunnel.read_all()

    def _stop_listening(self, listener_id: int) -> None:
        path = self._listeners.pop(listener_id, None)
        if path is not None:
            self._send(MuxType.CLOSE, listener_id)
            shutil.rmtree(path.parent, ignore_errors=True)

    def _send(self, kind: MuxType, tunnel_id: int, body: bytes = b"") -> None:
        if not self.closed:
            self._stream.write(_HEAD.pack(5 + len(body), kind, tunnel_id) + body)

    def send_data(self, tunnel_id: int, stream: int, data: bytes) -> None:
        self._send(MuxType.DATA, tunnel_id, bytes((stream,)) + data)

    def send_end(self, tunnel_id: int, stream: int) -> None:
        self._send(MuxType.END, tunnel_id, bytes((stream,)))

    def send_credit(self, tunnel_id: int, stream: int, count: int) -> None:
        self._send(MuxType.CREDIT, tunnel_id, bytes((stream,)) + frames.u32(count))

    def drop(self, tunnel: Tunnel, *, tell: bool) -> None:
        if self._tunnels.pop(tunnel.id, None) is not None and tell:
            self._send(MuxType.CLOSE, tunnel.id)
        tunnel.close()

    async def _read(self) -> None:
        try:
            while data := await self._stream.read():
                for kind, tunnel_id, body in self._decoder.feed(data):
                    self._take(kind, tunnel_id, body)
        except (OSError, frames.ProtocolError) as exc:
            self._over(str(exc))
        else:
            self._over("its stream has ended")

    def _over(self, reason: str) -> None:
        """Whoever uses a connection sees it closed."""
        self.closed = True
        for tunnel in list(self._tunnels.values()):
            self.drop(tunnel, tell=False)
        for far in self._fresh:
            asyncio.get_running_loop().remove_reader(far)
            far.close()
        self._fresh.clear()
        for listener_id in list(self._listeners):
            self._stop_listening(listener_id)
        for answer in (self._hello, *self._asked.values()):
            if not answer.done():
                answer.set_exception(SandboxDied(f"the helper is gone: {reason}"))
                answer.exception()  # nobody need be waiting

    def _take(self, kind: MuxType, tunnel_id: int, body: bytes) -> None:
        if kind is MuxType.HELLO:
            if not self._hello.done():
                self._hello.set_result(tunnel_id)
        elif kind is MuxType.ACCEPT:
            self._accept(tunnel_id, frames.take_u32(body, 0)[0])
        elif tunnel_id in self._answers:
            self._take_answer(tunnel_id, body if kind is MuxType.DATA else b"")
        elif (tunnel := self._tunnels.get(tunnel_id)) is not None:  # else it was just closed here
            self._take_for(tunnel, kind, body)

    def _take_answer(self, tunnel_id: int, body: bytes) -> None:
        for frame in self._answers[tunnel_id].feed(body[1:]):
            if not self._asked[tunnel_id].done():
                self._asked[tunnel_id].set_result(frame)

    def _take_for(self, tunnel: Tunnel, kind: MuxType, body: bytes) -> None:
        if kind is MuxType.CLOSE:
            tunnel.take_close()
        elif not body or body[0] >= len(tunnel.pumps):
            raise frames.ProtocolError(f"{kind.name} for a stream that there is not")
        elif kind is MuxType.DATA:
            tunnel.take(body[0], body[1:])
        elif kind is MuxType.END:
            tunnel.take_end(body[0])
        elif kind is MuxType.CREDIT:
            tunnel.pumps[body[0]].credit += frames.take_u32(body, 1)[0]
            tunnel.want_reading(body[0])

    async def close(self) -> None:
        self._over("it was closed")
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._stream.close()


class Refused(Exception):
    """The helper refused a request; `frame` says why."""

    def __init__(self, frame: frames.Frame) -> None:
        super().__init__(frame.type.name)
        self.frame = frame


def _kind_of(fd: int, writers: int) -> str:
    """How the command will use a descriptor that the client passes; see `native/mux.c`."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        return "r"
    return "w" if writers < 2 else "s"


class _Decoder:
    """Feed bytes in any cut, iterate over the whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[MuxType, int, bytes]]:
        self._buffer += data
        at = 0
        try:
            while len(self._buffer) - at >= _HEAD.size:
                size, kind, tunnel_id = _HEAD.unpack_from(self._buffer, at)
                if not 5 <= size <= frames.MAX_FRAME_BYTES:
                    raise frames.ProtocolError(f"a frame of {size} bytes")
                if len(self._buffer) - at < size + 4:
                    return
                body = bytes(self._buffer[at + _HEAD.size : at + size + 4])
                at += size + 4
                try:
                    yield MuxType(kind), tunnel_id, body
                except ValueError:
                    raise frames.ProtocolError(f"a frame of unknown type {kind}") from None
        finally:
            del self._buffer[:at]


class MuxConnector:
    """Connections over a stream that is opened when it is needed, and again when it has broken."""

    def __init__(self, open_stream: Callable[[], Awaitable[ByteStream]]) -> None:
        self._open_stream = open_stream
        self._mux: Mux | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def ready(self) -> Mux:
        """The stream's mux, which answers. Raises `SandboxDied`."""
        async with self._opening:
            if self._closed:
                raise SandboxDied("the stream to the sandbox was closed")
            if self._mux is None or self._mux.closed:
                if self._mux is not None:
                    await self._mux.close()
                mux = Mux(await self._open_stream())
                try:
                    await mux.hello()
                except BaseException:  # a cancellation, too, must not leave a stream
                    await mux.close()
                    raise
                self._mux = mux
            return self._mux

    def __call__(self) -> socket.socket:
        if self._mux is None:
            raise ConnectionResetError("the stream to the helper is not open")
        return self._mux.connect()

    async def close(self) -> None:
        self._closed = True
        if self._mux is not None:
            await self._mux.close()
