"""`Channel`: the client of one sandbox's helper. It knows the protocol, not who made the sandbox.

Every request has a connection and, in the sandbox, a process of its own, so none waits for another.
Closing a connection ends what it asked for. A helper that is gone, or does not answer in time, is
`SandboxDied`; what the helper refuses is the error class of the step that failed.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rock.errors import CommandRefused, SandboxDied, SandboxFileError
from rock.sandbox.capacity import own_trouble
from rock.sandbox.channel import frames, transfer
from rock.sandbox.channel.blocking import in_thread, read_descriptor, write_descriptor
from rock.sandbox.channel.connect import Connector
from rock.sandbox.channel.execution import Executed, Execution, Sink, Tap
from rock.sandbox.channel.frames import ExecRequest, Frame, FrameType
from rock.sandbox.channel.mux import MuxConnector, Refused
from rock.sandbox.channel.pulse import UNANSWERED_SECONDS, Looking, Pulse, unseen
from rock.sandbox.channel.refusals import lost, program_of, refused, refused_command, refusing
from rock.sandbox.channel.replies import receive
from rock.sandbox.command import ProcessInfo

KILL_GRACE_SECONDS = 15.0
"""The helper takes up to 10 seconds to end an obstinate command; then it is presumed dead."""
_CALL_SECONDS = 30.0
T = TypeVar("T")


class Channel:
    """Requests to one helper. Safe to use from many tasks of one event loop.

    With a `MuxConnector` nothing is asked of the helper that would make it pass a descriptor.
    """

    def __init__(
        self,
        connect: Connector | MuxConnector,
        *,
        silence_seconds: float = KILL_GRACE_SECONDS,
        unanswered_seconds: float = UNANSWERED_SECONDS,
        looking: Looking = unseen,
    ) -> None:
        """`unanswered_seconds` and `looking` say when a helper counts as dead before that (`pulse`)."""
        self._connector = connect
        self._relay = connect if isinstance(connect, MuxConnector) else None
        self.silence_seconds = silence_seconds
        """How long after a command's own time its end may still come."""
        self._pulse = Pulse(self._answer, unanswered_seconds=unanswered_seconds, looking=looking)

    async def _answer(self) -> None:
        """An answer of the helper's first process, which needs no other one for it."""
        unchanged = frames.u64(0) + frames.u64(0)
        await self.call(FrameType.RENEW, unchanged, "ask for an answer")

    async def ping(self) -> int:
        """The helper's protocol version. Raises `SandboxDied` also for one that we do not speak."""
        frame, _ = await self.call(FrameType.PING, b"", "ping")
        version, _ = frames.take_u32(frame.body, 0)
        if version != frames.PROTOCOL_VERSION:
            raise SandboxDied(f"the helper speaks version {version}, not {frames.PROTOCOL_VERSION}")
        return version

    async def exec(
        self,
        request: ExecRequest,
        *,
        stdin: bytes = b"",
        kept_bytes: int,
        kill_over_bytes: int | None = None,
        tap: Tap | None = None,
    ) -> Executed:
        """Run one command to its end. Raises what `Sandbox.exec` does, except for its results."""
        execution = await self._begin(
            request,
            kept_bytes=kept_bytes,
            kill_over_bytes=kill_over_bytes,
            stdin=stdin,
            tap=tap,
        )
        try:
            executed = await execution.finish(request.timeout_ms / 1000 + self.silence_seconds)
        finally:
            execution.close()
        if executed.reply is not None and executed.reply.type is FrameType.ERROR:
            raise refused_command(request, executed.reply.body)
        return executed

    async def start(
        self,
        request: ExecRequest,
        *,
        kept_bytes: int,
        kill_over_bytes: int | None = None,
        stdin: bytes | None = b"",
        status: Sink | None = None,
        held: bool = False,
        tap: Tap | None = None,
    ) -> tuple[Execution, int]:
        """A command that runs, and its pid in the sandbox; the request must have `ANNOUNCE`."""
        execution = await self._begin(
            request,
            kept_bytes=kept_bytes,
            kill_over_bytes=kill_over_bytes,
            stdin=stdin,
            status=status,
            held=held,
            tap=tap,
        )
        try:
            frame = await execution.started(_CALL_SECONDS)
            if frame is not None and frame.type is FrameType.ERROR:
                raise refused_command(request, frame.body)
            if frame is None or frame.type is not FrameType.STARTED:
                raise SandboxDied(f"{program_of(request)}: the sandbox went before it ran")
            return execution, frames.take_u32(frame.body, 0)[0]
        except BaseException:  # whatever it was, also a cancellation, nothing may be left
            execution.close()
            raise

    async def _begin(
        self,
        request: ExecRequest,
        *,
        kept_bytes: int,
        kill_over_bytes: int | None,
        stdin: bytes | None = b"",
        status: Sink | None = None,
        held: bool = False,
        tap: Tap | None = None,
    ) -> Execution:
        try:
            encoded = frames.encode(FrameType.EXEC, request.encode())
        except ValueError as exc:
            raise CommandRefused(f"{program_of(request)}: {exc}") from exc
        conn = await self._connect()
        try:
            execution = Execution(
                conn,
                kept_bytes=kept_bytes,
                kill_over_bytes=kill_over_bytes,
                stdin=stdin,
                status=status,
                held=held,
                tap=tap,
            )
        except OSError as exc:
            conn.close()
            raise own_trouble(exc, program_of(request)) from exc
        execution.on_close = functools.partial(self._pulse.forget, execution)
        self._pulse.watch(execution)
        try:
            await execution.start(encoded)
        except BaseException:  # a cancellation: the helper ends what it has been told of
            execution.close()
            raise
        return execution

    async def read_file(self, path: bytes, *, max_bytes: int) -> bytes:
        what = f"read {os.fsdecode(path)}"
        if self._relay is not None:
            request = frames.text(path) + frames.u32(1)
            data = await self._transfer(
                lambda conn: transfer.get_file(conn, request, max_bytes, refusing(what))
            )
            return _at_most(data, max_bytes, what)
        fd = await self.open(FrameType.READ, frames.text(path) + frames.u32(0), what)
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise SandboxFileError(f"{what}: it has {size} bytes, the bound is {max_bytes}")
            data = await read_descriptor(fd, size, max_bytes + 1)
        except OSError as exc:
            raise SandboxFileError(f"{what}: {exc.strerror}") from exc
        finally:
            os.close(fd)
        return _at_most(data, max_bytes, what)

    async def write_file(self, path: bytes, data: bytes, *, mode: int, owner: bytes) -> None:
        what = f"write {os.fsdecode(path)}"
        body = frames.text(path) + frames.u32(mode & 0o777) + frames.text(owner)
        if self._relay is not None:
            request = body + frames.u32(1)
            await self._transfer(
                lambda conn: transfer.put_file(conn, request, data, refusing(what))
            )
            return
        body += frames.u32(0)
        conn = await self._connect()
        try:
            _, fd = await self._ask(conn, frames.encode(FrameType.WRITE, body), what)
            try:
                await write_descriptor(fd, data)
            finally:
                os.close(fd)
            await self._ask(conn, frames.encode(FrameType.COMMIT), what)
        except OSError as exc:
            raise SandboxFileError(f"{what}: {exc.strerror}") from exc
        finally:
            conn.close()

    async def make_directory(self, path: bytes, *, mode: int, owner: bytes) -> None:
        """Make a directory and its parents; it gets this mode and owner even if it was there."""
        body = frames.text(path) + frames.u32(mode) + frames.text(owner)
        await self.call(FrameType.MKDIR, body, f"make directory {os.fsdecode(path)}")

    async def upload(self, source: Path, target: bytes, *, owner: bytes) -> None:
        refuse = refusing(f"upload to {os.fsdecode(target)}")
        await self._transfer(lambda conn: transfer.put_tree(conn, source, target, owner, refuse))

    async def download(
        self, source: bytes, target: Path, *, max_bytes: int, max_entries: int
    ) -> None:
        refuse = refusing(f"download {os.fsdecode(source)}")
        await self._transfer(
            lambda conn: transfer.get_tree(
                conn, source, target, max_bytes=max_bytes, max_entries=max_entries, refuse=refuse
            )
        )

    async def listen(self, port: int) -> socket.socket:
        """A listening socket on 127.0.0.1 of the sandbox; non-blocking, owned by the caller."""
        if self._relay is not None:
            mux = await self._relay.ready()
            try:
                return await mux.listen(port)
            except Refused as exc:
                raise refused(
                    frames.parse_refusal(exc.frame.body), f"listen on port {port}"
                ) from exc
        fd = await self.open(FrameType.LISTEN, frames.u32(port), f"listen on port {port}")
        listener = socket.socket(fileno=fd)
        listener.setblocking(False)
        return listener

    async def list_processes(self) -> list[ProcessInfo]:
        frame, _ = await self.call(FrameType.LOOK, b"", "list processes")
        try:
            return frames.parse_processes(frame.body)
        except frames.ProtocolError as exc:
            raise SandboxDied(f"list processes: {exc}") from exc

    async def close(self) -> None:
        """Close what connections share, if they share anything. Ends no sandbox."""
        if self._relay is not None:
            await self._relay.close()

    async def tunnel(self) -> socket.socket:
        """A connection that carries many; whoever owns it speaks as `mux.Mux` does."""
        conn = await self._connect()
        try:
            await asyncio.get_running_loop().sock_sendall(conn, frames.encode(FrameType.MUX))
        except OSError as exc:
            conn.close()
            raise SandboxDied(f"the sandbox is gone: {exc}") from exc
        return conn

    async def _connect(self) -> socket.socket:
        if self._relay is not None:
            await self._relay.ready()
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                while True:
                    try:
                        return self._connector()
                    except BlockingIOError:
                        await asyncio.sleep(0.002)  # the helper's queue of connections is full
        except TimeoutError as exc:
            raise SandboxDied("the sandbox takes no connection") from exc
        except OSError as exc:
            raise lost(exc, "connect to the sandbox") from exc

    async def open(
        self, kind: FrameType, body: bytes, what: str, *, descriptors: Sequence[int] = ()
    ) -> int:
        """The descriptor that answers a request, owned by the caller."""
        _, fd = await self.call(kind, body, what, descriptors=descriptors)
        if fd < 0:
            raise SandboxDied(f"{what}: the helper sent no descriptor")
        return fd

    async def call(
        self, kind: FrameType, body: bytes, what: str, *, descriptors: Sequence[int] = ()
    ) -> tuple[Frame, int]:
        """One request on a connection of its own; the reply and its descriptor (-1: none).

        Raises `SandboxDied`, and the error of what the helper refuses, which is told as `what`.
        """
        conn = await self._connect()
        try:
            return await self._ask(conn, frames.encode(kind, body), what, descriptors)
        finally:
            conn.close()

    async def _ask(
        self, conn: socket.socket, request: bytes, what: str, descriptors: Sequence[int] = ()
    ) -> tuple[Frame, int]:
        """One request, one reply and its descriptor (-1: none). Raises what the reply refuses."""
        fd = -1
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                # The first bytes of a new connection never block; descriptors travel with them.
                done = socket.send_fds(conn, [request], descriptors) if descriptors else 0
                if done < len(request):
                    rest = memoryview(request)[done:]
                    await asyncio.get_running_loop().sock_sendall(conn, rest)
                frame, fd = await receive(conn)
        except TimeoutError as exc:
            raise SandboxDied(f"{what}: no answer in {_CALL_SECONDS:.0f} seconds") from exc
        except OSError as exc:
            raise lost(exc, what) from exc
        if frame.type is FrameType.ERROR:
            raise refused(frames.parse_refusal(frame.body), what)
        if frame.type is FrameType.LOST:
            raise SandboxDied(f"{what}: the helper's process was killed")
        return frame, fd

    async def _transfer(self, work: Callable[[socket.socket], T]) -> T:
        """Run blocking `work` in a thread; cancellation cuts its connection, then waits for it."""
        conn = await self._connect()
        try:
            return await in_thread(
                lambda: work(conn), on_cancel=lambda: conn.shutdown(socket.SHUT_RDWR)
            )
        finally:
            conn.close()


def _at_most(data: bytes, max_bytes: int, what: str) -> bytes:
    if len(data) > max_bytes:
        raise SandboxFileError(f"{what}: it is over {max_bytes} bytes")
    return data
