"""Lending listening sockets over attach.sock: real sockets, a descriptor really passed."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rock.errors import BadRequest, NotFound, RockError, ServiceUnavailable
from rock.modelservice.planes.attach import Attachment, AttachPoint, reachable
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening, url_of
from rock.modelservice.planes.plane import Reply, Request


@asynccontextmanager
async def say_session(listener: socket.socket, session_id: str) -> AsyncGenerator[None, None]:
    """Answers every request with the session's id; knows all sessions but one."""
    if session_id == "unknown":
        listener.close()
        raise NotFound("no such session")

    async def handle(request: Request) -> Reply:
        return Reply(200, json.dumps([session_id, request.path]).encode())

    def refuse(exc: RockError) -> Reply:
        return Reply(exc.status, exc.message.encode())

    async with listening(listener, Adapter(handle, refuse, Bounds(max_body_bytes=1000))):
        yield


def lend() -> socket.socket:
    listener = bind("127.0.0.1", 0)
    listener.listen()
    return listener


async def ask(listener: socket.socket) -> object:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
        http.get(url_of(listener) + "/x") as reply,
    ):
        return await reply.json()


async def test_a_lent_listener_is_served_for_its_session_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "attach.sock"
    with lend() as listener:
        async with AttachPoint(say_session).open(path):
            assert path.stat().st_mode & 0o777 == 0o600
            async with Attachment(path, listener, "s1"):
                assert await ask(listener) == ["s1", "/x"]
            async with Attachment(path, listener, "s2"):
                assert await ask(listener) == ["s2", "/x"]
        assert not path.exists()


async def test_the_service_can_end_an_attachment(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    open_sessions = {"s1"}

    @asynccontextmanager
    async def say_open_session(listener: socket.socket, name: str) -> AsyncGenerator[None, None]:
        async with say_session(listener, name if name in open_sessions else "unknown"):
            yield

    point = AttachPoint(say_open_session)
    with lend() as listener:
        async with point.open(path), Attachment(path, listener, "s1") as attachment:
            before = open_descriptors()
            open_sessions.clear()
            await point.detach("s1")
            await attachment.ended()
            assert open_descriptors() < before
            await point.detach("s1")


async def test_a_restarted_service_gets_the_listener_back_and_no_agent_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "attach.sock"
    with lend() as listener:
        point = AttachPoint(say_session)
        async with left_by_its_service(point, path, listener) as attachment:
            waiting = asyncio.ensure_future(ask(listener))
            async with AttachPoint(say_session).open(path):
                assert await waiting == ["s1", "/x"]
                await attachment.close()


@asynccontextmanager
async def left_by_its_service(
    point: AttachPoint, path: Path, listener: socket.socket
) -> AsyncGenerator[Attachment, None]:
    """An attachment whose first service is gone already."""
    async with point.open(path):
        attachment = await Attachment(path, listener, "s1").__aenter__()
        assert await ask(listener) == ["s1", "/x"]
    try:
        yield attachment
    finally:
        await attachment.close()


async def test_what_cannot_be_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "attach.sock"
    async with AttachPoint(say_session).open(path):
        with lend() as listener, pytest.raises(NotFound, match="no such session"):
            await Attachment(path, listener, "unknown").__aenter__()
        with bind("127.0.0.1", 0) as silent, pytest.raises(BadRequest, match="not a listening"):
            await Attachment(path, silent, "s1").__aenter__()
    with lend() as listener, pytest.raises(ServiceUnavailable, match=r"attach\.sock"):
        await Attachment(path, listener, "s1", retry_seconds=0.1).__aenter__()


@pytest.mark.parametrize("line", [b"{}\n", b"nonsense\n", b'{"session_id": 3}\n', b"x" * 5000])
async def test_a_malformed_line_is_answered_and_descriptors_do_not_pile_up(
    tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "attach.sock"
    async with AttachPoint(say_session).open(path):
        before = open_descriptors()
        with lend() as listener:
            reply = await asyncio.to_thread(raw_talk, path, line, listener.fileno())
        assert json.loads(reply)["error"]["code"] == "invalid_request"
        assert open_descriptors() == before


def raw_talk(path: Path, line: bytes, fd: int) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection, reachable(path) as name:
        connection.settimeout(5)
        connection.connect(name)
        socket.send_fds(connection, [line], [fd])
        with connection.makefile("rb") as replies:
            reply = replies.readline()
            assert replies.read() == b""
            return reply


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_deep_state_directory_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    with lend() as listener:
        async with (
            AttachPoint(say_session).open(folder / "attach.sock"),
            Attachment(folder / "attach.sock", listener, "s1"),
        ):
            assert await ask(listener) == ["s1", "/x"]
