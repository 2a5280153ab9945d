"""One command over one connection: its pipes are drained, bounded and timed; nothing is decoded.

The pipes are ours and the helper gets the far ends, so output does not pass through it. What is read
goes to a sink. Reading stops only where a sink asks for it: then the pipe fills and the command waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rock.sandbox.channel import frames
from rock.sandbox.channel.capture import Captures
from rock.sandbox.channel.frames import Frame, FrameType

_READ_BYTES = 64 * 1024
"""A pipe holds no more."""
_END_OF_OUTPUT_SECONDS = 1.0
"""How long output may still come after everything that could write it has ended."""
_INPUT_WINDOW_BYTES = 256 * 1024
Sink = Callable[[bytes], None]
Tap = Callable[[int, bytes], None]
"""Sees what comes of stdout (0) and stderr (1) as it comes."""


@dataclass(frozen=True, slots=True)
class Executed:
    """What came of a command. `reply` is None when the helper went away or did not answer in time."""

    reply: Frame | None
    over_limit: bool
    output: Captures


class OutputPipe:
    """The reading end of one pipe of a command."""

    def __init__(self, sink: Sink) -> None:
        self._fd, self.far_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self.sink = sink
        self.ended = asyncio.Event()
        self.paused = False
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> bool:
        """True if there was something."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self.sink(data)
        else:
            self.close()
        return bool(data)

    def read_all_there_is(self) -> None:
        """What the command wrote before now is with the sink when this returns."""
        while self._fd >= 0 and self._read():
            pass

    def pause(self) -> None:
        if not self.paused and self._fd >= 0:
            self.paused = True
            asyncio.get_running_loop().remove_reader(self._fd)

    def resume(self) -> None:
        if self.paused and self._fd >= 0:
            self.paused = False
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def close(self) -> None:
        if self._fd >= 0:
            if not self.paused:
                asyncio.get_running_loop().remove_reader(self._fd)
            self.paused = False
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def close_far_end(self) -> None:
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1


class InputPipe:
    """The writing end of stdin. A command that does not read it to the end is no error."""

    def __init__(self) -> None:
        self.far_end, self._fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        self._left = bytearray()
        self._writing = False
        self._last = False
        self._room = asyncio.Event()
        self._room.set()

    def feed(self, data: bytes) -> None:
        if self._fd < 0 or self._last or not data:
            return
        self._left += data
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().add_writer(self._fd, self._write)
        if len(self._left) > _INPUT_WINDOW_BYTES:
            self._room.clear()

    async def wait_for_room(self) -> None:
        await self._room.wait()

    def finish(self) -> None:
        """What was fed is still written; then the command sees the end."""
        self._last = True
        if not self._writing:
            self.close()

    def _write(self) -> None:
        try:
            with memoryview(self._left) as view:
                done = os.write(self._fd, view[: 1024 * 1024])
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        del self._left[:done]
        if len(self._left) <= _INPUT_WINDOW_BYTES:
            self._room.set()
        if not self._left:
            asyncio.get_running_loop().remove_writer(self._fd)
            self._writing = False
            if self._last:
                self.close()

    def close(self) -> None:
        if self._fd >= 0:
            if self._writing:
                asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._left.clear()
            self._room.set()

    def close_far_end(self) -> None:
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1


AnyPipe = TypeVar("AnyPipe", InputPipe, OutputPipe)


class _Replies:
    """The frames that the helper sends: perhaps STARTED, then the last one; None is the end."""

    def __init__(self, conn: socket.socket) -> None:
        self._conn = conn
        self._decoder = frames.Decoder()
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[Frame | None] = loop.create_future()
        self.last: asyncio.Future[Frame | None] = loop.create_future()
        loop.add_reader(conn, self.read)

    def read(self) -> None:
        try:
            data = self._conn.recv(65536)
            for frame in self._decoder.feed(data):
                self._take(frame)
        except BlockingIOError:
            return
        except (OSError, frames.ProtocolError):
            data = b""
        if not data:
            self._take(None)

    def _take(self, frame: Frame | None) -> None:
        if not self.started.done():
            self.started.set_result(frame)
        if frame is not None and frame.type is FrameType.STARTED:
            return
        self.close()
        if not self.last.done():
            self.last.set_result(frame)

    def give_up(self) -> None:
        if not self.last.done():
            self._take(None)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._conn)


