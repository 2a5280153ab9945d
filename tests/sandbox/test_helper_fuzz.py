"""Bytes that nobody should send, both ways: to the helper, and from what has taken the helper's place.

A short form runs always. `make fuzz` sends `ROCK_FUZZ_INPUTS` (6,000) conversations, made from
`ROCK_FUZZ_SEED` (printed; another one each time), to a helper built with sanitisers, and runs the tests of
the channel against that helper. It runs in a local sandbox: what a damaged path leads to is not the host's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import SandboxDied
from rock.sandbox.base import Limits, Mount, Process, Sandbox, SandboxSpec
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import PathConnector
from rock.sandbox.helper import helper_path
from rock.sandbox.local import LocalProvider
from tests.sandbox import sanitised
from tests.sandbox.hostile_frames import Conversation, conversation

ANSWER_SECONDS = 20.0
AT_ONCE = 4


@asynccontextmanager
async def helper_in_a_sandbox(folder: Path) -> AsyncGenerator[tuple[Sandbox, Process, Path]]:
    """`folder`/helper serves at `folder`/helper.sock, inside a sandbox that shows only that."""
    folder.chmod(0o777)  # noqa: ASYNC240 - once, and local
    spec = SandboxSpec(
        mounts=(Mount(source=folder, target="/shared", read_only=False),),
        # The sanitisers reserve more address space than any bound on memory allows.
        limits=Limits(memory_bytes=None, pids=400),
        user="0",
    )
    async with LocalProvider() as provider, await provider.create(spec) as box:
        argv = ["/shared/helper", "serve", "/shared/helper.sock", "--lifetime", "600"]
        async with await box.spawn(argv) as helper:
            yield box, helper, folder / "helper.sock"


async def answers(path: Path) -> bool:
    try:
        return await Channel(PathConnector(path)).ping() == frames.PROTOCOL_VERSION
    except SandboxDied:
        return False


def _descriptor(kind: str, kept: list[int]) -> int:
    if kind in "rw":
        ends = os.pipe2(os.O_CLOEXEC)
        kept += ends
        return ends[0 if kind == "r" else 1]
    if kind == "s":
        pair = socket.socketpair()
        kept += [one.detach() for one in pair]
        return kept[-1]
    kept.append(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC))
    return kept[-1]


def converse(path: Path, said: Conversation, rng: random.Random) -> None:
    """Say it, and hear out the answer. Raises `TimeoutError` when it does not end."""
    kept: list[int] = []
    given = [_descriptor(kind, kept) for kind in said.descriptors]
    with socket.socket(socket.AF_UNIX) as conn:
        conn.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(ConnectionError):  # the helper may leave in the middle
            conn.connect(str(path))
            done = socket.send_fds(conn, [said.data or b"\0"], given)
            for fd in kept:
                os.close(fd)
            kept.clear()
            conn.sendall(said.data[done:])
            if rng.random() < 0.8:
                conn.shutdown(socket.SHUT_WR)
                while conn.recv(65536):
                    pass
        for fd in kept:
            os.close(fd)


def send_all(path: Path, seed: int, count: int) -> None:
    """`count` conversations, some at a time. Raises what a thread raised."""
    errors: list[BaseException] = []

    def work(part: int) -> None:
        rng = random.Random(f"{seed} {part}")
        try:
            for _ in range(count // AT_ONCE):
                converse(path, conversation(rng), rng)
        except BaseException as exc:  # noqa: BLE001 - raised in the test's own thread
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


async def _stays_well(folder: Path, seed: int, count: int) -> None:
    """After all of it the helper answers, has ended what it began, and holds no descriptor more."""
    async with helper_in_a_sandbox(folder) as (box, helper, path):
        deadline = time.monotonic() + ANSWER_SECONDS
        while not await answers(path):
            assert helper.running, await helper.wait()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        count_open = f"ls /proc/{helper.pid}/fd | wc -l"
        before = (await box.exec(["sh", "-c", count_open], timeout_seconds=10)).stdout
        try:
            await asyncio.to_thread(send_all, path, seed, count)
        finally:
            assert helper.running, await helper.wait()
        assert await answers(path)
        while len(left := await _below(box, helper)) > 0:
            assert time.monotonic() < deadline + count / 10, left
            await asyncio.sleep(0.1)
        assert (await box.exec(["sh", "-c", count_open], timeout_seconds=10)).stdout == before


async def _below(box: Sandbox, helper: Process) -> list[tuple[str, ...]]:
    return [one.command for one in await box.list_processes() if one.parent == helper.pid]


@pytest.mark.userns
async def test_hostile_conversations_leave_a_helper_well(tmp_path: Path) -> None:
    shutil.copy(helper_path(), tmp_path / "helper")
    await _stays_well(tmp_path, seed=1, count=200)


@pytest.mark.fuzz
@pytest.mark.userns
@pytest.mark.timeout(1800)
async def test_the_sanitisers_find_nothing_in_hostile_conversations(tmp_path: Path) -> None:
    environment = inherited_environment()
    seed = int(environment.get("ROCK_FUZZ_SEED", "") or random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"ROCK_FUZZ_SEED={seed}\n")
    sanitised.build(tmp_path / "helper", log="/shared/found")
    try:
        await _stays_well(tmp_path, seed, int(environment.get("ROCK_FUZZ_INPUTS", "6000")))
    finally:
        found = sanitised.findings(tmp_path / "found")
        assert found == ""


@pytest.mark.fuzz
@pytest.mark.timeout(600)
async def test_the_sanitisers_find_nothing_in_the_channels_own_tests(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    skipped = shutil.ignore_patterns("__pycache__", "rock-init")
    for name in ("rock", "tests"):
        shutil.copytree(root / name, tmp_path / name, ignore=skipped)
    shutil.copy(root / "pyproject.toml", tmp_path)
    sanitised.build(tmp_path / "rock/sandbox/native/rock-init", log=str(tmp_path / "found"))
    tests = [f"tests/sandbox/test_{name}.py" for name in ("channel", "mux", "transfer")]
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    run = await process.start(
        argv, cwd=tmp_path, env=inherited_environment(), stdout=process.PIPE, stderr=process.DEVNULL
    )
    try:
        output, _ = await run.communicate()
    finally:
        await process.stop(run)
    assert sanitised.findings(tmp_path / "found") == ""
    assert run.returncode == 0, output.decode()
