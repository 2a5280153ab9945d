"""A file that hands on what is written to it, so that no format holds a whole file in memory."""

from __future__ import annotations

import io
from typing import Any


class Sink(io.RawIOBase):
    """Write-only and not seekable; `take` gives what came since the last time."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any, /) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data
