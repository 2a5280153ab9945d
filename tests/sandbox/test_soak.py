"""Thousands of sandboxes made, used, broken and ended: nothing may be left, and memory may not grow.

The short form runs with the other tests; `make soak-sandbox` is the long one. What is done to each
sandbox is drawn from a seed, which is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rock.config import read_environment
from rock.errors import SandboxBusy, SandboxDied, SandboxError
from rock.sandbox.base import ExecStatus, Provider, Sandbox, SandboxSpec
from rock.sandbox.box.stateful import StatefulSandbox
from rock.sandbox.docker import DockerProvider
from rock.sandbox.docker.engine import Engine
from rock.sandbox.local import LocalProvider
from tests.needs import BUSYBOX_IMAGE

SOAK_SECONDS = 3600
RESETS_PER_SANDBOX = 4
_OF_AN_ENGINE = re.compile(r"/(overlay2|containers|netns)/")
"""Mounts of containers, which others may be starting meanwhile."""


@dataclass(frozen=True)
class Baseline:
    """What this process has of the machine, without the containers that others may be using."""

    descriptors: int
    children: int
    threads: int
    mounts: int
    groups: int

    @classmethod
    def now(cls) -> Baseline:
        tasks = list(Path("/proc/self/task").iterdir())
        children = "".join((task / "children").read_text() for task in tasks).split()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        groups = Path("/sys/fs/cgroup").glob(f"*/rock/*.{os.getpid()}.*")
        return cls(
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            children=len(children),
            threads=len(tasks),
            mounts=len([line for line in mounts if not _OF_AN_ENGINE.search(line)]),
            groups=len(list(groups)),
        )


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """Cycles of one provider. A fault that it causes itself is no failure; anything else is."""

    def __init__(self, provider: Provider, spec: SandboxSpec, seed: int) -> None:
        self.provider = provider
        self.spec = spec
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def cycles(self, count: int, *, at_once: int) -> None:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                await self.cycle()

        await asyncio.gather(*(work() for _ in range(at_once)))

    async def cycle(self) -> None:
        acts = [self.fine, self.slow, self.loud, self.dirty, self.cancelled, self.kept, self.killed]
        async with await self.provider.create(self.spec) as box:
            self.done["created"] += 1
            for _ in range(self.random.randint(1, RESETS_PER_SANDBOX)):
                act = self.random.choice(acts)
                self.done[act.__name__] += 1
                await act(box)
                receipt = await box.reset()
                self.done[f"reset {receipt.tier}"] += 1
                assert receipt.clean, receipt
                listed = await box.exec(["sh", "-c", "ls -A . /tmp | wc -l"], timeout_seconds=60)
                assert listed.stdout.split() == [b"3"], (act.__name__, listed)

    async def fine(self, box: Sandbox) -> None:
        result = await box.exec(["sh", "-c", "echo $((40 + 2)) >f; cat f"], timeout_seconds=60)
        assert result.stdout == b"42\n", result

    async def slow(self, box: Sandbox) -> None:
        script = "(setsid sleep 300 &); sleep 300 & sleep 300"
        result = await box.exec(["sh", "-c", script], timeout_seconds=0.1)
        assert result.status is ExecStatus.TIMED_OUT, result

    async def loud(self, box: Sandbox) -> None:
        result = await box.exec(
            ["cat", "/dev/zero"], timeout_seconds=60, output_limit_bytes=100_000
        )
        assert result.status is ExecStatus.OUTPUT_LIMIT, result

    async def dirty(self, box: Sandbox) -> None:
        script = (
            "for i in 1 2 3 4 5 6 7 8 9; do mkdir -p a/$i; echo x >a/$i/f; done; echo x >/tmp/x"
        )
        assert (await box.exec(["sh", "-c", script], timeout_seconds=60)).ok

    async def cancelled(self, box: Sandbox) -> None:
        running = asyncio.ensure_future(box.exec(["sleep", "300"], timeout_seconds=400))
        await asyncio.sleep(self.random.uniform(0, 0.02))
        running.cancel()
        await asyncio.wait([running])

    async def kept(self, box: Sandbox) -> None:
        await box.write_file("kept", b"1")
        try:
            snapshot = await box.snapshot()
        except SandboxBusy:  # what was cancelled just now is still ending
            return
        await box.write_file("kept", b"2")
        await box.restore(snapshot)
        assert await box.read_file("kept") == b"1"
        snapshot.release()

    async def killed(self, box: Sandbox) -> None:
        """The box ends in the middle of a command, as by a crash of the machine below it."""
        assert isinstance(box, StatefulSandbox)
        running = asyncio.ensure_future(box.exec(["sleep", "300"], timeout_seconds=400))
        await asyncio.sleep(self.random.uniform(0, 0.02))
        with contextlib.suppress(SandboxDied):
            await box.state.renew(lifetime_seconds=0.001)
        with contextlib.suppress(SandboxDied):
            assert (await running).status is ExecStatus.SANDBOX_DIED


async def until_same(before: Baseline) -> None:
    """What is freed off the path is freed in the end. Threads of the default pool may stay."""
    deadline = time.monotonic() + 30
    while (now := Baseline.now()) != before:
        if time.monotonic() > deadline:
            raise AssertionError(f"left behind: {now}, before: {before}")
        await asyncio.sleep(0.1)


async def soak(make: Callable[[], Provider], spec: SandboxSpec, cycles: int, at_once: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201 (to run the same again)
    async with make() as provider:  # what is made once and stays: threads, code, caches
        await Soak(provider, spec, seed).cycles(3, at_once=1)
    before = Baseline.now()
    sizes: list[int] = []
    started = time.monotonic()
    async with make() as provider:
        run = Soak(provider, spec, seed)
        for _ in range(10):
            await run.cycles(max(1, cycles // 10), at_once=at_once)
            sizes.append(resident_bytes())
    await until_same(before)
    seconds = time.monotonic() - started
    grown = (sizes[-1] - sizes[len(sizes) // 2]) / 1024
    print(  # noqa: T201 (the soak's report)
        f"{dict(run.done)} in {seconds:.0f} s; resident memory grew by {grown:.0f} KiB in the second half"
    )
    assert grown < 20 * 1024, sizes


def docker() -> DockerProvider:
    return DockerProvider(host=read_environment().docker_host, run_id=RUN_ID)


RUN_ID = f"soak-{uuid.uuid4().hex[:8]}"


async def containers_left() -> list[str]:
    engine = Engine(read_environment().docker_host)
    try:
        return [found.name for found in await engine.containers(f"rock.run={RUN_ID}")]
    finally:
        await engine.close()


@pytest.mark.userns
async def test_cycles_of_local_sandboxes_leave_nothing() -> None:
    await soak(LocalProvider, SandboxSpec(), cycles=30, at_once=2)


@pytest.mark.soak
@pytest.mark.userns
@pytest.mark.timeout(SOAK_SECONDS)
async def test_thousands_of_local_sandboxes_leave_nothing() -> None:
    await soak(LocalProvider, SandboxSpec(), cycles=4500, at_once=4)


@pytest.mark.soak
@pytest.mark.docker
@pytest.mark.timeout(SOAK_SECONDS)
async def test_hundreds_of_containers_leave_nothing() -> None:
    await soak(docker, SandboxSpec(image=BUSYBOX_IMAGE), cycles=500, at_once=4)
    assert await containers_left() == []


@pytest.mark.soak
@pytest.mark.docker
@pytest.mark.timeout(SOAK_SECONDS)
async def test_containers_that_are_removed_by_somebody_else_leave_nothing() -> None:
    """As after a restart of the engine, which ends every container."""
    before = Baseline.now()
    engine = Engine(read_environment().docker_host)
    try:
        async with docker() as provider:
            for _ in range(50):
                async with await provider.create(SandboxSpec(image=BUSYBOX_IMAGE)) as box:
                    await engine.remove(f"rock-{box.id}")
                    with contextlib.suppress(SandboxError):
                        await box.exec(["true"], timeout_seconds=10)
                    receipt = await box.reset()
                    assert receipt.tier == "rebuild"
                    assert (await box.exec(["true"], timeout_seconds=10)).ok
    finally:
        await engine.close()
    assert await containers_left() == []
    assert Baseline.now().children == before.children
