"""Checks: what is written down of a sandbox, and the environment that changes while it runs."""

from __future__ import annotations

from rock import secrets
from rock.errors import BadRequest, CommandNotFound, CommandRefused
from rock.sandbox.base import Sandbox
from rock.sandbox.logs import LogEntry
from rock.testing.sandbox_conformance.subject import Subject, Suite, expect, output, sh, until

CHECKS = Suite()

_ENTRIES_OF_A_LONG_LIFE = 90
_MAX_LOG_BYTES = 1024 * 1024


async def _entries(box: Sandbox) -> list[LogEntry]:
    return list((await box.read_log()).entries)


async def _ended(box: Sandbox, kind: str) -> list[LogEntry]:
    return [entry for entry in await _entries(box) if (entry.kind, entry.part) == (kind, "ended")]


@CHECKS
async def every_action_is_in_the_log_with_its_end(subject: Subject) -> None:
    async with await subject.create() as box:
        await sh(box, "echo out; echo err >&2; exit 3")
        await expect(CommandNotFound, box.exec(["no-such-program"], timeout_seconds=10))
        await box.write_file("file", b"12345")
        async with await box.shell() as shell:
            await shell.run("echo from a script", timeout_seconds=10)
        await box.exec(["sleep", "30"], timeout_seconds=0.1)
        process = await box.spawn(["sh", "-c", "echo of a process"])
        await process.wait()

        assert (await _entries(box))[0].kind == "created"
        first, missing, late = await _ended(box, "exec")
        assert "exit 3" in first.what
        assert (first.status, first.exit_code) == ("exited", 3)
        assert (first.stdout, first.stderr) == (b"out\n", b"err\n")
        assert (first.stdout_bytes, first.stderr_bytes, first.left_out_bytes) == (4, 4, 0)
        assert first.seconds is not None
        assert 0 < first.seconds < 30
        assert (missing.what, missing.status) == ("no-such-program", CommandNotFound.code)
        assert (late.what, late.status) == ("sleep 30", "timed_out")
        (written,) = await _ended(box, "file")
        assert (written.what, written.stdout_bytes) == ("write file", 5)
        (script,) = await _ended(box, "script")
        assert (script.what, script.exit_code) == ("echo from a script", 0)
        assert script.stdout == b"from a script\n"
        (ended,) = await _ended(box, "process")
        of_it = [one for one in await _entries(box) if one.action == ended.action]
        assert [of_it[0].part, of_it[-1].part] == ["began", "ended"]
        assert b"".join(one.stdout for one in of_it) == b"of a process\n"
        await box.reset()
        (reset,) = await _ended(box, "reset")
        assert reset.status == "done"


@CHECKS
async def what_a_command_writes_is_in_the_log_while_it_runs(subject: Subject) -> None:
    async with await subject.create() as box:
        script = "echo first; until [ -e go ]; do sleep 0.05; done; echo last"
        process = await box.spawn(["sh", "-c", script])
        cursor = (await box.read_log()).cursor
        seen = b""

        async def shown() -> bool:
            nonlocal cursor, seen
            page = await box.read_log(after=cursor, wait_seconds=0.5)
            assert page.complete
            cursor = page.cursor
            seen += b"".join(entry.stdout for entry in page.entries if entry.kind == "process")
            return seen == b"first\n"

        await until("its first line is in the log", shown)
        assert process.running
        await box.write_file("go", b"")
        await process.wait()
        rest = (await box.read_log(after=cursor, wait_seconds=5)).entries
        rest = rest or (await box.read_log(after=cursor, wait_seconds=5)).entries
        assert b"".join(entry.stdout for entry in await _entries(box)) == b"first\nlast\n"
        assert len((await box.read_log(tail=2)).entries) == 2
        await expect(BadRequest, box.read_log(after="nowhere"))


@CHECKS
async def no_secret_is_in_the_log(subject: Subject) -> None:
    secret = "tell-nobody-about-Q7xZ"
    secrets.register(secret)
    async with await subject.create() as box:
        await sh(box, f"echo {secret}; echo again {secret} >&2")
        # Where the middle of the output is left out, none is cut in two.
        await sh(box, f'i=0; while [ $i -lt 1500 ]; do echo "$i {secret}"; i=$((i + 1)); done')
        await box.write_file(f"{secret}.txt", b"")
        await box.set_env({"TOKEN": secret})
        entries = await _entries(box)
    text = b"\n".join(
        part for one in entries for part in (one.stdout, one.stderr, one.what.encode())
    )
    assert b"[redacted]" in text
    for piece in (secret, secret[:10], secret[-10:]):
        assert piece.encode() not in text


@CHECKS
async def a_log_is_bounded_and_keeps_its_beginning_and_end(subject: Subject) -> None:
    async with await subject.create() as box:
        await sh(box, "head -c 5000000 /dev/zero", output_limit_bytes=4_000_000)
        (flood,) = await _ended(box, "exec")
        assert flood.stdout_bytes > 4_000_000
        assert flood.status == "output_limit"
        shown = sum(len(entry.stdout) for entry in await _entries(box))
        assert shown + sum(entry.left_out_bytes for entry in await _entries(box)) >= (
            flood.stdout_bytes * 9 // 10
        )
        after_the_flood = (await box.read_log()).cursor
        for number in range(_ENTRIES_OF_A_LONG_LIFE):
            await sh(box, f"head -c 20000 /dev/zero; : {number}")
        page = await box.read_log()
        assert not page.complete
        assert not (await box.read_log(after=after_the_flood)).complete
        assert page.entries[0].kind == "created"
        assert page.entries[-1].what.endswith(f": {_ENTRIES_OF_A_LONG_LIFE - 1}'")
        assert sum(len(entry.stdout) for entry in page.entries) < _MAX_LOG_BYTES
        assert (await box.read_log(after=page.cursor)).entries == ()


@CHECKS
async def variables_change_for_later_commands_until_a_reset(subject: Subject) -> None:
    show = 'echo "$GREETING-$KEPT-${LANG-none}"'
    async with await subject.create(env={"KEPT": "of the spec", "GREETING": "old"}) as box:
        async with await box.shell() as before:
            await box.set_env({"GREETING": "new\nline", "LANG": None})
            assert await output(box, show) == "new\nline-of the spec-none\n"
            told = await before.run(show, timeout_seconds=10)
            assert told.stdout == b"old-of the spec-C.UTF-8\n"
        async with await box.shell() as later:
            told = await later.run(show, timeout_seconds=10)
            assert told.stdout == b"new\nline-of the spec-none\n"
        assert await output(box, show, env={"GREETING": "own"}) == "own-of the spec-none\n"
        await box.set_env({"KEPT": "changed"})
        assert await output(box, show) == "new\nline-changed-none\n"
        assert (box.environment()["KEPT"], "LANG" in box.environment()) == ("changed", False)
        for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "x\0y"}):
            await expect(CommandRefused, box.set_env(wrong))
        noted = [entry.what for entry in await _ended(box, "env")]
        assert noted == ["set GREETING, unset LANG", "set KEPT"]
        await box.reset()
        assert await output(box, show) == "old-of the spec-C.UTF-8\n"
