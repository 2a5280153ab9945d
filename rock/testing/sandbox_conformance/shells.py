"""Checks: a kept shell. State goes from script to script, output does not, and no script can fool it."""

from __future__ import annotations

import asyncio

from rock.errors import CommandNotFound, SandboxDied, SandboxFileError, ShellEnded
from rock.sandbox.base import Sandbox
from rock.sandbox.command import DeathCause, ExecStatus, Shell, ShellResult
from rock.testing.sandbox_conformance.subject import (
    COMMAND_SECONDS,
    Subject,
    Suite,
    expect,
    is_alive,
    written,
)

CHECKS = Suite()
_PROGRAMS = (None, "sh")
"""What a shell is by default, and the smallest that every sandbox has."""


async def _run(shell: Shell, script: str | bytes) -> ShellResult:
    result = await shell.run(script, timeout_seconds=COMMAND_SECONDS)
    assert result.shell == "alive", result
    return result


async def _pid_in(box: Sandbox, path: str) -> str | None:
    try:
        return (await box.read_file(path)).decode().strip() or None
    except SandboxFileError:
        return None


async def _says(shell: Shell, script: str | bytes) -> bytes:
    result = await _run(shell, script)
    assert (result.status, result.exit_code, result.stderr) == (ExecStatus.EXITED, 0, b""), result
    return result.stdout


@CHECKS
async def a_shell_keeps_directory_variables_and_functions(subject: Subject) -> None:
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                assert await _says(shell, "pwd") == box.spec.workdir.encode() + b"\n"
                await _says(shell, "cd /tmp; word='two words'; greet() { echo \"hi $1: $word\"; }")
                await _says(shell, "export EXPORTED=yes; umask 027; set -- a b")
                assert await _says(shell, "greet you; pwd") == b"hi you: two words\n/tmp\n"
                assert await _says(shell, "sh -c 'echo $EXPORTED'; umask") == b"yes\n0027\n"


@CHECKS
async def exit_codes_of_scripts_are_exact(subject: Subject) -> None:
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                for code in (0, 1, 2, 7, 126, 127, 137, 255):
                    result = await _run(shell, f"(exit {code})")
                    assert (result.exit_code, result.stdout, result.stderr) == (code, b"", b"")
                assert (await _run(shell, "no-such-program")).exit_code == 127


@CHECKS
async def a_script_may_print_anything(subject: Subject) -> None:
    raw = bytes(range(256)) * 40
    async with await subject.create() as box:
        await box.write_file("raw", raw)
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                assert await _says(shell, "cat raw") == raw
                assert await _says(shell, "printf '  x\\n\\n'") == b"  x\n\n"
                assert await _says(shell, "printf 'no newline'") == b"no newline"
                assert await _says(shell, "cat /proc/self/fd/9 2>/dev/null | head -c 0") == b""
                result = await _run(shell, "echo out; echo err >&2; false")
                assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 1)
                await _run(shell, "set -x; PS1='$ '; PS2='> '")
                traced = await _run(shell, "echo one")
                assert traced.stdout == b"one\n"
                assert b"echo one" in traced.stderr
                await _run(shell, "set +x")
                assert await _says(shell, "echo quiet") == b"quiet\n"


@CHECKS
async def a_script_reads_no_stdin_and_not_the_next_script(subject: Subject) -> None:
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                assert await _says(shell, "cat") == b""
                assert (await _run(shell, "read line")).exit_code == 1
                assert await _says(shell, "cat <<END\nhere $((1 + 1))\nEND\n") == b"here 2\n"


@CHECKS
async def a_broken_script_is_an_error_and_no_more(subject: Subject) -> None:
    broken = ("echo 'open", "if true; then", "done", "echo $(", "cat <<", "( echo", "}", "&&")
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                await _says(shell, "kept=1")
                for script in broken:
                    result = await _run(shell, script)
                    assert (result.status, result.exit_code) != (ExecStatus.EXITED, 0), script
                    assert result.stderr, script
                    assert await _says(shell, "echo $kept") == b"1\n", script
                for script in ("echo ${missing:?needed}", "readonly r=1; r=2", "break; continue"):
                    await _run(shell, script)
                    assert await _says(shell, "echo $kept") == b"1\n", script
                assert (await _run(shell, "return 9")).exit_code == 9


@CHECKS
async def a_large_script_runs_whole(subject: Subject) -> None:
    script = (": " + "x" * 98 + "\n") * 2000 + "echo the end"
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                assert await _says(shell, script) == b"the end\n"
                assert await _says(shell, script.encode()) == b"the end\n"


@CHECKS
async def exit_ends_the_shell_with_its_code(subject: Subject) -> None:
    endings = {
        "echo bye; exit 3": 3,
        "set -e; echo bye; false; echo no": 1,
        "echo bye; exec true": 0,
    }
    async with await subject.create() as box:
        for program in _PROGRAMS:
            for script, code in endings.items():
                async with await box.shell(program=program) as shell:
                    result = await shell.run(script, timeout_seconds=COMMAND_SECONDS)
                    assert (result.status, result.exit_code) == (ExecStatus.EXITED, code), result
                    assert (result.shell, result.stdout) == ("ended", b"bye\n")
                    assert not shell.alive
                    await expect(ShellEnded, shell.run("echo", timeout_seconds=5))
            async with await box.shell(program=program) as shell:
                result = await shell.run("kill -9 $$", timeout_seconds=COMMAND_SECONDS)
                assert (result.status, result.signal) == (ExecStatus.SIGNALED, 9)
                assert result.shell == "ended"


