"""Many connections over one stream: pace, order, faults and leaks, on a helper that is a process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock import process
from rock.errors import SandboxDied, SandboxFileError
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.execution import Executed
from rock.sandbox.channel.frames import NO_FLAGS, ExecFlag, ExecRequest, FrameType
from rock.sandbox.channel.mux import ByteStream, MuxConnector
from rock.sandbox.channel.tunnel import WINDOW_BYTES, Tunnel
from rock.sandbox.helper import helper_path
from tests.sandbox.hostile_frames import mux_frame
from tests.sandbox.plain_helper import PATH, ended, until, wait_until_gone


class Pipes:
    """A `rock-init mux` on two pipes."""

    def __init__(self, started: process.Process) -> None:
        assert started.stdin is not None
        assert started.stdout is not None
        self.process = started
        self._in, self._out = started.stdin, started.stdout

    async def read(self) -> bytes:
        return await self._out.read(65536)

    def write(self, data: bytes) -> None:
        self._in.write(data)

    async def close(self) -> None:
        self._in.close()
        await process.stop(self.process)


class Remote:
    """A channel over streams that it opens by itself; remembers them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.streams: list[Pipes] = []
        self.connector = MuxConnector(self.open_stream)
        self.channel = Channel(self.connector)

    async def open_stream(self) -> ByteStream:
        started = await process.start(
            [helper_path(), "mux"],
            env={},
            cwd=self.folder,
            stdin=process.PIPE,  # type: ignore[arg-type]
            stdout=process.PIPE,
        )
        self.streams.append(Pipes(started))
        return self.streams[-1]

    async def run(self, script: str, *, stdin: bytes = b"", kept_bytes: int = 1 << 20) -> Executed:
        request = ExecRequest(
            argv=[b"sh", b"-c", script.encode()],
            env={b"PATH": PATH},
            cwd=os.fsencode(self.folder),
            user=b"",
            timeout_ms=20_000,
            flags=ExecFlag.STDIN if stdin else NO_FLAGS,
        )
        return await self.channel.exec(request, stdin=stdin, kept_bytes=kept_bytes)


@asynccontextmanager
async def remote(folder: Path) -> AsyncGenerator[Remote]:
    made = Remote(folder)
    try:
        yield made
    finally:
        await made.connector.close()


async def test_a_command_is_what_it_is_without_a_stream(tmp_path: Path) -> None:
    async with remote(tmp_path) as helper:
        executed = await helper.run("cat; echo err >&2; exit 3", stdin=b"x" * 1_000_000)
        assert executed.output.stdout.kept == b"x" * 1_000_000
        assert executed.output.stderr.kept == b"err\n"
        assert ended(executed).value == 3


async def test_no_output_is_missing_when_the_result_is_there(tmp_path: Path) -> None:
    """More than the windows hold, many times over, so that an overtaking result would show."""
    async with remote(tmp_path) as helper:
        for _ in range(20):
            executed = await helper.run("head -c 700000 /dev/zero; printf end")
            assert executed.output.stdout.total_bytes == 700_003
            assert executed.output.stdout.kept.endswith(b"end")


async def test_a_command_has_begun_whatever_of_its_output_came_first() -> None:
    """Nobody reads a pipe of what is not known to run yet, and only so much fits into it."""
    near, far = socket.socketpair()
    reading, writing = os.pipe()
    sent = Sent()
    tunnel = Tunnel(1, sent)
    with near, os.fdopen(reading, "rb"):
        tunnel.add(far.detach(), "c")
        tunnel.add(writing, "w")
        tunnel.take(1, bytes(WINDOW_BYTES))
        started = frames.encode(FrameType.STARTED, frames.u32(7))
        tunnel.take(0, started)
        near.setblocking(False)
        assert near.recv(100) == started
        tunnel.take(0, frames.encode(FrameType.RESULT, bytes(18)))
        with pytest.raises(BlockingIOError):
            near.recv(100)
        tunnel.close()
    assert sent.credit[0] == len(started)


