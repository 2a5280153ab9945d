"""Why a sandbox does not answer: killed, stopped, paused, out of time, or nobody left to ask."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock.config import read_environment
from rock.errors import SandboxDied
from rock.sandbox.base import Limits, Sandbox, SandboxSpec
from rock.sandbox.command import DeathCause, ExecResult, ExecStatus
from rock.sandbox.docker import DockerProvider
from rock.sandbox.docker.autopsy import read
from rock.sandbox.docker.engine import Event
from rock.sandbox.docker.engine_calls import DEFAULT_ADDRESS
from rock.sandbox.local import LocalProvider
from rock.testing.sandbox_conformance.subject import written
from tests.needs import BUSYBOX_IMAGE

SPEC = SandboxSpec(image=BUSYBOX_IMAGE)


@pytest.mark.parametrize(
    ("events", "lived", "cause"),
    [
        ([("die", "exitCode", "0")], 10.0, DeathCause.LIFETIME),
        ([("die", "exitCode", "0")], 9.0, DeathCause.KILLED),
        ([("oom", "", ""), ("die", "exitCode", "137")], 1.0, DeathCause.OUT_OF_MEMORY),
        ([("die", "exitCode", "137")], 1.0, DeathCause.KILLED),
        ([("kill", "signal", "9"), ("die", "exitCode", "137")], 10.0, DeathCause.KILLED),
        ([("kill", "signal", "15"), ("die", "exitCode", "0")], 10.0, DeathCause.KILLED),
        ([], 1.0, DeathCause.GONE),
    ],
)
def test_a_containers_last_events_are_read(
    events: list[tuple[str, str, str]], lived: float, cause: DeathCause
) -> None:
    found = [Event(action=action, attributes={key: value}) for action, key, value in events]
    assert read(found, lived_seconds=lived, lifetime_seconds=10.0).cause is cause


async def _while_it_runs(box: Sandbox, what: str, *argv: str) -> ExecResult:
    """The result of a command that has said something, after `docker ARGV BOX`."""
    script = f"echo {what}; echo x >up; exec sleep 300"
    seconds = 2.0 if what == "paused" else 40.0
    run = asyncio.ensure_future(box.exec(["sh", "-c", script], timeout_seconds=seconds))
    await written(box, "up")
    await docker(*argv, f"rock-{box.id}")
    return await run


async def docker(*argv: str) -> None:
    await asyncio.to_thread(subprocess.run, ["docker", *argv], check=True, capture_output=True)


@pytest.mark.docker
@pytest.mark.parametrize("argv", [("kill",), ("rm", "-f")], ids=" ".join)
async def test_a_container_that_is_killed_is_a_typed_end_with_the_output_until_then(
    argv: tuple[str, ...],
) -> None:
    async with _provider() as provider, await provider.create(SPEC) as box:
        result = await _while_it_runs(box, "before", *argv)
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.KILLED
        with pytest.raises(SandboxDied) as caught:
            await box.read_file("up")
        assert caught.value.cause == DeathCause.KILLED


@pytest.mark.docker
async def test_a_paused_container_is_told_from_a_dead_one() -> None:
    async with _provider(silence_seconds=0.5) as provider, await provider.create(SPEC) as box:
        result = await _while_it_runs(box, "paused", "pause")
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"paused\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.PAUSED
        await docker("unpause", f"rock-{box.id}")
        assert (await box.exec(["cat", "up"], timeout_seconds=20)).stdout == b"x\n"


@pytest.mark.docker
async def test_a_command_out_of_memory_is_told_from_one_that_is_killed() -> None:
    limits = Limits(memory_bytes=64 * 1024**2)
    spec = SandboxSpec(image=BUSYBOX_IMAGE, limits=limits)
    async with _provider() as provider, await provider.create(spec) as box:
        bomb = "echo before; exec tail -c 200000000 /dev/zero"
        result = await box.exec(["sh", "-c", bomb], timeout_seconds=40)
        assert (result.status, result.stdout) == (ExecStatus.OOM_KILLED, b"before\n")
        result = await box.exec(["sh", "-c", "echo before; kill -9 $$"], timeout_seconds=40)
        assert (result.status, result.signal) == (ExecStatus.SIGNALED, 9)


@pytest.mark.docker
async def test_a_sandbox_works_on_without_its_engine_and_its_end_is_then_a_riddle(
    tmp_path: Path,
) -> None:
    """The engine is reached through a relay that can be cut off, since others use it, too."""
    async with _relay(tmp_path) as cut:
        provider = DockerProvider(host=f"unix://{tmp_path}/engine.sock")
        box = await provider.create(SPEC)
        try:
            cut()
            assert (await box.exec(["echo", "on"], timeout_seconds=20)).stdout == b"on\n"
            result = await _while_it_runs(box, "before", "kill")
            assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
            assert result.death is not None
            assert result.death.cause is DeathCause.ENGINE_GONE
        finally:
            await provider.close()


@pytest.mark.userns
async def test_a_local_sandbox_that_is_killed_says_so() -> None:
    async with LocalProvider() as provider, await provider.create(SandboxSpec()) as box:
        run = asyncio.ensure_future(
            box.exec(["sh", "-c", "echo before; echo x >up; exec sleep 300"], timeout_seconds=40)
        )
        await written(box, "up")
        os.kill(first_process_of(os.getpid()), signal.SIGKILL)
        result = await run
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.KILLED


def first_process_of(pid: int) -> int:
    """PID 1 of the only local sandbox of this process: the child of its only helper."""
    for child in _children(pid):
        if b"rock-init" in Path(f"/proc/{child}/cmdline").read_bytes():
            (inside,) = _children(child)
            return inside
    raise AssertionError("there is no helper")


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def _provider(*, silence_seconds: float = 15.0) -> DockerProvider:
    return DockerProvider(host=read_environment().docker_host, silence_seconds=silence_seconds)


@asynccontextmanager
async def _relay(folder: Path) -> AsyncGenerator[Callable[[], None]]:
    """A socket that leads to the engine until the function given is called."""
    engine = (read_environment().docker_host or DEFAULT_ADDRESS).removeprefix("unix://")
    writers: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(engine)
        writers.extend((writer, far_writer))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_unix_server(serve, str(folder / "engine.sock"))

    def cut() -> None:
        server.close()
        for writer in writers:
            writer.close()

    try:
        yield cut
    finally:
        cut()
