"""One command over one connection: its pipes are drained, bounded and timed; nothing is decoded.

The pipes are ours and the helper gets the far ends, so output does not pass through it. Reading
never stops before the command is over (a full pipe would stop the command), but only the limit is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass

from rock.sandbox import frames
from rock.sandbox.frames import Frame, FrameType

_READ_BYTES = 64 * 1024
"""A pipe holds no more."""
_END_OF_OUTPUT_SECONDS = 1.0
"""How long output may still come after everything that could write it has ended."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of a command. `reply` is None when the helper went away or did not answer in time."""

    reply: Frame | None
    over_limit: bool
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int


class _Output:
    """The reading end of one output pipe: keeps the first `limit` bytes, counts all."""

    def __init__(self, limit: int, on_over_limit: asyncio.Event) -> None:
        self.fd, self.far_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self.ended = asyncio.Event()
        self.total_bytes = 0
        self.kept = bytearray()
        self._limit = limit
        self._over_limit = on_over_limit
        asyncio.get_running_loop().add_reader(self.fd, self.read)

    def read(self) -> None:
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self.total_bytes += len(data)
        room = self._limit - len(self.kept)
        self.kept += data if len(data) <= room else data[:room]
        if self.total_bytes > self._limit:
            self._over_limit.set()

    def close(self) -> None:
        if self.fd >= 0:
            asyncio.get_running_loop().remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1
            self.ended.set()

    def close_far_end(self) -> None:
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1


class _Input:
    """The writing end of stdin. A command that does not read it to the end is no error."""

    def __init__(self, data: bytes) -> None:
        self.far_end, self.fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        self._left = memoryview(data)
        asyncio.get_running_loop().add_writer(self.fd, self.write)

    def write(self) -> None:
        try:
            done = os.write(self.fd, self._left)
        except BlockingIOError:
            return
        except BrokenPipeError:
            done = len(self._left)
        self._left = self._left[done:]
        if not self._left:
            self.close()

    def close(self) -> None:
        if self.fd >= 0:
            asyncio.get_running_loop().remove_writer(self.fd)
            os.close(self.fd)
            self.fd = -1

    def close_far_end(self) -> None:
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1


class _Reply:
    """The first frame that the helper sends, or None at the end of the connection."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._decoder = frames.Decoder()
        self.future: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(conn, self.read)

    def read(self) -> None:
        try:
            data = self._conn.recv(65536)
            frame = next(iter(self._decoder.feed(data)), None)
        except BlockingIOError:
            return
        except (OSError, frames.ProtocolError):
            data, frame = b"", None
        if frame is not None or not data:
            self.close()
            if not self.future.done():
                self.future.set_result(frame)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._conn)


async def execute(
    conn: socket.socket,
    request: bytes,
    *,
    stdin: bytes,
    output_limit_bytes: int,
    bound_seconds: float,
) -> Executed:
    """Send the encoded EXEC `request` and stay with the command until it is over.

    `bound_seconds` is for a helper that does not answer; the command's own time is the helper's to
    keep. Leaving early (cancellation) closes the connection, upon which the helper ends the command.
    """
    over_limit = asyncio.Event()
    with contextlib.ExitStack() as stack:
        outputs: list[_Output] = []
        far_ends: list[_Input | _Output] = []
        if stdin:
            source = _Input(stdin)
            far_ends.append(source)
            stack.callback(source.close)
            stack.callback(source.close_far_end)
        for _ in range(2):
            output = _Output(output_limit_bytes, over_limit)
            outputs.append(output)
            far_ends.append(output)
            stack.callback(output.close)
            stack.callback(output.close_far_end)
        sent = await _send(conn, request, [end.far_end for end in far_ends])
        for end in far_ends:
            end.close_far_end()
        reply = await _reply(conn, over_limit, bound_seconds) if sent else None
        await _drain(outputs)
        out, err = outputs
        return Executed(
            reply,
            over_limit.is_set(),
            bytes(out.kept),
            bytes(err.kept),
            out.total_bytes,
            err.total_bytes,
        )


async def _send(conn: socket.socket, request: bytes, descriptors: list[int]) -> bool:
    """False if the helper went away before it had the whole request."""
    try:
        done = socket.send_fds(conn, [request], descriptors)
        if done < len(request):
            await asyncio.get_running_loop().sock_sendall(conn, memoryview(request)[done:])
    except OSError:
        return False
    return True


async def _reply(
    conn: socket.socket, over_limit: asyncio.Event, bound_seconds: float
) -> Frame | None:
    reply = _Reply(conn)
    limit = asyncio.ensure_future(over_limit.wait())
    try:
        async with asyncio.timeout(bound_seconds):
            await asyncio.wait((reply.future, limit), return_when=asyncio.FIRST_COMPLETED)
            if not reply.future.done():
                with contextlib.suppress(OSError):  # it is gone: the reply says so
                    conn.send(frames.encode(FrameType.KILL))
            return await reply.future
    except TimeoutError:
        return None
    finally:
        limit.cancel()
        reply.close()


async def _drain(outputs: list[_Output]) -> None:
    """Read what is left. A descriptor that escaped to another process must not keep us."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_OF_OUTPUT_SECONDS):
            for output in outputs:
                await output.ended.wait()
