"""Checks: ending a command. Everything it started ends with it, whatever it did to hide."""

from __future__ import annotations

import asyncio

from rock.errors import SandboxDied
from rock.sandbox.base import ExecStatus, Limits, Sandbox
from rock.testing.sandbox_conformance.subject import (
    Subject,
    Suite,
    is_alive,
    output,
    sh,
    until,
    written,
)

CHECKS = Suite()

_HIDING = {
    "child": "sh -c 'echo $$ >child; exec sleep 300' &",
    "session": "setsid sh -c 'echo $$ >session; exec sleep 300' &",
    "no-environment": "env -i /bin/sh -c 'echo $$ >no-environment; exec /bin/sleep 300' &",
    "double-fork": "(sh -c 'echo $$ >double-fork; exec sleep 300' &) ",
    "daemon": "(setsid env -i /bin/sh -c 'echo $$ >daemon; exec /bin/sleep 300' &) ",
    "deaf": "sh -c 'trap \"\" TERM INT HUP; echo $$ >deaf; while :; do sleep 1; done' &",
}
"""Ways out of a process group, a session and an environment: each writes its pid first."""


async def _hidden_pids(box: Sandbox) -> list[str]:
    """The pids of all hidden processes, each seen alive."""
    pids = [await written(box, name) for name in _HIDING]
    for pid in pids:
        assert await is_alive(box, pid)
    return pids


async def _all_gone(box: Sandbox, pids: list[str]) -> None:
    alive = [pid for pid in pids if await is_alive(box, pid)]
    assert not alive


@CHECKS
async def a_timeout_kills_everything_the_command_started(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "\n".join(_HIDING.values()) + "\necho partial; sleep 300"
        run = asyncio.ensure_future(box.exec(["sh", "-c", script], timeout_seconds=5))
        pids = await _hidden_pids(box)
        assert not run.done()
        result = await run
        await _all_gone(box, pids)
        assert result.status is ExecStatus.TIMED_OUT
        assert (result.exit_code, result.signal, result.stdout) == (None, None, b"partial\n")
        assert 4.9 < result.duration_seconds < 15


@CHECKS
async def the_end_of_a_command_ends_its_background_children(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "\n".join(_HIDING.values()) + "\nuntil [ -e go ]; do sleep 0.05; done; exit 4"
        run = asyncio.ensure_future(sh(box, script))
        pids = await _hidden_pids(box)
        await box.write_file("go", b"")
        result = await run
        await _all_gone(box, pids)
        assert (result.status, result.exit_code) == (ExecStatus.EXITED, 4)


@CHECKS
async def a_cancelled_command_is_killed(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "\n".join(_HIDING.values()) + "\nsleep 300"
        run = asyncio.ensure_future(sh(box, script))
        pids = await _hidden_pids(box)
        run.cancel()
        await asyncio.wait((run,))

        async def gone() -> bool:
            return not any([await is_alive(box, pid) for pid in pids])

        await until("the children of the cancelled command are gone", gone)


@CHECKS
async def a_background_child_that_holds_stdout_delays_nothing(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await sh(box, "sleep 300 & echo done")
        assert (result.exit_code, result.stdout) == (0, b"done\n")
        assert result.duration_seconds < 5


@CHECKS
async def output_over_the_limit_ends_the_command(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await box.exec(
            ["sh", "-c", "echo $$ >pid; echo start; exec cat /dev/zero"],
            timeout_seconds=30,
            output_limit_bytes=100_000,
        )
        assert result.status is ExecStatus.OUTPUT_LIMIT
        assert (len(result.stdout), result.stdout[:6]) == (100_000, b"start\n")
        assert result.stdout_bytes > 100_000
        assert not await is_alive(box, await written(box, "pid"))


@CHECKS
async def output_up_to_the_limit_is_whole(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await box.exec(
            ["head", "-c", "100000", "/dev/zero"], timeout_seconds=30, output_limit_bytes=100_000
        )
        assert result.ok
        assert result.stdout == bytes(100_000)


@CHECKS
async def a_command_that_kills_all_it_can_does_not_take_the_sandbox(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await sh(box, "kill -9 -1; sleep 0.1; exit 0")
        assert result.status in (ExecStatus.EXITED, ExecStatus.SIGNALED)
        assert await output(box, "echo alive") == "alive\n"


@CHECKS
async def a_fork_bomb_is_bounded_and_leaves_a_working_sandbox(subject: Subject) -> None:
    async with await subject.create(limits=Limits(pids=64)) as box:
        bomb = "b() { b | b & }; b & exec sleep 30"
        result = await box.exec(["sh", "-c", bomb], timeout_seconds=2, output_limit_bytes=1 << 20)
        # The shell itself may be the one that gets no further process, and gives up with an error.
        assert not result.ok
        assert result.duration_seconds < 20
        counted = await output(box, "set -- /proc/[0-9]*; echo $#")
        assert int(counted) < 10


@CHECKS
async def stop_is_idempotent_and_final(subject: Subject) -> None:
    box = await subject.create()
    assert await output(box, "echo up") == "up\n"
    await asyncio.gather(box.stop(), box.stop())
    await box.stop()
    try:
        await sh(box, "echo ghost")
    except SandboxDied:
        return
    raise AssertionError("a stopped sandbox ran a command")


@CHECKS
async def a_command_interrupted_by_stop_says_so_and_keeps_its_output(subject: Subject) -> None:
    box = await subject.create()
    run = asyncio.ensure_future(sh(box, "echo before; echo x >up; sleep 300"))
    try:
        await written(box, "up")
    finally:
        await box.stop()
    result = await run
    assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
