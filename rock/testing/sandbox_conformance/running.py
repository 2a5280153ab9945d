"""Checks: commands that run while their caller does something else, and terminals."""

from __future__ import annotations

import asyncio
import time

from rock.errors import BadUser, BadWorkdir, CommandNotFound, CommandRefused
from rock.sandbox.command import ExecStatus, Process, TerminalSize, TextDecoder
from rock.testing.sandbox_conformance.subject import (
    Subject,
    Suite,
    expect,
    is_alive,
    output,
    sh,
    until,
    written,
)

CHECKS = Suite()


async def _read_until(process: Process, end: bytes) -> bytes:
    """What it writes until `end` is in it."""
    text = b""
    async for event in process.events():
        text += event.data
        if end in text:
            break
    assert end in text, text
    return text


@CHECKS
async def output_arrives_while_the_command_runs(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "echo one; echo two >&2; until [ -e go ]; do sleep 0.05; done; echo three; exit 4"
        async with box.stream(["sh", "-c", script], timeout_seconds=30) as process:
            seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
            async for event in process.events():
                seen[event.stream] += event.data
                if seen == {"stdout": b"one\n", "stderr": b"two\n"}:
                    assert process.running
                    await box.write_file("go", b"")
            result = await process.wait()
        assert seen == {"stdout": b"one\nthree\n", "stderr": b"two\n"}
        assert (result.status, result.exit_code) == (ExecStatus.EXITED, 4)
        assert (result.stdout, result.stderr) == (b"one\nthree\n", b"two\n")


@CHECKS
async def a_slow_reader_stops_the_command_and_loses_nothing(subject: Subject) -> None:
    size = 20_000_000
    async with await subject.create() as box:
        argv = ["sh", "-c", f"head -c {size} /dev/zero; echo x >written"]
        async with box.stream(argv, timeout_seconds=50, output_limit_bytes=1000) as process:
            events = process.events()
            first = await anext(events)
            # Long enough for the command to end, if nothing held it.
            assert not (await sh(box, "sleep 0.5; cat written")).ok
            count = len(first.data)
            async for event in events:
                count += len(event.data)
            result = await process.wait()
        assert (count, result.stdout_bytes, len(result.stdout)) == (size, size, 1000)
        assert result.ok


@CHECKS
async def text_in_pieces_has_whole_characters(subject: Subject) -> None:
    text = "漢字かな交じり文" * 5000
    async with await subject.create() as box:
        await box.write_file("text", text.encode())
        decoder = TextDecoder()
        got = ""
        async with box.stream(["cat", "text"], timeout_seconds=30) as process:
            async for event in process.events():
                # The worst cut: every byte by itself.
                for byte in event.data:
                    got += decoder.feed(bytes([byte]))
        assert got + decoder.finish() == text


@CHECKS
async def a_stream_begins_however_much_its_command_writes_at_once(subject: Subject) -> None:
    async with await subject.create() as box:
        for _ in range(20):
            argv = ["head", "-c", "600000", "/dev/zero"]
            async with box.stream(argv, timeout_seconds=30) as process:
                count = sum([len(event.data) async for event in process.events()])
                assert (await process.wait()).ok
            assert count == 600000


@CHECKS
async def a_stream_that_is_left_ends_its_command(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "echo $$ >pid; (setsid sh -c 'echo $$ >child; exec sleep 300' &); exec yes"
        async with box.stream(["sh", "-c", script], timeout_seconds=30):
            pids = [await written(box, name) for name in ("pid", "child")]
            assert all([await is_alive(box, pid) for pid in pids])
        assert not any([await is_alive(box, pid) for pid in pids])


@CHECKS
async def a_streamed_command_keeps_its_timeout(subject: Subject) -> None:
    async with await subject.create() as box:
        argv = ["sh", "-c", "echo partial; exec sleep 300"]
        async with box.stream(argv, timeout_seconds=1) as process:
            got = b"".join([event.data async for event in process.events()])
            result = await process.wait()
        assert (got, result.stdout) == (b"partial\n", b"partial\n")
        assert result.status is ExecStatus.TIMED_OUT


@CHECKS
async def a_background_process_is_listed_watched_and_ended(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "echo up; (setsid sh -c 'echo $$ >child; exec sleep 300' &); exec sleep 300"
        process = await box.spawn(["sh", "-c", script])
        assert box.processes[process.id] is process
        assert process.argv[:2] == (b"sh", b"-c")
        assert await is_alive(box, str(process.pid))
        child = await written(box, "child")

        async def up() -> bool:
            return process.so_far().stdout == b"up\n"

        await until("the process has said that it is up", up)
        assert (await sh(box, "echo meanwhile")).stdout == b"meanwhile\n"
        result = await process.kill()
        assert (result.status, result.signal, result.stdout) == (ExecStatus.SIGNALED, 9, b"up\n")
        assert not process.running
        for pid in (str(process.pid), child):
            assert not await is_alive(box, pid)
        assert await process.kill() == result
        assert box.processes[process.id] is process


@CHECKS
async def a_signal_reaches_the_program(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "trap 'echo caught; exit 5' USR1; echo x >up; while :; do sleep 0.05; done"
        async with await box.spawn(["sh", "-c", script]) as process:
            await written(box, "up")
            await process.signal(10)
            result = await process.wait()
            assert (result.exit_code, result.stdout) == (5, b"caught\n")
            await process.signal(10)
            await expect(CommandRefused, process.signal(0))


@CHECKS
async def stdin_can_be_written_bit_by_bit(subject: Subject) -> None:
    async with await subject.create() as box:
        async with box.stream(["cat"], timeout_seconds=30, stdin=None) as process:
            for word in (b"one", b"two"):
                await process.write(word)
                assert await _read_until(process, word) == word
            await process.close_stdin()
            assert (await process.wait()).stdout == b"onetwo"
        async with await box.spawn(["head", "-c", "5"], stdin=None) as process:
            for _ in range(100):
                await process.write(b"x" * 100_000)
            assert (await process.wait()).stdout == b"xxxxx"


@CHECKS
async def what_cannot_start_raises_when_it_is_started(subject: Subject) -> None:
    async with await subject.create() as box:
        await expect(CommandNotFound, box.spawn(["no-such-program"]))
        await expect(BadWorkdir, box.spawn(["true"], cwd="/no/such/place"))
        await expect(BadUser, box.spawn(["true"], user="nobody-by-this-name"))
        assert not box.processes


@CHECKS
async def long_output_keeps_its_beginning_and_its_end(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "echo begin; head -c 3000000 /dev/zero; echo end; exit 6"
        result = await box.exec(
            ["sh", "-c", script], timeout_seconds=30, output_limit_bytes=1000, overflow="truncate"
        )
        assert (result.status, result.exit_code) == (ExecStatus.EXITED, 6)
        assert (result.stdout_bytes, len(result.stdout)) == (3_000_010, 1000)
        assert result.stdout[:6] == b"begin\n"
        assert result.stdout[-4:] == b"end\n"
        assert result.stdout_gap == 500
        assert result.stderr_gap is None


@CHECKS
async def a_terminal_is_one_and_has_its_size(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size; echo ready; read x; stty size"
        argv = ["sh", "-c", script]
        size = TerminalSize(rows=33, columns=101)
        async with box.stream(argv, timeout_seconds=30, stdin=None, terminal=size) as process:
            assert b"33 101\r\n" in await _read_until(process, b"ready\r\n")
            await process.resize(TerminalSize(rows=40, columns=120))
            await process.write(b"\n")
            assert b"40 120\r\n" in await _read_until(process, b"40 120\r\n")
            assert (await process.wait()).exit_code == 0


@CHECKS
async def ctrl_c_and_ctrl_d_work_on_a_terminal(subject: Subject) -> None:
    async with await subject.create() as box:
        size = TerminalSize()
        argv = ["sh", "-c", "echo go; exec sleep 300"]
        async with box.stream(argv, timeout_seconds=30, stdin=None, terminal=size) as process:
            await _read_until(process, b"go\r\n")
            await process.write(b"\x03")
            result = await process.wait()
            assert (result.status, result.signal) == (ExecStatus.SIGNALED, 2)
        async with box.stream(["cat"], timeout_seconds=30, stdin=None, terminal=size) as process:
            await process.write(b"line\n")
            await _read_until(process, b"line\r\nline\r\n")
            await process.close_stdin()
            assert (await process.wait()).exit_code == 0


@CHECKS
async def a_terminal_shows_everything_before_its_end(subject: Subject) -> None:
    async with await subject.create() as box:
        argv = ["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; printf end"]
        process = await box.spawn(argv, terminal=TerminalSize())
        result = await process.wait()
        assert (result.stdout_bytes, result.stdout[-4:]) == (300_003, b"xend")


@CHECKS
async def many_processes_run_side_by_side(subject: Subject) -> None:
    async with await subject.create() as box:
        script = 'until [ -e go ]; do sleep 0.05; done; echo "$1"'
        spawned = [await box.spawn(["sh", "-c", script, "sh", str(n)]) for n in range(20)]
        assert [process.running for process in spawned] == [True] * 20
        began = time.monotonic()
        await output(box, "true")
        assert time.monotonic() - began < 10
        await box.write_file("go", b"")
        results = await asyncio.gather(*(process.wait() for process in spawned))
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(20)]
