"""Network rules and the proxy's reading of requests: pure, without a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from rock.errors import ConfigError
from rock.sandbox.box.egress import Egress
from rock.sandbox.network import Network, NetworkMode, check_hosts

LISTED = Network(NetworkMode.ALLOWLIST, ("pypi.org", "*.Example.com", "git.x.org:8443", "10.0.0.1"))


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("pypi.org", 443, True),
        ("PyPI.org", 80, True),
        ("pypi.org", 22, False),
        ("files.pypi.org", 443, False),
        ("evilpypi.org", 443, False),
        ("a.example.com", 443, True),
        ("a.b.example.com", 80, True),
        ("example.com", 443, False),
        ("badexample.com", 443, False),
        ("git.x.org", 8443, True),
        ("git.x.org", 443, False),
        ("10.0.0.1", 80, True),
        ("10.0.0.2", 80, False),
    ],
)
def test_a_list_means_names_and_ports(host: str, port: int, allowed: bool) -> None:
    assert LISTED.allows(host, port) is allowed


def test_other_modes_do_not_look_at_hosts() -> None:
    for mode in (NetworkMode.NONE, NetworkMode.MODEL):
        assert not Network(mode, ("pypi.org",)).allows("pypi.org", 443)
    assert Network(NetworkMode.FULL).allows("anything.example", 1)


@pytest.mark.parametrize("bad", ["", "*", "http://x", "a b", "x.org:ssh", "*.*.org"])
def test_what_is_no_host_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        check_hosts("allowed_hosts", (bad,))


async def ask(request: bytes, network: Network) -> bytes:
    """What the proxy answers to the raw bytes of one client."""
    egress = Egress(network)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await egress.serve(listener)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return answer
    finally:
        await egress.close()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"CONNECT pypi.org HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT pypi.org:0 HTTP/1.1\r\n\r\n", b"400"),
        (b"CONNECT pypi.org:22 HTTP/1.1\r\n\r\n", b"403"),
        (b"GET http://elsewhere.org/ HTTP/1.1\r\n\r\n", b"403"),
        (b"GET https://pypi.org/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://pypi.org@elsewhere.org/ HTTP/1.1\r\n\r\n", b"403"),
        (b"\xff\xfe GET\r\n\r\n", b"400"),
    ],
)
async def test_what_is_not_allowed_has_an_answer(request_bytes: bytes, status: bytes) -> None:
    answer = await ask(request_bytes, LISTED)
    assert answer.split()[1] == status, answer


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "169.254.169.254", "[::1]"])
async def test_full_never_means_this_machine_or_its_private_networks(host: str) -> None:
    request = f"CONNECT {host}:80 HTTP/1.1\r\n\r\n".encode()
    answer = await ask(request, Network(NetworkMode.FULL))
    assert answer.split()[1] == b"502", answer


async def test_a_name_on_the_list_does_not_open_a_private_address() -> None:
    """Whoever owns the name could point it at the harness's machine."""
    network = Network(NetworkMode.ALLOWLIST, ("localhost",))
    answer = await ask(b"CONNECT localhost:80 HTTP/1.1\r\n\r\n", network)
    assert answer.split()[1] == b"502", answer


async def test_a_client_that_says_nothing_or_too_much_ends_quietly() -> None:
    assert await ask(b"", LISTED) == b""
    with contextlib.suppress(ConnectionError):  # cut while it still speaks
        assert await ask(b"GET " + b"x" * 200_000, LISTED) == b""
