"""The channel and the helper, on a helper that is an ordinary process: faults, bounds, leaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import stat
import struct
from pathlib import Path

import pytest

from rock import process
from rock.errors import CommandRefused, SandboxDied, SandboxError
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import PathConnector
from rock.sandbox.channel.frames import EndKind, FrameType
from rock.sandbox.helper import helper_path
from tests.sandbox.plain_helper import (
    ended,
    is_running,
    plain_helper,
    read_when_written,
    wait_until_gone,
)


async def test_a_helper_that_is_killed_ends_a_call_with_what_there_was(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        script = "echo before; echo $$ >pid; exec sleep 300"
        run = asyncio.ensure_future(helper.run("sh", "-c", script))
        pid = int(await read_when_written(tmp_path / "pid"))
        for child in _children(helper.process.pid):
            os.kill(child, signal.SIGKILL)
        helper.process.kill()
        executed = await run
        assert executed.output.stdout.kept == b"before\n"
        assert executed.reply is None or executed.reply.type is FrameType.LOST
        with pytest.raises(SandboxDied):
            await helper.channel.ping()
        with contextlib.suppress(ProcessLookupError):  # the helper may have had time for it
            os.kill(pid, signal.SIGKILL)


async def test_a_helper_that_is_told_to_end_takes_every_command_with_it(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        script = "(setsid sh -c 'echo $$ >pid; exec sleep 300' &); sleep 300"
        run = asyncio.ensure_future(helper.run("sh", "-c", script))
        pid = int(await read_when_written(tmp_path / "pid"))
        assert is_running(pid)
        helper.process.terminate()
        assert await helper.process.wait() == 0
        assert not is_running(pid)
        assert not helper.socket.exists()
        await run


async def test_a_helper_ends_with_its_owner(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        fd = theirs.fileno()
        script = 'exec "$0" serve "$1" --control-fd "$2"'
        started = await _start_with_fd(tmp_path, script, fd)
    channel = Channel(PathConnector(tmp_path / "helper.sock"))
    await _until_it_answers(channel)
    ours.close()
    assert await asyncio.wait_for(started.wait(), 10) == 0


async def test_a_helper_ends_at_the_end_of_its_lifetime(tmp_path: Path) -> None:
    async with plain_helper(tmp_path, "--lifetime", "1.5") as helper:
        assert helper.process.returncode is None
        assert await asyncio.wait_for(helper.process.wait(), 20) == 0


async def test_a_command_whose_supervisor_is_killed_is_reported_and_ended(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        script = (
            "echo $PPID >supervisor; (setsid sh -c 'echo $$ >pid; exec sleep 300' &); sleep 300"
        )
        run = asyncio.ensure_future(helper.run("sh", "-c", script))
        pid = int(await read_when_written(tmp_path / "pid"))
        os.kill(int(await read_when_written(tmp_path / "supervisor")), signal.SIGKILL)
        executed = await run
        assert executed.reply is not None
        assert executed.reply.type is FrameType.LOST
        await wait_until_gone(pid)
        assert ended(await helper.run("true")).value == 0


async def test_a_stopped_supervisor_still_keeps_the_timeout(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        executed = await helper.run("sh", "-c", "kill -STOP $PPID; sleep 300", timeout_ms=1000)
        assert ended(executed).kind is EndKind.TIMED_OUT


async def test_a_client_that_leaves_ends_its_command_even_if_the_supervisor_cannot(
    tmp_path: Path,
) -> None:
    async with plain_helper(tmp_path) as helper:
        script = "while :; do kill -STOP $PPID; done & echo $$ >pid; exec sleep 300"
        run = asyncio.ensure_future(helper.run("sh", "-c", script))
        pid = int(await read_when_written(tmp_path / "pid"))
        run.cancel()
        await wait_until_gone(pid)


async def test_a_command_gets_three_descriptors_and_no_other(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        blocked = asyncio.ensure_future(helper.run("sh", "-c", "echo x >up; sleep 300"))
        await read_when_written(tmp_path / "up")
        executed = await helper.run("sh", "-c", "ls /proc/$$/fd", stdin=b"x")
        assert executed.output.stdout.kept.split() == [b"0", b"1", b"2"]
        blocked.cancel()


async def test_a_command_starts_with_default_signals_and_its_own_session(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        executed = await helper.run("cat", "/proc/self/status")
        lines = executed.output.stdout.kept.decode().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        for kind in ("SigBlk", "SigIgn", "SigCgt"):
            assert int(status[kind], 16) == 0, kind
        assert status["NSsid"] == status["Pid"]


async def test_limits_reach_the_command_and_only_it(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        limits = ((resource.RLIMIT_NOFILE, 77), (resource.RLIMIT_CORE, 0))
        executed = await helper.run("sh", "-c", "ulimit -n; ulimit -c", limits=limits)
        assert executed.output.stdout.kept == b"77\n0\n"
        free = await helper.run("sh", "-c", "ulimit -n")
        assert int(free.output.stdout.kept) > 77


async def test_calls_leave_no_descriptor_behind(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        target = os.fsencode(tmp_path / "file")

        async def everything() -> None:
            await helper.run("cat", stdin=b"x" * 100_000)
            await helper.channel.write_file(target, b"x" * 2_000_000, mode=0o600, owner=b"")
            await helper.channel.read_file(target, max_bytes=1 << 24)
            (await helper.channel.listen(0)).close()
            with pytest.raises(SandboxError):
                await helper.run("no-such-program")
            run = asyncio.ensure_future(helper.run("sh", "-c", "echo x >up; sleep 300"))
            await read_when_written(tmp_path / "up")
            (tmp_path / "up").unlink()
            run.cancel()
            await asyncio.wait((run,))

        await everything()
        before = _open_descriptors()
        for _ in range(5):
            await everything()
        assert _open_descriptors() == before


async def test_requests_that_make_no_sense_are_answered_or_dropped(tmp_path: Path) -> None:
    bad = [
        b"",
        b"\0",
        struct.pack("<IB", 0, ord("P")),
        struct.pack("<IB", 1 << 31, ord("X")),
        struct.pack("<IB", 1, ord("?")),
        frames.encode(FrameType.EXEC),
        frames.encode(FrameType.EXEC, b"\xff" * 100),
        frames.encode(FrameType.EXEC, struct.pack("<IIIII", 1, 0, 0, 0, 0xFFFFFFFF)),
        frames.encode(FrameType.READ, frames.u32(0xFFFFFFF0) + b"x"),
        frames.encode(FrameType.LISTEN, frames.u32(70000)),
        frames.encode(FrameType.PUT, frames.text(b"relative") + frames.text(b"")),
    ]
    async with plain_helper(tmp_path) as helper:
        for request in bad:
            reader, writer = await asyncio.open_unix_connection(str(helper.socket))
            writer.write(request)
            writer.write_eof()
            raw = await asyncio.wait_for(reader.read(), 10)
            assert not raw or raw[4] == FrameType.ERROR, (request, raw)
            writer.close()
            await writer.wait_closed()
        assert await helper.channel.ping() == frames.PROTOCOL_VERSION


async def test_an_upload_that_is_cut_off_leaves_the_helper_well(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        reader, writer = await asyncio.open_unix_connection(str(helper.socket))
        target = os.fsencode(tmp_path / "copy")
        writer.write(frames.encode(FrameType.PUT, frames.text(target) + frames.text(b"")))
        writer.write(frames.encode(FrameType.DIR, frames.text(b"") + frames.u32(0o755)))
        for path in (b"..", b"../up", b"a/../../up", b"/abs", b"a//b"):
            entry = frames.encode(FrameType.DIR, frames.text(path) + frames.u32(0o755))
            check_reader, check_writer = await asyncio.open_unix_connection(str(helper.socket))
            check_writer.write(frames.encode(FrameType.PUT, frames.text(target) + frames.text(b"")))
            check_writer.write(entry)
            raw = await asyncio.wait_for(check_reader.read(), 10)
            assert raw[4] == FrameType.ERROR, path
            check_writer.close()
        writer.close()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert await helper.channel.ping() == frames.PROTOCOL_VERSION
        assert not (tmp_path / "up").exists()


async def test_a_request_over_the_protocols_bound_is_refused_here(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        with pytest.raises(CommandRefused, match="bound"):
            await helper.run("true", env={b"BIG": bytes(17 << 20).replace(b"\0", b"x")})


async def test_the_socket_is_its_owners_only(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        assert stat.S_IMODE(helper.socket.stat().st_mode) == 0o600


async def test_a_socket_path_longer_than_an_address_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    async with plain_helper(tmp_path) as helper:
        deep.symlink_to(tmp_path)
        channel = Channel(PathConnector(deep / helper.socket.name))
        assert await channel.ping() == frames.PROTOCOL_VERSION


async def test_only_the_helper_that_answered_first_is_spoken_to(tmp_path: Path) -> None:
    async with plain_helper(tmp_path) as helper:
        helper.socket.rename(tmp_path / "moved")
        with socket.socket(socket.AF_UNIX) as impostor:
            impostor.bind(str(helper.socket))
            impostor.listen()
            with pytest.raises(SandboxDied, match="another process listens"):
                await helper.run("true")
            conn, _ = impostor.accept()
            with conn:
                assert conn.recv(1) == b""
        helper.socket.unlink()
        (tmp_path / "moved").rename(helper.socket)
        assert ended(await helper.run("true")).value == 0


async def test_a_helper_that_is_not_there_is_a_dead_sandbox(tmp_path: Path) -> None:
    with pytest.raises(SandboxDied):
        await Channel(PathConnector(tmp_path / "none.sock")).ping()


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def _start_with_fd(folder: Path, script: str, fd: int) -> asyncio.subprocess.Process:
    return await process.start(
        ["sh", "-c", script, str(helper_path()), folder / "helper.sock", str(fd)],
        env={"PATH": "/usr/bin:/bin"},
        pass_fds=(fd,),
    )


async def _until_it_answers(channel: Channel) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await channel.ping()
                return
            except SandboxDied:
                await asyncio.sleep(0.01)
