"""One connection of a `mux` on this side: its descriptors, pumped at the pace that both sides allow.

Stream 0 is the connection itself, the others are the pipes that it brought. What is ordered (the
connection after STARTED, and a shell's status) is passed on only when nothing of the other pipes is pending.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Protocol

from rock.sandbox.channel import frames

WINDOW_BYTES = 256 * 1024
"""What may be sent of a stream before the other side says that it has passed some on."""
_READ_BYTES = 64 * 1024


class Carrier(Protocol):
    """What sends for a tunnel, and forgets it."""

    def send_data(self, tunnel_id: int, stream: int, data: bytes) -> None: ...
    def send_end(self, tunnel_id: int, stream: int) -> None: ...
    def send_credit(self, tunnel_id: int, stream: int, count: int) -> None: ...
    def drop(self, tunnel: Tunnel, *, tell: bool) -> None: ...


class Pump:
    """One stream of a connection on this side: a descriptor, and what waits for it or for credit."""

    def __init__(self, fd: int, kind: str) -> None:
        self.fd = fd
        self.kind = kind
        self.credit = WINDOW_BYTES
        self.pending = bytearray()
        self.sent_end = False
        self.got_end = False
        self.reading = False
        self.writing = False

    @property
    def gives(self) -> bool:
        """Whether bytes go from here into the sandbox."""
        return self.kind in "cr"


class Tunnel:
    """One connection: its pumps, and who is told of its bytes if that is not a descriptor."""

    def __init__(self, tunnel_id: int, carrier: Carrier, *, is_raw: bool = False) -> None:
        self.id = tunnel_id
        self.is_raw = is_raw
        self.pumps: list[Pump] = []
        self.closing = False
        self._has_begun = is_raw
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()

    def add(self, fd: int, kind: str) -> Pump:
        os.set_blocking(fd, False)
        pump = Pump(fd, kind)
        self.pumps.append(pump)
        return pump

    def read_all(self) -> None:
        for index, pump in enumerate(self.pumps):
            if pump.gives:
                self.want_reading(index)

    def want_reading(self, index: int) -> None:
        pump = self.pumps[index]
        wanted = pump.fd >= 0 and pump.credit > 0 and not pump.sent_end
        if wanted and not pump.reading:
            self._loop.add_reader(pump.fd, self._read, index)
        elif pump.reading and not wanted:
            self._loop.remove_reader(pump.fd)
        pump.reading = wanted

    def _read(self, index: int) -> None:
        pump = self.pumps[index]
        try:
            data = os.read(pump.fd, min(pump.credit, _READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            pump.credit -= len(data)
            self._carrier.send_data(self.id, index, data)
            self.want_reading(index)
            return
        if index == 0 and not self.is_raw:
            self._carrier.drop(self, tell=True)
            return
        pump.sent_end = True
        self.want_reading(index)
        self._carrier.send_end(self.id, index)

    def take(self, index: int, data: bytes) -> None:
        """Raises `ProtocolError` for more than the other side had credit for."""
        pump = self.pumps[index]
        if len(pump.pending) + len(data) > WINDOW_BYTES:
            raise frames.ProtocolError("more of a stream than there was credit for")
        pump.pending += data
        if index == 0 and not self._has_begun:
            self._has_begun = True
            self._pass_started(pump)
        self.flush()

    def _pass_started(self, pump: Pump) -> None:
        """STARTED goes before what is pending: who waits for it need not read that yet."""
        reply = bytes(pump.pending[: frames.STARTED_BYTES])
        if frames.is_started(reply):
            with contextlib.suppress(OSError):  # then it waits like the rest
                size = os.write(pump.fd, reply)
                del pump.pending[:size]
                self._carrier.send_credit(self.id, 0, size)

    def take_end(self, index: int) -> None:
        self.pumps[index].got_end = True
        self.flush()

    def take_close(self) -> None:
        self.closing = True
        self.flush()

    def flush(self) -> None:
        """Pass on what can be; what is ordered waits until nothing else is pending."""
        waiting = False
        for kinds in ("w", "s", "c"):
            for index, pump in enumerate(self.pumps):
                if pump.kind in kinds and not waiting:
                    self._write(index)
            waiting = waiting or any(pump.pending for pump in self.pumps if pump.kind in kinds)
        if self.closing and not any(pump.pending for pump in self.pumps):
            self._carrier.drop(self, tell=False)

    def _write(self, index: int) -> None:
        pump = self.pumps[index]
        done = 0
        while pump.pending:
            try:
                if pump.fd < 0:
                    size = len(pump.pending)
                else:
                    with memoryview(pump.pending) as view:
                        size = os.write(pump.fd, view)
            except BlockingIOError:
                break
            except OSError:  # nobody reads it any more: it is dropped, and paid for
                size = len(pump.pending)
            del pump.pending[:size]
            done += size
        if done:
            self._carrier.send_credit(self.id, index, done)
        self._want_writing(index)
        if pump.got_end and not pump.pending:
            self._end_of(index)

    def _want_writing(self, index: int) -> None:
        pump = self.pumps[index]
        wanted = pump.fd >= 0 and bool(pump.pending)
        if wanted and not pump.writing:
            self._loop.add_writer(pump.fd, self.flush)
        elif pump.writing and not wanted:
            self._loop.remove_writer(pump.fd)
        pump.writing = wanted

    def _end_of(self, index: int) -> None:
        """Let whoever reads it on this side see the end."""
        pump = self.pumps[index]
        if pump.fd < 0:
            return
        if pump.kind != "c":
            self._close(pump)
        elif self.is_raw:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pump.fd)) as conn:
                conn.shutdown(socket.SHUT_WR)
        else:
            self._close(pump)

    def _close(self, pump: Pump) -> None:
        if pump.fd >= 0:
            if pump.reading:
                self._loop.remove_reader(pump.fd)
            if pump.writing:
                self._loop.remove_writer(pump.fd)
            pump.reading = pump.writing = False
            os.close(pump.fd)
            pump.fd = -1

    def close(self) -> None:
        for pump in self.pumps:
            self._close(pump)
