"""The helper of a container over one stream through the engine: an exec of `rock-init mux`.

The engine frames what the program writes: u8 which output, 3 bytes of nothing, u32 size, big-endian.
What is sent to the program is not framed.
"""

from __future__ import annotations

import asyncio
import struct

from rock.sandbox.docker.container import HELPER_TARGET
from rock.sandbox.docker.engine import Engine

_HEAD = struct.Struct(">BxxxI")
_STDOUT = 1


class EngineStream:
    """A `mux.ByteStream` on the socket of an exec."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left = 0

    async def read(self) -> bytes:
        while not self._left:
            try:
                head = await self._reader.readexactly(_HEAD.size)
            except asyncio.IncompleteReadError:
                return b""
            output, size = _HEAD.unpack(head)
            if output == _STDOUT:
                self._left = size
            else:
                await self._reader.readexactly(size)
        data = await self._reader.read(self._left)
        self._left -= len(data)
        return data

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return  # the engine closed it first


async def open_stream(engine: Engine, container: str) -> EngineStream:
    """Raises what `Engine.attach` does."""
    conn = await engine.attach(container, [HELPER_TARGET, "mux"])
    try:
        reader, writer = await asyncio.open_connection(sock=conn)
    except BaseException:  # a cancellation, too, must not leave a socket
        conn.close()
        raise
    return EngineStream(reader, writer)
