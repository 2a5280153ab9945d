"""docker-py over a unix socket without its leak: each try at an engine that is away held a descriptor
until the next garbage collection."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import cast

import docker
from docker.transport.unixconn import (
    UnixHTTPAdapter,
    UnixHTTPConnection,
    UnixHTTPConnectionPool,
)

_ANY = "http+docker://localhost"


class _Connection(UnixHTTPConnection):
    def connect(self) -> None:
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(self.timeout)
            conn.connect(self.unix_socket)
        except BaseException:
            conn.close()
            raise
        self.sock = conn


class _Pool(UnixHTTPConnectionPool):
    def _new_conn(self) -> _Connection:  # pyright: ignore[reportIncompatibleMethodOverride] (types-docker has no constants)
        return _Connection(self.base_url, self.socket_path, cast(int, self.timeout))


class _Adapter(UnixHTTPAdapter):
    """One pool of connections for every call; docker-py's own has one for each address."""

    def __init__(self, path: str, seconds: int, connections: int) -> None:
        super().__init__(path, seconds)
        self._pool = _Pool(_ANY, path, seconds, maxsize=connections)

    def get_connection(
        self, url: bytes | str, proxies: Mapping[str, str] | None = None
    ) -> UnixHTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def use_socket(client: docker.APIClient, path: str, connections: int) -> None:
    """Have a client, which has made no call yet, speak to `path` by these connections."""
    client.mount("http+docker://", _Adapter(path, client.timeout, connections))