class Sent:
    """A carrier that counts what is said to have been passed on, by stream."""

    def __init__(self) -> None:
        self.credit: Counter[int] = Counter()

    def send_credit(self, tunnel_id: int, stream: int, count: int) -> None:
        self.credit[stream] += count

    def send_data(self, tunnel_id: int, stream: int, data: bytes) -> None: ...
    def send_end(self, tunnel_id: int, stream: int) -> None: ...
    def drop(self, tunnel: Tunnel, *, tell: bool) -> None: ...


async def test_one_that_reads_nothing_holds_up_nobody_else(tmp_path: Path) -> None:
    async with remote(tmp_path) as helper:
        request = ExecRequest(
            argv=[b"sh", b"-c", b"exec yes"],
            env={b"PATH": PATH},
            cwd=os.fsencode(tmp_path),
            user=b"",
            timeout_ms=60_000,
            flags=ExecFlag.ANNOUNCE,
        )
        execution, pid = await helper.channel.start(request, kept_bytes=1000, held=True)
        try:
            for _ in range(10):
                assert (
                    await helper.run("head -c 500000 /dev/zero")
                ).output.stdout.total_bytes == 500_000
        finally:
            execution.close()
        await wait_until_gone(pid)


async def test_a_stream_that_breaks_ends_its_commands_and_a_new_one_is_opened(
    tmp_path: Path,
) -> None:
    async with remote(tmp_path) as helper:
        request = ExecRequest(
            argv=[b"sleep", b"300"],
            env={b"PATH": PATH},
            cwd=os.fsencode(tmp_path),
            user=b"",
            timeout_ms=60_000,
            flags=ExecFlag.ANNOUNCE,
        )
        execution, pid = await helper.channel.start(request, kept_bytes=1000)
        helper.streams[0].process.send_signal(signal.SIGKILL)
        executed = await execution.finish(20)
        execution.close()
        assert executed.reply is None
        await wait_until_gone(pid)
        assert (await helper.run("echo again")).output.stdout.kept == b"again\n"
        assert len(helper.streams) == 2


async def test_files_cross_without_descriptors(tmp_path: Path) -> None:
    async with remote(tmp_path) as helper:
        path = os.fsencode(tmp_path / "deep" / "file")
        data = os.urandom(3_000_000)
        await helper.channel.write_file(path, data, mode=0o640, owner=b"")
        assert await helper.channel.read_file(path, max_bytes=1 << 24) == data
        assert (tmp_path / "deep" / "file").stat().st_mode & 0o777 == 0o640
        for attempt in (
            helper.channel.read_file(path, max_bytes=2_999_999),
            helper.channel.read_file(path + b"-missing", max_bytes=10),
            helper.channel.read_file(b"/dev/zero", max_bytes=10),
            helper.channel.write_file(path + b"/below", data, mode=0o600, owner=b""),
        ):
            with pytest.raises(SandboxFileError):
                await attempt
        assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["file"]


async def test_callers_of_a_listener_inside_arrive_here(tmp_path: Path) -> None:
    async with remote(tmp_path) as helper:
        listener = await helper.channel.listen(0)
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        asked: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.read())  # to the end that the caller has sent
            writer.write(b"y" * 1_000_000)
            writer.close()

        server = await asyncio.start_unix_server(serve, sock=listener)
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x" * 1_000_000)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 20)
            writer.close()
            await writer.wait_closed()
        assert (asked, answer) == ([b"x" * 1_000_000], b"y" * 1_000_000)