class Execution:
    """A command that the helper runs for us. Owns `conn`; `close` ends the command if it still runs.

    `stdin` None means that it will be fed. `kill_over_bytes` ends the command when a stream is longer.
    `held` output is read once somebody resumes its pipes. `tap` sees all that is kept or counted.
    """

    def __init__(
        self,
        conn: socket.socket,
        *,
        kept_bytes: int,
        kill_over_bytes: int | None = None,
        stdin: bytes | None = b"",
        status: Sink | None = None,
        held: bool = False,
        tap: Tap | None = None,
    ) -> None:
        self._conn = conn
        self._tap = tap
        self._kill_over_bytes = kill_over_bytes
        self._over_limit = asyncio.Event()
        self._replies: _Replies | None = None
        self._sending = asyncio.Lock()
        self._closed = False
        self.on_close: Callable[[], None] = lambda: None
        self.captures = Captures(kept_bytes)
        with contextlib.ExitStack() as made:  # if there is no descriptor left, none is lost

            def kept(pipe: AnyPipe) -> AnyPipe:
                made.callback(pipe.close)
                made.callback(pipe.close_far_end)
                return pipe

            self.stdin = kept(InputPipe()) if stdin is None or stdin else None
            self.stdout = kept(OutputPipe(lambda data: self.keep(0, data)))
            self.stderr = kept(OutputPipe(lambda data: self.keep(1, data)))
            self.status = None if status is None else kept(OutputPipe(status))
            made.pop_all()
        if held:
            self.stdout.pause()
            self.stderr.pause()
        if self.stdin is not None and stdin is not None:
            self.stdin.feed(stdin)
            self.stdin.finish()

    def keep(self, stream: int, data: bytes) -> None:
        """The sink of a command that nobody listens to."""
        capture = self.captures[stream]
        capture.add(data)
        if self._tap is not None:
            self._tap(stream, data)
        if self._kill_over_bytes is not None and capture.total_bytes > self._kill_over_bytes:
            self._over_limit.set()

    @property
    def _pipes(self) -> list[InputPipe | OutputPipe]:
        every = (self.stdin, self.stdout, self.stderr, self.status)
        return [pipe for pipe in every if pipe is not None]

    async def start(self, request: bytes) -> None:
        """Send the encoded EXEC request with our far ends. A helper that is gone is found out later."""
        descriptors = [pipe.far_end for pipe in self._pipes]
        with contextlib.suppress(OSError):
            done = socket.send_fds(self._conn, [request], descriptors)
            if done < len(request):
                rest = memoryview(request)[done:]
                await asyncio.get_running_loop().sock_sendall(self._conn, rest)
        for pipe in self._pipes:
            pipe.close_far_end()
        self._replies = _Replies(self._conn)

    async def started(self, bound_seconds: float) -> Frame | None:
        """STARTED, or whatever came instead of it; None if the helper is gone or too slow."""
        assert self._replies is not None
        try:
            async with asyncio.timeout(bound_seconds):
                return await asyncio.shield(self._replies.started)
        except TimeoutError:
            return None

    async def send(self, kind: FrameType, body: bytes = b"") -> None:
        """Tell the helper something about the command. Nobody is told if it has gone."""
        data = frames.encode(kind, body)
        async with self._sending:
            if not self._closed:
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(self._conn, data)

    async def finish(self, bound_seconds: float) -> Executed:
        """Stay with the command until it is over. `bound_seconds` is for a helper that is silent."""
        reply = await self._last(bound_seconds)
        await self._drain()
        return Executed(reply, self._over_limit.is_set(), self.captures)

    async def _last(self, bound_seconds: float) -> Frame | None:
        assert self._replies is not None
        last = self._replies.last
        if self._kill_over_bytes is None:
            await asyncio.wait((last,), timeout=bound_seconds)
            return last.result() if last.done() else None
        limit = asyncio.ensure_future(self._over_limit.wait())
        try:
            async with asyncio.timeout(bound_seconds):
                await asyncio.wait((last, limit), return_when=asyncio.FIRST_COMPLETED)
                if not last.done():
                    await self.send(FrameType.KILL)
                return await asyncio.shield(last)
        except TimeoutError:
            return None
        finally:
            limit.cancel()

    async def _drain(self) -> None:
        """Read what is left. A descriptor that escaped to another process must not keep us."""
        for pipe in (self.stdout, self.stderr):
            while not pipe.ended.is_set():
                try:
                    async with asyncio.timeout(_END_OF_OUTPUT_SECONDS):
                        await pipe.ended.wait()
                except TimeoutError:
                    if not pipe.paused:  # a reader that takes its time is waited for
                        break

    def lose(self) -> None:
        """The helper does not answer: be over, with what there is."""
        if self._replies is not None:
            self._replies.give_up()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.on_close()
        if self._replies is not None:
            self._replies.close()
        for pipe in self._pipes:
            pipe.close_far_end()
            pipe.close()
        self._conn.close()
