"""`rock sandbox`: every command on every kind of sandbox does what the table in docs/serving.md says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rock.cli.app import app
from rock.config import read_environment
from rock.errors import NotSupported
from rock.sandbox.base import Provider, SandboxSpec
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.local.local import LocalProvider
from rock.sandbox.remote import door
from rock.sandbox.remote.remote import RemoteProvider
from rock.sandbox.remote.server import SandboxServer, serving

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
KEY = "the key of this test"
PLACES = {
    "served": pytest.mark.userns,
    "local harness": pytest.mark.userns,
    "docker harness": pytest.mark.docker,
    "container alone": pytest.mark.docker,
}


def _table() -> dict[str, dict[str, str]]:
    """What the page says, by command and place."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|")
    ]
    head = next(row for row in rows if row[0] == "command")
    return {
        command: dict(zip(head[1:], row[1:], strict=True))
        for row in rows
        if row[0].startswith("`")
        for command in re.findall(r"`([a-z -]+)`", row[0])
    }


def _docker() -> DockerProvider:
    return DockerProvider(host=read_environment().docker_host)


@asynccontextmanager
async def _made(place: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """A sandbox of that kind: its id, and the options that lead there."""
    if place == "served":
        async with (
            serving(SandboxServer(LocalProvider(), key=KEY)) as url,
            RemoteProvider(url, KEY) as client,
        ):
            yield (await client.create(SandboxSpec())).id, ["--url", url, "--key", KEY]
        return
    provider: Provider = LocalProvider() if place == "local harness" else _docker()
    async with provider:
        box = await provider.create(SandboxSpec())
        if place == "container alone":
            yield box.id, []
        else:
            async with door.opened(provider):
                yield box.id, []


async def _run(*words: str) -> Result:
    """In a thread: a command has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["sandbox", *words])


def _check(place: str, command: str, result: Result, *, code: int = 0) -> str:
    said = _table()[command][place]
    if said == "yes":
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        assert result.exit_code == code, (command, result.output)
    else:
        assert said.startswith("no"), said
        assert isinstance(result.exception, NotSupported), (command, result.output)
    return result.output


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=mark, id=place) for place, mark in PLACES.items()]
)
async def test_every_command_does_what_the_page_says(place: str, tmp_path: Path) -> None:
    async with _made(place) as (box, to):
        assert box in _check(place, "ps", await _run("ps", *to))
        assert "rock-init" in _check(place, "ps", await _run("ps", *to, box))
        top = await _run("top", *to, "--rounds", "1", "--seconds", "0.1", box)
        assert "rock-init" in _check(place, "top", top)
        ran = await _run("exec", *to, box, "sh", "-c", "echo said >file; echo out; exit 3")
        assert "out" in _check(place, "exec", ran, code=3)
        _check(place, "cp", await _run("cp", *to, f"{box}:file", str(tmp_path / "file")))
        assert (tmp_path / "file").read_text() == "said\n"
        shown = _check(place, "logs", await _run("logs", *to, box))
        assert re.search(r"process  sh -c 'echo said.*exited 3", shown), shown
        assert "| out" in shown
        last = await _run("logs", *to, "--json", "--tail", "1", box)
        assert json.loads(last.output)["what"] == "download file"

        assert "HOME=" in _check(place, "env", await _run("env", *to, box))
        _check(place, "env --set", await _run("env", *to, box, "--set", "A=b", "--unset", "LANG"))
        if _table()["env --set"][place] == "yes":
            told = await _run("exec", *to, box, "sh", "-c", "echo $A${LANG-gone}")
            assert "bgone" in told.output
        assert "/workspace/file" in _check(place, "diff", await _run("diff", *to, box)) or (
            _table()["diff"][place] != "yes"
        )
        kept = _check(place, "snapshot", await _run("snapshot", *to, box)).strip() or "none"
        back = _check(place, "restore", await _run("restore", *to, box, kept))
        again = _check(place, "reset", await _run("reset", *to, box))
        for receipt in (back, again):
            if receipt:
                assert json.loads(receipt)["leftovers"] == []
        _check(place, "stop", await _run("stop", *to, box))
        gone = await _run("exec", *to, box, "true")
        assert gone.exit_code == 125
        assert box in gone.output


@pytest.mark.userns
async def test_following_a_log_ends_with_the_sandbox() -> None:
    async with LocalProvider() as provider, door.opened(provider):
        box = await provider.create(SandboxSpec())
        following = asyncio.ensure_future(_run("logs", "--follow", box.id))
        process = await box.spawn(["sh", "-c", "echo something; exec sleep 300"])
        page = await box.read_log()
        while not any(entry.stdout for entry in page.entries):
            page = await box.read_log(after=page.cursor, wait_seconds=10)
        await process.kill()
        await box.stop()
        result = await asyncio.wait_for(following, 20)
        assert result.exit_code == 0, result.output
        assert "something" in result.output
