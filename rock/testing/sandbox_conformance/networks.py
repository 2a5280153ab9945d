"""Checks: what may be reached is what the policy says, from the moment it is said."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rock.errors import ConfigError, NotSupported
from rock.sandbox.base import Sandbox
from rock.sandbox.state import Capability
from rock.testing.sandbox_conformance.isolation import connect
from rock.testing.sandbox_conformance.subject import Subject, Suite, expect, output, sh

CHECKS = Suite()

_ASK = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=15).read().decode(), end="")
except Exception as error:
    print("failed:", error)
"""
_TUNNEL = """
import socket, sys
s = socket.create_connection(("127.0.0.1", 3128), 10)
s.sendall(b"CONNECT %s HTTP/1.1\\r\\n\\r\\n" % sys.argv[1].encode())
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += s.recv(1) or sys.exit("closed")
print(head.split()[1].decode(), flush=True)
if head.split()[1] == b"200":
    s.sendall(b"first\\n"); print(s.recv(100), flush=True)
    open("open", "w").write("yes\\n")
    print(s.recv(100), flush=True)
"""


@asynccontextmanager
async def _host_server() -> AsyncGenerator[int]:
    """An HTTP server of the host, which also echoes lines that are no HTTP; its port on loopback."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            line = await reader.readline()
            if line.startswith(b"GET "):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes")
            else:
                writer.write(line)
                await writer.drain()
                await reader.read()
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=socket.create_server(("127.0.0.1", 0)))
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _ask(box: Sandbox, url: str) -> str:
    result = await box.exec(["python3", "-c", _ASK, url], timeout_seconds=40)
    return result.stdout.decode()


async def _usable(box: Sandbox) -> bool:
    return (
        Capability.NETWORK_ALLOWLIST in box.capabilities
        and (await sh(box, "command -v python3")).ok
    )


@CHECKS
async def an_allowlist_lets_through_what_it_lists_and_nothing_else(subject: Subject) -> None:
    async with _host_server() as port, _host_server() as other:
        hosts = (f"127.0.0.1:{port}",)
        async with await subject.create(network="allowlist", allowed_hosts=hosts) as box:
            if not await _usable(box):
                return
            assert await output(box, "echo $no_proxy") != "\n"
            # For loopback addresses programs do not ask a proxy unless they are told to.
            await box.write_file("ask.py", _ASK.encode())
            for allowed, answer in ((port, "yes"), (other, "failed: HTTP Error 403: Not allowed")):
                asked = f"no_proxy= NO_PROXY= python3 ask.py http://127.0.0.1:{allowed}/"
                said = (await output(box, asked)).strip()
                assert said == answer, said
            assert await connect(box, "127.0.0.1", port) is None
            said = await _ask(box, "http://example.invalid/")
            assert "403" in said, said


@CHECKS
async def a_network_changes_between_the_phases_of_an_episode(subject: Subject) -> None:
    async with _host_server() as port, await subject.create() as box:
        if not await _usable(box):
            return
        where = f"127.0.0.1:{port}"
        assert await connect(box, "127.0.0.1", 3128) is None
        await box.set_network("allowlist", (where,))
        tunnel = ["python3", "-c", _TUNNEL, where]
        running = asyncio.ensure_future(box.exec(tunnel, timeout_seconds=60))
        while b"open" not in (await sh(box, "ls")).stdout:
            assert not running.done(), await running
        await box.set_network("none")
        cut = await running
        assert cut.stdout == b"200\nb'first\\n'\nb''\n", cut
        assert (await box.exec(tunnel, timeout_seconds=60)).stdout == b"403\n"
        assert await output(box, "echo $http_proxy") == "\n"
        await box.set_network("full")
        refused = await box.exec(tunnel, timeout_seconds=60)
        assert refused.stdout == b"502\n", "no policy opens the harness's own machine unasked"
        await box.set_network("allowlist", (where,))
        await box.reset()
        assert (await box.exec(tunnel, timeout_seconds=60)).stdout in (b"403\n", b"")


@CHECKS
async def a_network_that_cannot_be_is_refused_by_field(subject: Subject) -> None:
    for bad in ("http://x.org", "*", "a*b.org", "x.org:http", ""):
        changes = {"network": "allowlist", "allowed_hosts": (bad,)}
        assert "allowed_hosts" in (await expect(ConfigError, subject.create(**changes))).message
    refused = await expect(ConfigError, subject.create(allowed_hosts=("x.org",)))
    assert "allowlist" in refused.message
    async with await subject.create() as box:
        if Capability.NETWORK_ALLOWLIST not in box.capabilities:
            await expect(NotSupported, box.set_network("allowlist", ("x.org",)))
            return
        await expect(ConfigError, box.set_network("allowlist", ("http://x.org",)))