@CHECKS
async def a_timeout_interrupts_the_script_and_keeps_the_shell(subject: Subject) -> None:
    stuck = (
        "echo $$ >pid; sh -c 'echo $$ >child; exec sleep 300'; echo no",
        "while :; do :; done; echo no",
        "sh -c 'trap : INT; echo $$ >child; while :; do sleep 0.05; done'",
        "(setsid sh -c 'trap \"\" INT; echo $$ >child; exec sleep 300' &); while :; do sleep 0.1; done",
    )
    children = 0
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                await _says(shell, "cd /tmp && kept=1")
                for script in stuck:
                    await _says(shell, f"cd {box.spec.workdir}; rm -f child")
                    result = await shell.run(f"echo in\n{script}", timeout_seconds=0.4)
                    assert result.status is ExecStatus.TIMED_OUT, result
                    assert (result.shell, result.stdout) == ("alive", b"in\n"), result
                    assert await _says(shell, "echo $kept; pwd") == (
                        b"1\n" + box.spec.workdir.encode() + b"\n"
                    )
                    if (pid := await _pid_in(box, "child")) is not None:
                        children += 1
                        assert not await is_alive(box, pid)
        assert children  # on a busy machine some had no time to start


@CHECKS
async def a_shell_is_closed_without_asking_why_it_ended(subject: Subject) -> None:
    """That takes an engine seconds: ten shells would wait for half a minute."""
    async with await subject.create() as box:
        async with asyncio.timeout(15):
            for _ in range(10):
                shell = await box.shell()
                await _run(shell, "true")
                await shell.close()
                await expect(ShellEnded, shell.run("true", timeout_seconds=COMMAND_SECONDS))


@CHECKS
async def a_shell_that_cannot_be_interrupted_is_replaced(subject: Subject) -> None:
    async with await subject.create() as box, await box.shell() as shell:
        await _says(shell, "kept=1")
        script = "trap '' INT; echo $$ >pid; echo in; while :; do sleep 1; done"
        result = await shell.run(script, timeout_seconds=0.4)
        assert (result.status, result.shell) == (ExecStatus.TIMED_OUT, "replaced")
        assert result.stdout == b"in\n"
        assert not await is_alive(box, await written(box, "pid"))
        assert await _says(shell, "echo ${kept:-new}") == b"new\n"


@CHECKS
async def output_over_the_limit_ends_the_script(subject: Subject) -> None:
    async with await subject.create() as box, await box.shell() as shell:
        result = await shell.run(
            "echo start; yes", timeout_seconds=COMMAND_SECONDS, output_limit_bytes=10_000
        )
        assert (result.status, result.shell) == (ExecStatus.OUTPUT_LIMIT, "alive")
        assert (len(result.stdout), result.stdout[:6]) == (10_000, b"start\n")
        assert result.stdout_bytes > 10_000
        assert await _says(shell, "echo next") == b"next\n"


@CHECKS
async def a_background_job_stays_and_its_output_is_no_others(subject: Subject) -> None:
    async with await subject.create() as box:
        for program in _PROGRAMS:
            async with await box.shell(program=program) as shell:
                job = (
                    "(until [ -e go ]; do sleep 0.05; done; echo STALE; echo x >said; sleep 300) &"
                )
                await _run(shell, f"rm -f go said; {job}\necho $! >job")
                pid = (await box.read_file("job")).decode().strip()
                assert (await shell.run("sleep 300", timeout_seconds=0.5)).shell == "alive"
                assert await is_alive(box, pid)
                await box.write_file("go", b"")
                await written(box, "said")
                assert await _says(shell, "echo mine") == b"mine\n"
            assert not await is_alive(box, pid)


@CHECKS
async def scripts_of_one_shell_run_in_turn_and_shells_do_not_wait(subject: Subject) -> None:
    async with await subject.create() as box:
        async with await box.shell() as one, await box.shell() as other:
            blocked = asyncio.ensure_future(_run(one, "until [ -e go ]; do sleep 0.05; done; n=0"))
            runs = [
                asyncio.ensure_future(_run(one, f"n=$((n + 1)); echo $n; echo {k} >&2"))
                for k in range(10)
            ]
            assert await _says(other, "echo free") == b"free\n"
            assert not any(run.done() for run in runs)
            await box.write_file("go", b"")
            await blocked
            results = await asyncio.gather(*runs)
        assert [result.stdout for result in results] == [b"%d\n" % (k + 1) for k in range(10)]
        assert [result.stderr for result in results] == [b"%d\n" % k for k in range(10)]


@CHECKS
async def a_cancelled_script_leaves_the_shell_usable(subject: Subject) -> None:
    async with await subject.create() as box, await box.shell() as shell:
        await _says(shell, "kept=1")
        run = asyncio.ensure_future(_run(shell, "echo $$ >pid; echo STALE; sleep 300"))
        await written(box, "pid")
        run.cancel()
        await asyncio.wait((run,))
        assert await _says(shell, "echo $kept") == b"1\n"


@CHECKS
async def a_shell_that_is_not_there_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        await expect(CommandNotFound, box.shell(program="/no/such/shell"))


@CHECKS
async def a_shell_ends_with_its_sandbox(subject: Subject) -> None:
    box = await subject.create()
    try:
        shell = await box.shell()
        run = asyncio.ensure_future(
            shell.run("echo $$ >pid; echo in; sleep 300", timeout_seconds=50)
        )
        await written(box, "pid")
    finally:
        await box.stop()
    result = await run
    assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"in\n")
    assert result.shell == "ended"
    assert result.death is not None
    assert result.death.cause is DeathCause.STOPPED
    try:
        await shell.run("echo", timeout_seconds=5)
    except (ShellEnded, SandboxDied):
        return
    raise AssertionError("the shell of a stopped sandbox ran a script")
