"""One HTTP/1.1 connection of a plane: an asyncio protocol that answers what its `reader` reads.

A request is handed to the plane when its head is complete; the body is awaited only by who asks for
it. What the plane makes of it (`plane.Outcome`) is written at once, when it is told to be there, or by
a task. Requests sent ahead are answered in order. A peer that goes away cancels what it waits for. What
is no HTTP is refused in the plane's shape, and logged without what was in it. A reply to a request that was not read to its end is followed by a bounded wait in which
the rest is thrown away, because a connection that is closed with unread data loses the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, cast

from rock.errors import PayloadTooLarge, RockError
from rock.modelservice.planes.adapter import Adapter
from rock.modelservice.planes.heads import CONTINUE, head, stream_head
from rock.modelservice.planes.incoming import Incoming, far_ahead
from rock.modelservice.planes.peers import has_left
from rock.modelservice.planes.plane import EventStream, Outcome, Parked, Reply, Request
from rock.modelservice.planes.reader import RequestReader

log = logging.getLogger(__name__)

LINGER_SECONDS = 10.0


class Connection(asyncio.Protocol):
    """See the module. `peers` is the listener's set of open connections."""

    __slots__ = (
        "_adapter",
        "_busy",
        "_drained",
        "_idle_since",
        "_linger",
        "_loop",
        "_parked",
        "_paused",
        "_peers",
        "_queue",
        "_reader",
        "_rested",
        "_transport",
        "_turning",
        "_unsent",
        "closing",
        "task",
    )

    def __init__(self, adapter: Adapter, peers: set[Connection]) -> None:
        self._adapter = adapter
        self._peers = peers
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(adapter.bounds, self._loop, self._after)
        self._queue = self._reader.queue
        self._drained: asyncio.Future[None] | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._paused = False
        """Nothing is read for now."""
        self.closing = False
        """No further request is taken."""
        self._busy = False
        """The first request of the queue is being answered."""
        self._turning = False
        """`_next` runs, or will: it begins what comes meanwhile."""
        self._parked: Parked | None = None
        """What the first request waits for, if nothing has to run meanwhile."""
        self._unsent: Reply | None = None
        """A reply that is written, of which the peer has not taken enough."""
        self._rested: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        """What answers the first request, if something has to run."""
        self._idle_since = self._loop.time()
        """Since when no request is being answered, whatever else may trickle in."""

    # --- the transport's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._peers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peers.discard(self)
        self._reader.close()
        if self._linger is not None:
            self._linger.cancel()
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            unsent.lost()
        self.resume_writing()
        self.leave()
        self._rest()
        self._queue.clear()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        unsent, self._unsent = self._unsent, None
        if unsent is not None:
            unsent.sent()
            self._finish(self._queue[0])

    def data_received(self, data: bytes) -> None:
        self._turning = True  # not from inside the parser
        self._reader.feed(data)
        self._turning = False
        if not self._busy:
            self._next()
        if self._busy and len(self._queue) > 1 and far_ahead(self._queue):
            self._paused = True
            self._transport.pause_reading()

    # --- requests ---

    def _next(self) -> None:
        """Begin what has come, one after the other, until one request has to wait. Not by recursion:
        one read can bring thousands."""
        if self._turning:
            return
        self._turning = True
        try:
            while self._queue and not self._busy and not self._transport.is_closing():
                first = self._queue[0]
                if first.answered:
                    break
                self._busy = True
                self._settle(first, self._begun(first))
        finally:
            self._turning = False

    def _begun(self, incoming: Incoming) -> Outcome:
        if incoming.bad is not None and not isinstance(incoming.bad, PayloadTooLarge):
            return self._adapter.refusal(incoming.bad)
        request = Request(
            incoming.method,
            incoming.path,
            incoming.headers,
            partial(self._read, incoming),
            incoming.arrived(),
        )
        try:
            return self._adapter.handle(request)
        except Exception as exc:  # noqa: BLE001 - a handler may fail in any way; its peer gets an answer
            return self._refused(exc)

    def _refused(self, exc: Exception) -> Reply:
        if not isinstance(exc, RockError):
            log.error("unexpected error in a handler", exc_info=exc)
            exc = RockError("internal error; see the service's log")
        return self._adapter.refusal(exc)

    def _settle(self, incoming: Incoming, outcome: Outcome) -> None:
        """Answer, or see to it that it will be."""
        if isinstance(outcome, Reply):
            self._answer(incoming, outcome)
        elif isinstance(outcome, Parked):
            incoming.chunks.clear()
            self._parked = outcome
            outcome.start(self._ready)
        else:
            self.task = self._loop.create_task(self._serve(incoming, outcome))
            # It may be cancelled before its first step.
            self.task.add_done_callback(lambda _: outcome.close())

    def _ready(self) -> None:
        """What the request was parked for has come. Whoever says so has others to tell: nothing is
        raised."""
        parked, self._parked = self._parked, None
        if parked is None:
            return
        try:
            reply = parked.reply()
        except Exception as exc:  # noqa: BLE001 - as in `_begun`
            reply = self._refused(exc)
        try:
            self._answer(self._queue[0], reply)
        except Exception:
            log.exception("unexpected error in a reply")
            self._transport.abort()

    def _answer(self, incoming: Incoming, reply: Reply) -> None:
        """Write a reply and go on, or wait until the peer takes it: see `resume_writing`."""
        if self._transport.is_closing():
            reply.lost()
        else:
            try:
                data = self._bytes_of(incoming, reply)
            except Exception as exc:  # noqa: BLE001 - the handler's fault; it must not stay unheard
                self._unwritable(reply, exc)
                return
            self._transport.write(data)
            if self._drained is not None:
                self._unsent = reply
                return
            reply.sent()
        self._finish(incoming)

    def _unwritable(self, reply: Reply | EventStream, exc: Exception) -> None:
        reply.lost()
        log.error("a reply could not be written: %s", type(exc).__name__)
        self._transport.abort()  # or its reader would wait for the rest for ever

    async def _serve(
        self, incoming: Incoming, coming: Coroutine[Any, Any, Reply | Parked | EventStream]
    ) -> None:
        try:
            outcome = await coming
        except Exception as exc:  # noqa: BLE001 - as in `_begun`
            outcome = self._refused(exc)
        if isinstance(outcome, EventStream):
            await self._stream(incoming, outcome)
            self.task = None
            self._finish(incoming)
        else:
            self.task = None
            self._settle(incoming, outcome)

    async def _stream(self, incoming: Incoming, reply: EventStream) -> None:
        """Write it, and tell it how that went."""
        try:
            await self._write_stream(incoming, reply)
        except ConnectionError:
            reply.lost()
        except Exception as exc:
            self._unwritable(reply, exc)
            raise
        except BaseException:
            reply.lost()
            raise
        else:
            reply.sent()

    async def _read(self, incoming: Incoming) -> bytes:
        """The whole body. Raises PayloadTooLarge, BodyTimeout, BadRequest."""
        if not incoming.complete and incoming.bad is None:
            if incoming.headers.get("expect", "").lower() == "100-continue" and not incoming.size:
                self._transport.write(CONTINUE)
            await incoming.wait(self._adapter.bounds.body_seconds)
        if incoming.bad is not None:
            raise incoming.bad.again()
        return incoming.unpacked(self._adapter.bounds.max_body_bytes)

    def _finish(self, incoming: Incoming) -> None:
        """The reply is written; go on, or close."""
        self._busy = False
        if self._rested is not None:
            self._rest()
        incoming.answered = True
        incoming.chunks.clear()
        if self._transport.is_closing():
            return
        if incoming.complete:
            self._queue.popleft()
            self._after(incoming)
            return
        if not incoming.keep_alive:
            self._reader.deaf = True
            with contextlib.suppress(OSError, NotImplementedError):
                self._transport.write_eof()
        self._linger = self._loop.call_later(LINGER_SECONDS, self._transport.close)

    def _after(self, incoming: Incoming) -> None:
        """A request was answered and is over."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if not incoming.keep_alive or self.closing:
            self._transport.close()
            return
        self._idle_since = self._loop.time()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._next()

    # --- replies ---

    def _bytes_of(self, incoming: Incoming, reply: Reply) -> bytes:
        last = isinstance(incoming.bad, PayloadTooLarge) or self.closing
        if last or (reply.headers and reply.headers.get("Connection") == "close"):
            incoming.keep_alive = False
        start = head(reply, incoming.keep_alive)
        return start if incoming.method == "HEAD" else start + reply.body

    async def _write_stream(self, incoming: Incoming, reply: EventStream) -> None:
        if isinstance(incoming.bad, PayloadTooLarge) or self.closing:
            incoming.keep_alive = False
        chunked = incoming.version == "1.1"
        async with contextlib.aclosing(reply.frames) as frames:
            await self._send(stream_head(incoming.keep_alive, chunked))
            async for frame in frames:
                await self._send(b"%x\r\n%b\r\n" % (len(frame), frame) if chunked else frame)
            if chunked:
                await self._send(b"0\r\n\r\n")

    async def _send(self, data: bytes) -> None:
        """Raises ConnectionError if the other side is gone."""
        if self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)
        if self._drained is not None:
            await asyncio.shield(self._drained)
            if self._transport.is_closing():
                raise ConnectionResetError("the connection was closed before all was written")

    # --- the listener's side ---

    def close_if_idle(self) -> None:
        """Take no further request; close now if none is being answered."""
        self.closing = True
        if not self._busy:
            self._transport.close()

    def at_rest(self) -> asyncio.Future[None]:
        """Done when no request is being answered."""
        if self._rested is None:
            self._rested = self._loop.create_future()
            if not self._busy:
                self._rested.set_result(None)
        return self._rested

    def _rest(self) -> None:
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)

    def leave(self) -> None:
        """End what answers a request: nobody will read it."""
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.left()
        task, self.task = self.task, None  # or its traceback and this would keep each other
        if task is not None:
            task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float, *, keep_seconds: float) -> None:
        """Close a connection whose head does not come, that never asked, was idle too long or is left."""
        head_seconds = self._adapter.bounds.body_seconds
        if self._reader.head_is_late(now, head_seconds) or has_left(self._transport):
            self._transport.abort()
        elif not self._busy:
            bound = keep_seconds if self._reader.asked else head_seconds
            if now - self._idle_since > bound:
                self._transport.close()