async def test_calls_leave_no_descriptor_behind(tmp_path: Path) -> None:
    async with remote(tmp_path) as helper:

        async def everything() -> None:
            await asyncio.gather(*(helper.run("cat", stdin=b"x" * 100_000) for _ in range(10)))
            await helper.channel.write_file(
                os.fsencode(tmp_path / "f"), b"x", mode=0o600, owner=b""
            )
            run = asyncio.ensure_future(helper.run("sleep 300"))
            await asyncio.sleep(0)
            run.cancel()
            await asyncio.wait((run,))
            await helper.channel.ping()

        await everything()
        mux = helper.streams[0].process.pid
        before = (_descriptors(os.getpid()), _descriptors(mux))
        for _ in range(10):
            await everything()
        # At most: the first round's cancelled command may not have been over when it was counted.
        await until(
            "every descriptor is closed",
            lambda: _descriptors(os.getpid()) <= before[0] and _descriptors(mux) <= before[1],
        )


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<IBI", 5, ord("O"), 1) + struct.pack("<IBIB", 6, ord("?"), 1, 0),
        struct.pack("<IB", 0, ord("O")),
        struct.pack("<IB", 1 << 31, ord("O")),
        struct.pack("<IB", 1, ord("O")),
        struct.pack("<IBI", 9, ord("O"), 1) + b"wwww" + struct.pack("<IBIB", 6, ord("D"), 1, 9),
        struct.pack("<IBI", 5, ord("O"), 1)
        + struct.pack("<IBIB", 6 + 300_000, ord("D"), 1, 0)
        + b"x" * 300_000,
        struct.pack("<IBI", 5, ord("O"), 1) + struct.pack("<IBIBI", 10, ord("C"), 1, 0, 0xFFFFFFF),
    ],
    ids=["type", "empty", "huge", "short", "stream", "window", "credit"],
)
async def test_a_client_that_does_not_keep_the_protocol_is_left(
    tmp_path: Path, data: bytes
) -> None:
    helper = Remote(tmp_path)
    stream = await helper.open_stream()
    try:
        stream.write(data)
        async with asyncio.timeout(10):
            while await stream.read():
                pass
            assert await helper.streams[0].process.wait() == 0
    finally:
        await stream.close()


async def test_a_helper_that_says_nothing_is_a_dead_sandbox(tmp_path: Path) -> None:
    class Silent:
        async def read(self) -> bytes:
            return b""

        def write(self, data: bytes) -> None: ...
        async def close(self) -> None: ...

    async def open_silent() -> ByteStream:
        return Silent()

    connector = MuxConnector(open_silent)
    with pytest.raises(SandboxDied):
        await Channel(connector).ping()
    await connector.close()


FD_WITHOUT_A_PORT = frames.encode(FrameType.FD, b"\1")
LIES = {
    "a caller by a number of ours": mux_frame("A", 1, frames.u32(1)),
    "more than the window": mux_frame("D", 1, b"\0" + bytes(300_000)),
    "credit without a size": mux_frame("C", 1, b"\0"),
    "a stream there is not": mux_frame("D", 1, b"\x09x"),
    "a listener without a port": mux_frame("D", 1, b"\0" + FD_WITHOUT_A_PORT),
    "no such type": mux_frame("?", 1),
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_has_taken_the_helpers_place_is_a_dead_sandbox(lie: str) -> None:
    """As root inside can do where the helper was put into the container by the engine."""

    class Liar:
        def __init__(self) -> None:
            self.said: asyncio.Queue[bytes] = asyncio.Queue()

        async def read(self) -> bytes:
            return await self.said.get()

        def write(self, data: bytes) -> None:
            if data[4] == ord("h"):
                self.said.put_nowait(mux_frame("h", frames.PROTOCOL_VERSION))
            elif data[4] == ord("D"):
                self.said.put_nowait(LIES[lie])

        async def close(self) -> None: ...

    async def open_liar() -> ByteStream:
        return Liar()

    connector = MuxConnector(open_liar)
    channel = Channel(connector)
    with pytest.raises(SandboxDied):
        await (channel.listen(0) if "listener" in lie else channel.ping())
    await connector.close()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_frames_of_a_helper_have_their_bounds() -> None:
    with pytest.raises(frames.ProtocolError):
        frames.take_u64(b"short")
    with pytest.raises(frames.ProtocolError):
        frames.parse_processes(struct.pack("<I", 1) + b"short")
