"""Leases: what a killed harness leaves is gone soon after, without a reaper; a living one keeps its own."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment, read_environment
from rock.errors import SandboxDied
from rock.sandbox.base import SandboxSpec
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.docker import DockerProvider
from rock.sandbox.docker.engine import Engine
from tests.needs import BUSYBOX_IMAGE
from tests.sandbox.plain_helper import plain_helper, wait_until_gone

LEASE_SECONDS = 2.0
OWNER = """
import asyncio, sys
from pathlib import Path
from rock.config import read_environment
from rock.sandbox.base import SandboxSpec
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.docker import DockerProvider

async def main():
    image, folder, run_id, lease = sys.argv[1:]
    provider = DockerProvider(
        host=read_environment().docker_host,
        run_id=run_id,
        base=Path(folder),
        lease_seconds=float(lease),
    )
    async with provider:
        sandbox = await provider.create(SandboxSpec(image=image))
        await sandbox.exec(["sh", "-c", "(setsid sleep 300 &) ; exit 0"], timeout_seconds=10)
        running = asyncio.ensure_future(sandbox.exec(["sleep", "300"], timeout_seconds=300))
        await asyncio.sleep(2 * float(lease))  # it is renewed meanwhile
        await sandbox.exec(["true"], timeout_seconds=10)
        print("up", flush=True)
        await running

asyncio.run(main())
"""


async def containers(run_id: str) -> list[str]:
    engine = Engine(read_environment().docker_host)
    try:
        return [found.name for found in await engine.containers(f"rock.run={run_id}")]
    finally:
        await engine.close()


@pytest.mark.docker
async def test_sigkill_of_a_harness_leaves_nothing_once_the_lease_is_over(tmp_path: Path) -> None:
    run_id = f"test-{uuid.uuid4().hex[:8]}"
    argv = [sys.executable, "-c", OWNER, BUSYBOX_IMAGE, tmp_path / "b", run_id, str(LEASE_SECONDS)]
    owner = await process.start(argv, env=inherited_environment(), stdout=process.PIPE)
    try:
        assert owner.stdout is not None
        assert await asyncio.wait_for(owner.stdout.readline(), 40) == b"up\n"
        assert len(await containers(run_id)) == 1
        owner.kill()
        await owner.wait()
        deadline = time.monotonic() + LEASE_SECONDS + 20
        while await containers(run_id):
            assert time.monotonic() < deadline, "the container outlives its lease"
            await asyncio.sleep(0.1)
    finally:
        await process.stop(owner)


@pytest.mark.docker
async def test_a_sandbox_without_heartbeat_is_told_dead(tmp_path: Path) -> None:
    provider = DockerProvider(
        host=read_environment().docker_host, base=tmp_path / "b", lease_seconds=1000
    )
    async with provider:
        sandbox = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))
        await sandbox.state.renew(lease_seconds=0.2)
        result = await sandbox.exec(["sleep", "30"], timeout_seconds=60)
        assert result.status == "sandbox_died"
        with pytest.raises(SandboxDied):
            await sandbox.exec(["true"], timeout_seconds=5)


async def test_the_helper_ends_when_its_lease_does_and_not_before(tmp_path: Path) -> None:
    async with plain_helper(tmp_path, "--lease", "1") as helper:
        for _ in range(6):
            await helper.run("sleep", "0.3")
            await BoxState(helper.channel, "plain", None).renew(lease_seconds=1.0)
        began = time.monotonic()
        await wait_until_gone(helper.process.pid)
        assert 0.5 < time.monotonic() - began < 10
