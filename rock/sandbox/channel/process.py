"""`Process` on one execution: a command that goes on while its caller does something else."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from rock.errors import CommandRefused
from rock.sandbox.channel import frames
from rock.sandbox.channel.execution import Executed, Execution, OutputPipe
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.command import ExecResult, Kept, Output, Process, StreamName, TerminalSize
from rock.sandbox.ending import to_the_end

_WINDOW_BYTES = 256 * 1024
"""What a reader of `events` may be behind before the command has to wait."""
_STREAMS: tuple[StreamName, StreamName] = ("stdout", "stderr")


class ChannelProcess(Process):
    """A running command. `result_of` knows how to read its end; `bound_seconds` ends the waiting."""

    def __init__(
        self,
        process_id: str,
        argv: tuple[bytes, ...],
        pid: int,
        execution: Execution,
        *,
        streamed: bool,
        bound_seconds: float,
        result_of: Callable[[Executed, float, bool], Awaitable[ExecResult]],
    ) -> None:
        self.id = process_id
        self.argv = argv
        self.pid = pid
        self._execution = execution
        self._bound_seconds = bound_seconds
        self._result_of = result_of
        self._started = time.monotonic()
        self._killed = False
        self._streamed = streamed
        self._events: deque[Output] = deque()
        self._pending_bytes = 0
        self._more = asyncio.Event()
        self._ended: asyncio.Task[ExecResult] = asyncio.ensure_future(self._finish())
        if streamed:
            for stream, pipe in enumerate(self._pipes):
                pipe.sink = self._sink(stream)
                pipe.resume()

    @property
    def running(self) -> bool:
        return not self._ended.done()

    @property
    def _pipes(self) -> tuple[OutputPipe, OutputPipe]:
        return self._execution.stdout, self._execution.stderr

    def _sink(self, stream: int) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            self._execution.keep(stream, data)
            self._events.append(Output(_STREAMS[stream], data))
            self._pending_bytes += len(data)
            self._more.set()
            if self._pending_bytes > _WINDOW_BYTES:
                for pipe in self._pipes:
                    pipe.pause()

        return take

    async def _finish(self) -> ExecResult:
        try:
            executed = await self._execution.finish(self._bound_seconds)
        finally:
            self._execution.close()
            self._more.set()
        return await self._result_of(executed, time.monotonic() - self._started, self._killed)

    async def events(self) -> AsyncIterator[Output]:
        if not self._streamed:
            raise CommandRefused("events: this process was not started with streamed=True")
        while True:
            while self._events:
                output = self._events.popleft()
                self._pending_bytes -= len(output.data)
                if self._pending_bytes < _WINDOW_BYTES // 2:
                    for pipe in self._pipes:
                        pipe.resume()
                yield output
            if self._ended.done() or all(pipe.ended.is_set() for pipe in self._pipes):
                return
            self._more.clear()
            await self._next()

    async def _next(self) -> None:
        """Until there is an event, or there will be none any more."""
        waits = [asyncio.ensure_future(self._more.wait()), asyncio.ensure_future(self._closed())]
        try:
            await asyncio.wait([*waits, self._ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _closed(self) -> None:
        for pipe in self._pipes:
            await pipe.ended.wait()

    def so_far(self) -> Kept:
        return Kept(**self._execution.captures.fields())

    async def write(self, data: bytes) -> None:
        if self._execution.stdin is None:
            raise CommandRefused("write: this process was not started with stdin=None")
        self._execution.stdin.feed(data)
        await self._execution.stdin.wait_for_room()

    async def close_stdin(self) -> None:
        if self._execution.stdin is not None:
            self._execution.stdin.finish()

    async def signal(self, number: int) -> None:
        if not 1 <= number <= 64:
            raise CommandRefused(f"signal: got {number}, expected a number from 1 to 64")
        await self._execution.send(FrameType.SIGNAL, frames.u32(number))

    async def resize(self, size: TerminalSize) -> None:
        body = frames.u32(size.rows) + frames.u32(size.columns)
        await self._execution.send(FrameType.RESIZE, body)

    async def kill(self) -> ExecResult:
        if self.running:
            await to_the_end(self._kill())
        return await self.wait()

    async def _kill(self) -> None:
        self._killed = True
        self._drop_events()
        await self._execution.send(FrameType.KILL)
        await asyncio.wait([self._ended])

    def _drop_events(self) -> None:
        """Nobody will read them: what the command still writes is only counted."""
        for stream, pipe in enumerate(self._pipes):
            pipe.sink = self._keeping(stream)
            pipe.resume()

    def _keeping(self, stream: int) -> Callable[[bytes], None]:
        return lambda data: self._execution.keep(stream, data)

    async def wait(self) -> ExecResult:
        return await asyncio.shield(self._ended)
