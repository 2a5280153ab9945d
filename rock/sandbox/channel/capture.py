"""What is kept of a stream of any length: its beginning and its end; the rest is counted. No I/O."""

from __future__ import annotations

from typing import TypedDict


class Capture:
    """Keeps up to `limit_bytes`: everything up to that, else the first and the last half of it."""

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._limit = limit_bytes
        self._tail_bytes = limit_bytes // 2
        self._head_bytes = limit_bytes - self._tail_bytes
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room >= len(data):
            self._head += data
            return
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut now and then only, so that each byte is moved once on average.
        if len(self._tail) > 2 * self._tail_bytes + 64 * 1024:
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def is_over(self) -> bool:
        return self.total_bytes > self._limit

    @property
    def gap(self) -> int | None:
        """Where in `kept` bytes are missing, or None if none are."""
        return len(self._head) if self.is_over else None

    @property
    def kept(self) -> bytes:
        tail = self._tail
        if len(tail) > self._tail_bytes:
            tail = tail[len(tail) - self._tail_bytes :]
        return bytes(self._head) + bytes(tail)


class KeptFields(TypedDict):
    """What every result and `Kept` say of output, under the names they have there."""

    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    stdout_gap: int | None
    stderr_gap: int | None


class Captures:
    """Of the two streams of a command: 0 is stdout, 1 stderr; each keeps up to `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self.stdout, self.stderr = Capture(limit_bytes), Capture(limit_bytes)

    def __getitem__(self, stream: int) -> Capture:
        return (self.stdout, self.stderr)[stream]

    def fields(self) -> KeptFields:
        out, err = self.stdout, self.stderr
        return {
            "stdout": out.kept,
            "stderr": err.kept,
            "stdout_bytes": out.total_bytes,
            "stderr_bytes": err.total_bytes,
            "stdout_gap": out.gap,
            "stderr_gap": err.gap,
        }
