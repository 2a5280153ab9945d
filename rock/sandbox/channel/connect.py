"""Ways to reach a helper, and the certainty that it is the helper that was reached."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rock.sandbox.channel.pulse import Signs, signs_of

_PEER = struct.Struct("iII")
"""`struct ucred`: pid, uid, gid."""


@contextmanager
def address_of(path: Path) -> Generator[str]:
    """The address of the unix socket at `path`, which may be longer than an address can be."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class Connector(Protocol):
    """Makes a new connection to the helper: a non-blocking stream socket, owned by the caller."""

    def __call__(self) -> socket.socket:
        """Raises `OSError` when the helper is gone, `BlockingIOError` when it has no room yet."""
        ...


class PathConnector:
    """Connects to the listening unix socket at `path`.

    Whoever may write to its directory can put another socket, or a link to one, in its place: a
    command that is root inside, or has the id of the harness. So only the process that answered first,
    or that `helper_pid` names, is spoken to; a number of this process's pid namespace, where one that
    cannot be seen is 0.
    """

    def __init__(self, path: Path, helper_pid: int | None = None) -> None:
        self._path = path
        self.helper_pid = helper_pid

    def __call__(self) -> socket.socket:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with address_of(self._path) as address:
                conn.connect(address)
            self._check_peer(conn)
        except OSError:
            conn.close()
            raise
        return conn

    def signs(self) -> Signs | None:
        """Of the helper's process, if this one can see it."""
        return signs_of(self.helper_pid) if self.helper_pid else None

    def _check_peer(self, conn: socket.socket) -> None:
        """The kernel tells who called `listen`, in whatever directory the socket now is."""
        found = conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid: int = _PEER.unpack(found)[0]
        if self.helper_pid is None:
            self.helper_pid = pid
        elif pid != self.helper_pid:
            raise PermissionError(errno.EPERM, "another process listens in the helper's place")


def connect_by_control(control: socket.socket) -> Connector:
    """A connector that passes one end of a new socket pair over the helper's control socket."""

    def connect() -> socket.socket:
        near, far = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            socket.send_fds(control, [b"c"], [far.fileno()])
        except OSError:
            near.close()
            raise
        finally:
            far.close()
        return near

    return connect
