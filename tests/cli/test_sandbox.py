"""`rock sandbox`: a server as a process of its own, and every look into what it made."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.command import Done, rock, started
from tests.sandbox.plain_helper import until

pytestmark = [pytest.mark.userns, pytest.mark.slow, pytest.mark.timeout(180)]


@asynccontextmanager
async def _server(home: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    argv = ("sandbox", "serve", "--provider", "local", "--port", "0")
    async with started(*argv, home=home) as server:
        await until("the server listens", (home / "state" / "sandbox" / "server.json").exists)
        yield server


async def test_a_sandbox_is_made_looked_into_and_stopped_from_the_command_line(
    tmp_path: Path,
) -> None:
    async with _server(tmp_path) as server:
        made = await rock("sandbox", "create", home=tmp_path)
        assert made.code == 0, made
        box = made.out.strip()
        listed = json.loads((await rock("sandbox", "ps", "--json", home=tmp_path)).out)
        # Others may run on this machine, made by its engine and by other harnesses.
        assert [info["provider"] for info in listed if info["id"] == box] == ["local"]

        script = "echo out; echo err >&2; exit 7"
        ran = await rock("sandbox", "exec", box[:6], "sh", "-c", script, home=tmp_path)
        assert ran == Done(7, "out\n", "err\n")
        late = await rock(
            "sandbox", "exec", "--timeout-seconds", "0.2", box, "sleep", "9", home=tmp_path
        )
        assert late.code == 124
        for program, code in (("no-such-program", 127), ("/etc/passwd", 126)):
            assert (await rock("sandbox", "exec", box, program, home=tmp_path)).code == code

        (tmp_path / "tree" / "empty").mkdir(parents=True)
        (tmp_path / "tree" / "file").write_text("content")
        assert (
            await rock("sandbox", "cp", f"{tmp_path}/tree", f"{box}:in", home=tmp_path)
        ).code == 0
        assert (
            await rock("sandbox", "cp", f"{box}:in", f"{tmp_path}/back", home=tmp_path)
        ).code == 0
        assert (tmp_path / "back" / "file").read_text() == "content"
        assert (tmp_path / "back" / "empty").is_dir()

        shell = await rock("sandbox", "shell", box, home=tmp_path)
        assert shell.code == 0  # its stdin is at its end
        assert "in" in (await rock("sandbox", "exec", box, "ls", home=tmp_path)).out
        seen = await rock("sandbox", "ps", box, home=tmp_path)
        assert "rock-init" in seen.out
        receipt = json.loads((await rock("sandbox", "reset", box, home=tmp_path)).out)
        assert receipt["leftovers"] == []
        assert (await rock("sandbox", "exec", box, "cat", "in/file", home=tmp_path)).code == 1
        assert (await rock("sandbox", "stop", box, home=tmp_path)).code == 0
        gone = await rock("sandbox", "exec", box, "true", home=tmp_path)
        assert gone.code == 125
        assert box in gone.err
        assert (tmp_path / "state" / "sandbox" / "key").stat().st_mode & 0o777 == 0o600
        server.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.wait(), 20) == 0
    assert not (tmp_path / "state" / "sandbox" / "server.json").exists()


async def test_files_are_kept_gone_back_to_and_started_from(tmp_path: Path) -> None:
    async with _server(tmp_path):
        box = (await rock("sandbox", "create", home=tmp_path)).out.strip()
        await rock("sandbox", "exec", box, "sh", "-c", "echo one >file", home=tmp_path)
        shown = (await rock("sandbox", "diff", box, home=tmp_path)).out
        assert shown == "+ /workspace/file  4 bytes\n"
        kept = (await rock("sandbox", "snapshot", box, home=tmp_path)).out.strip()
        await rock("sandbox", "exec", box, "sh", "-c", "echo two >file", home=tmp_path)
        back = json.loads((await rock("sandbox", "restore", box, kept, home=tmp_path)).out)
        assert (back["tier"], back["leftovers"]) == ("sweep", [])
        other = (await rock("sandbox", "create", "--snapshot", kept, home=tmp_path)).out.strip()
        for one in (box, other):
            shown = await rock("sandbox", "exec", one, "cat", "file", home=tmp_path)
            assert shown == Done(0, "one\n", "")
        assert kept in (await rock("sandbox", "snapshots", home=tmp_path)).out
        assert kept not in (await rock("sandbox", "snapshots", "--drop", kept, home=tmp_path)).out
        gone = await rock("sandbox", "restore", box, kept, home=tmp_path)
        assert gone.code == 1
        assert kept in gone.err


WRONG = [
    (("exec", "nope", "true"), 125, "no sandbox nope"),
    (("snapshots", "--drop", "nope"), 1, "no snapshot nope"),
    (("create", "--url", "http://127.0.0.1:1"), 2, "--key"),
    (("serve", "--provider", "local", "--port", "99999"), 2, "--port"),
    (("serve", "--provider", "local", "--host", "192.0.2.1"), 2, "192.0.2.1 port 8700"),
]


@pytest.mark.parametrize(("words", "code", "message"), WRONG)
async def test_what_cannot_be_says_so(
    words: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    done = await rock("sandbox", *words, home=tmp_path)
    assert (done.code, message in done.err, "Traceback" in done.err) == (code, True, False), done
