"""A bound on what a container writes: kept, told, and gone without a trace, however its harness ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import read_environment
from rock.errors import ConfigError
from rock.sandbox.base import Limits, SandboxSpec
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.docker.engine import Engine
from rock.sandbox.docker.reaper import reap
from rock.sandbox.state import Capability
from rock.testing.sandbox_conformance.subject import output, until

ROOM = 16 * 1024**2
pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="file systems are the host's root's to mount"),
]


def _storages(base: Path) -> list[str]:
    """Files below `base` that loop devices of this machine are on."""
    found: list[str] = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(path.read_text())
        except OSError:
            continue  # it has just been freed
    return [name for name in found if str(base) in name]


def _is_mounted(base: Path) -> bool:
    return str(base) in Path("/proc/self/mountinfo").read_text()


async def test_a_storage_is_freed_with_its_sandbox_and_mounted_nowhere_on_the_host(
    tmp_path: Path,
) -> None:
    base = tmp_path / "b"
    async with DockerProvider(host=read_environment().docker_host, base=base) as provider:
        box = await provider.create(SandboxSpec(limits=Limits(disk_bytes=ROOM)))
        assert Capability.DISK_LIMIT in box.capabilities
        assert not any("disk" in one for one in box.not_enforced)
        assert len(_storages(base)) == 1
        assert not _is_mounted(base)
        await output(box, "echo x >file")
        assert [change.path for change in (await box.diff()).entries] == ["/workspace/file"]
        await box.stop()

        async def freed() -> bool:
            return _storages(base) == []

        await until("the storage is freed", freed)


_HARNESS = """
import asyncio, sys
from pathlib import Path
from rock.config import read_environment
from rock.sandbox.base import Limits, SandboxSpec
from rock.sandbox.docker.docker import DockerProvider

async def main(base, room):
    async with DockerProvider(host=read_environment().docker_host, base=base) as provider:
        await provider.create(SandboxSpec(limits=Limits(disk_bytes=room)))
        print("up", flush=True)
        await asyncio.sleep(300)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


async def test_a_killed_harness_leaves_no_file_system(tmp_path: Path) -> None:
    base = tmp_path / "b"
    harness = await process.start(
        [sys.executable, "-c", _HARNESS, base, str(ROOM)],
        env=dict(os.environ),
        cwd=Path(__file__).parents[2],
        stdout=process.PIPE,
    )
    assert harness.stdout is not None
    assert await asyncio.wait_for(harness.stdout.readline(), 40) == b"up\n"
    assert len(_storages(base)) == 1
    harness.send_signal(signal.SIGKILL)
    await harness.wait()
    engine = Engine(read_environment().docker_host)
    try:
        removed = await reap(engine, base=base)
    finally:
        await engine.close()
    assert len(removed.containers) >= 1

    async def freed() -> bool:
        return _storages(base) == []

    await until("the storage is freed", freed)


async def test_too_little_disk_is_a_clear_refusal(tmp_path: Path) -> None:
    async with DockerProvider(host=read_environment().docker_host, base=tmp_path / "b") as provider:
        with pytest.raises(ConfigError, match=r"disk_bytes: got 1000, expected at least 16777216"):
            await provider.create(SandboxSpec(limits=Limits(disk_bytes=1000)))
