"""One reply from a helper, with the descriptor that may come with it, without blocking the loop."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket

from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import Frame


async def receive(conn: socket.socket) -> tuple[Frame, int]:
    """The next frame and its descriptor, owned by the caller; -1: none. Raises `OSError`."""
    decoder = frames.Decoder()
    descriptors: list[int] = []
    try:
        while True:
            await _readable(conn)
            try:
                data = _receive_some(conn, descriptors)
            except BlockingIOError:
                continue
            if not data:
                raise ConnectionResetError("the helper closed the connection")
            for frame in decoder.feed(data):
                return frame, descriptors.pop() if descriptors else -1
    finally:
        for fd in descriptors:
            os.close(fd)


def _receive_some(conn: socket.socket, descriptors: list[int]) -> bytes:
    """Like `socket.recv_fds`, which loses its flags: what is received must not reach children."""
    room = socket.CMSG_LEN(array.array("i").itemsize)
    data, parts, flags, _ = conn.recvmsg(65536, room, socket.MSG_CMSG_CLOEXEC)
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    for level, kind, content in parts:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.extend(array.array("i", content))
    return data


async def _readable(conn: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    loop.add_reader(conn, wake)
    try:
        await future
    finally:
        loop.remove_reader(conn)
