"""Checks: running a command. What goes in arrives, what comes out is exact, and errors have types."""

from __future__ import annotations

import asyncio

from rock.errors import BadUser, BadWorkdir, CommandNotFound, CommandRefused
from rock.sandbox.base import ExecStatus
from rock.testing.sandbox_conformance.subject import Subject, Suite, expect, output, sh

CHECKS = Suite()


@CHECKS
async def exit_codes_are_exact(subject: Subject) -> None:
    async with await subject.create() as box:
        for code in (0, 1, 2, 77, 126, 127, 137, 255):
            result = await sh(box, f"exit {code}")
            assert (result.status, result.exit_code) == (ExecStatus.EXITED, code)
            assert result.signal is None


@CHECKS
async def a_signal_is_told_from_an_exit_code(subject: Subject) -> None:
    async with await subject.create() as box:
        for number in (1, 6, 9, 11, 15):
            result = await sh(box, f"kill -{number} $$")
            assert (result.status, result.signal) == (ExecStatus.SIGNALED, number)
            assert result.exit_code is None


@CHECKS
async def stdout_and_stderr_come_apart(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await sh(box, "echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")


@CHECKS
async def output_is_byte_exact(subject: Subject) -> None:
    raw = bytes(range(256)) + b"\n  indented\r\n\xff\xfe no newline at the end"
    async with await subject.create() as box:
        result = await box.exec(["cat"], stdin=raw, timeout_seconds=30)
        assert result.stdout == raw
        assert result.stdout_bytes == len(raw)
        assert (await sh(box, "printf '  x\\n\\n'")).stdout == b"  x\n\n"


@CHECKS
async def a_command_without_stdin_reads_nothing(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await box.exec(["cat"], timeout_seconds=10)
        assert (result.status, result.stdout) == (ExecStatus.EXITED, b"")


@CHECKS
async def stdin_that_is_not_read_is_no_error(subject: Subject) -> None:
    async with await subject.create() as box:
        result = await box.exec(["true"], stdin=b"x" * 1_000_000, timeout_seconds=30)
        assert result.ok


@CHECKS
async def megabytes_of_stdin_and_stdout_do_not_deadlock(subject: Subject) -> None:
    raw = b"0123456789abcdef" * 256 * 1024
    async with await subject.create() as box:
        result = await box.exec(["cat"], stdin=raw, timeout_seconds=30)
        assert result.ok
        assert result.stdout == raw


@CHECKS
async def arguments_arrive_unchanged(subject: Subject) -> None:
    arguments = ["", " ", "a b", "'", '"', "$HOME", "`id`", "\\", "*", "line\nbreak", "ü€", "-n"]
    raw = b"not utf-8: \xff\xfe"
    async with await subject.create() as box:
        result = await box.exec(
            ["sh", "-c", 'printf "%s\\0" "$@"', "sh", *arguments, raw], timeout_seconds=30
        )
        expected = [*(argument.encode() for argument in arguments), raw]
        assert result.stdout.split(b"\0")[:-1] == expected


@CHECKS
async def large_variables_with_newlines_and_quotes_arrive(subject: Subject) -> None:
    value = ("line\n'single' \"double\" $(id) \\ ü " * 3000)[:100_000]
    async with await subject.create() as box:
        result = await sh(box, 'printf %s "$BIG"', env={"BIG": value})
        assert result.stdout.decode() == value


@CHECKS
async def a_200_kb_script_runs_from_stdin_and_from_a_file(subject: Subject) -> None:
    script = (": " + "x" * 98 + "\n") * 2000 + "echo the end\n"
    async with await subject.create() as box:
        result = await box.exec(["sh"], stdin=script.encode(), timeout_seconds=30)
        assert result.stdout == b"the end\n"
        await box.write_file("big.sh", script.encode(), mode=0o755)
        assert (await sh(box, ". ./big.sh")).stdout == b"the end\n"


@CHECKS
async def an_argument_over_the_kernels_bound_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        await expect(CommandRefused, box.exec(["echo", "x" * 200_000], timeout_seconds=10))
        assert (await sh(box, "echo still here")).stdout == b"still here\n"


@CHECKS
async def what_cannot_be_an_argument_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        for text in ("half a pair \ud83d", "a NUL \0 inside"):
            await expect(CommandRefused, box.exec(["echo", text], timeout_seconds=10))
            await expect(CommandRefused, box.exec(["env"], env={"A": text}, timeout_seconds=10))
        await expect(CommandRefused, box.exec(["env"], env={"A=B": "c"}, timeout_seconds=10))
        await expect(CommandRefused, box.exec([], timeout_seconds=10))
        await expect(CommandRefused, box.exec(["env"], timeout_seconds=0))


@CHECKS
async def the_environment_is_the_specs_and_nothing_else(subject: Subject) -> None:
    async with await subject.create(env={"A": "spec", "B": "spec"}) as box:
        text = await output(box, "env", env={"B": "call"})
        names = dict(line.split("=", 1) for line in text.splitlines())
        assert (names["A"], names["B"]) == ("spec", "call")
        assert {"PATH", "HOME", "LANG", "TMPDIR"} <= set(names)
        extra = set(names) - {"A", "B", "PATH", "HOME", "LANG", "TMPDIR", "PWD", "SHLVL", "_"}
        assert not extra, extra


@CHECKS
async def the_working_directory_is_the_specs_or_the_calls(subject: Subject) -> None:
    async with await subject.create(workdir="/work/deep/down") as box:
        assert await output(box, "pwd") == "/work/deep/down\n"
        assert await output(box, "pwd", cwd="/tmp") == "/tmp\n"
        await output(box, "mkdir sub")
        assert await output(box, "pwd", cwd="sub") == "/work/deep/down/sub\n"


@CHECKS
async def the_working_directory_and_the_home_are_writable(subject: Subject) -> None:
    async with await subject.create() as box:
        text = await output(box, 'echo 1 >file && cat file && echo 2 >"$HOME/f" && cat "$HOME/f"')
        assert text == "1\n2\n"


@CHECKS
async def a_missing_program_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        for program in ("no-such-program", "/no/such/program", "./no-such"):
            await expect(CommandNotFound, box.exec([program], timeout_seconds=10))


@CHECKS
async def a_file_that_is_no_program_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        await box.write_file("plain", b"#!/bin/sh\necho no\n", mode=0o644)
        await expect(CommandRefused, box.exec(["./plain"], timeout_seconds=10))
        await expect(CommandRefused, box.exec([""], timeout_seconds=10))


@CHECKS
async def a_missing_directory_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        await expect(BadWorkdir, box.exec(["true"], cwd="/no/such/place", timeout_seconds=10))
        await box.write_file("file", b"")
        await expect(BadWorkdir, box.exec(["true"], cwd="file", timeout_seconds=10))


@CHECKS
async def a_missing_user_is_a_typed_error(subject: Subject) -> None:
    async with await subject.create() as box:
        await expect(BadUser, box.exec(["true"], user="nobody-by-this-name", timeout_seconds=10))
        assert (await sh(box, "echo fine")).stdout == b"fine\n"


@CHECKS
async def nothing_crosses_commands(subject: Subject) -> None:
    async with await subject.create() as box:
        await sh(box, "export LEAK=1; cd /; umask 077; sleep 0.05; echo STALE")
        result = await sh(box, 'echo "${LEAK:-unset}"; pwd; umask')
        assert result.stdout.decode().splitlines() == ["unset", box.spec.workdir, "0022"]


@CHECKS
async def fifty_commands_run_at_once(subject: Subject) -> None:
    """All wait for one file, so they can only end if they run at the same time."""
    async with await subject.create() as box:
        script = 'echo x >>started; until [ -e go ]; do sleep 0.05; done; echo "$1"'
        runs = [
            asyncio.ensure_future(
                box.exec(["sh", "-c", script, "sh", str(number)], timeout_seconds=50)
            )
            for number in range(50)
        ]
        while len((await sh(box, "cat started")).stdout.split()) < 50:
            assert not any(run.done() for run in runs)
        await box.write_file("go", b"")
        results = await asyncio.gather(*runs)
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(50)]
