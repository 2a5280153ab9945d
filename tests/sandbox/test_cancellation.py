"""Cancelled at any moment, or out of descriptors: nothing is lost, nothing is left, and it is said what it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rock.config import read_environment
from rock.errors import CapacityExceeded, SandboxBusy
from rock.sandbox.base import Provider, Sandbox, SandboxSpec
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from rock.sandbox.pool import PooledProvider, PoolPolicy
from rock.sandbox.state import Snapshot
from tests.needs import BUSYBOX_IMAGE
from tests.sandbox.test_soak import Baseline, until_same

LOCAL = pytest.param(LocalProvider, SandboxSpec(), id="local", marks=pytest.mark.userns)
DOCKER = pytest.param(
    lambda: DockerProvider(host=read_environment().docker_host),
    SandboxSpec(image=BUSYBOX_IMAGE),
    id="docker",
    marks=pytest.mark.docker,
)
PROVIDERS = pytest.mark.parametrize(("make", "spec"), [LOCAL, DOCKER])
Make = Callable[[], Provider]


async def cancel_after(turns: int, work: asyncio.Future[Any]) -> None:
    """Let the loop go round so often, then cancel; also twice, as a time-out around a time-out does."""
    for _ in range(turns):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.sleep(0)
    work.cancel()
    done, _ = await asyncio.wait([work], timeout=30)
    assert done, work


@PROVIDERS
@pytest.mark.parametrize("what", ["snapshot", "reset"])
async def test_a_change_of_state_is_done_or_not_done(
    make: Make, spec: SandboxSpec, what: str
) -> None:
    """A root put in its place and not in our book would lose what is written to it."""
    async with make() as provider, await provider.create(spec) as box:
        for turns in range(20):
            await box.write_file("before", b"%d" % turns)
            work: asyncio.Future[Any] = asyncio.ensure_future(
                box.snapshot() if what == "snapshot" else box.reset()
            )
            await cancel_after(turns, work)
            if not work.cancelled() and isinstance(made := work.result(), Snapshot):
                made.release()
            await box.write_file("after", b"%d" % turns)
            changes = {change.path.rpartition("/")[2] for change in (await box.diff()).entries}
            kept = await box.snapshot()
            await box.reset()
            await box.restore(kept)
            kept.release()
            assert await box.read_file("after") == b"%d" % turns
            listed = (await box.exec(["ls"], timeout_seconds=20)).stdout.split()
            assert {b"before" in listed, "before" in changes} <= {True, what == "snapshot"}
            assert ("before" in changes) == (b"before" in listed)
            await box.reset()


async def _use(box: Sandbox, rng: random.Random, folder: Path) -> None:
    while True:
        match rng.randrange(7):
            case 0:
                await box.reset()
            case 1:
                with contextlib.suppress(SandboxBusy):
                    await box.restore(await box.snapshot())
            case 2:
                await box.exec(["sh", "-c", "sleep 30 & echo hi"], timeout_seconds=20)
            case 3:
                async with box.stream(["yes"], timeout_seconds=20) as process:
                    await anext(process.events())
            case 4:
                async with await box.shell() as shell:
                    await shell.run("cd /tmp", timeout_seconds=20)
            case 5:
                await box.upload(folder, "copy")
            case _:
                (await box.listen()).close()


async def _storm(provider: Provider, spec: SandboxSpec, count: int, folder: Path) -> None:
    rng = random.Random(count)
    at_once = asyncio.Semaphore(8)

    async def life() -> None:
        async with await provider.create(spec) as box:
            await _use(box, rng, folder)

    async def one() -> None:
        async with at_once:
            work = asyncio.ensure_future(life())
            await asyncio.sleep(rng.random() ** 2 * 0.3)
            await cancel_after(0, work)
            assert work.cancelled(), work.exception()

    await asyncio.gather(*(one() for _ in range(count)))


def pooled() -> Provider:
    return PooledProvider(LocalProvider(), PoolPolicy(ready_min=2, ready_max=4))


@pytest.mark.userns
@pytest.mark.parametrize("make", [LocalProvider, pooled])
@pytest.mark.parametrize(
    "count", [20, pytest.param(400, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
async def test_sandboxes_cancelled_at_any_moment_leave_nothing(
    make: Make, count: int, tmp_path: Path
) -> None:
    for name in range(30):
        (tmp_path / f"{name}").write_bytes(bytes(10_000))
    async with make() as provider:
        await _storm(provider, SandboxSpec(), 3, tmp_path)
    await _with_idle_threads()
    before = Baseline.now()
    async with make() as provider:
        await _storm(provider, SandboxSpec(), count, tmp_path)
    await until_same(before)


async def _with_idle_threads() -> None:
    """As many as the loop's pool may ever have: they stay, and are nobody's leftovers."""
    most = min(32, (os.cpu_count() or 1) + 4)
    together = asyncio.gather(*(asyncio.to_thread(_nap) for _ in range(most)))
    await together


def _nap() -> None:
    time.sleep(0.05)


@pytest.mark.userns
async def test_a_snapshot_ends_with_its_provider() -> None:
    async with LocalProvider() as provider:
        async with await provider.create(SandboxSpec()) as box:
            before = _descriptors()
            await box.write_file("file", b"x")
            await box.snapshot()
        assert _descriptors() > before - _OF_A_BOX
    assert _descriptors() == before - _OF_A_BOX


_OF_A_BOX = 2
"""Its control socket, and what tells when its process ends."""


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def no_descriptors_but(few: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]  # fill what is free below
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(kept) + 1 + few, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in kept:
            os.close(fd)


@asynccontextmanager
async def one_of(make: Make, spec: SandboxSpec) -> AsyncGenerator[tuple[Provider, Sandbox]]:
    async with make() as provider, await provider.create(spec) as box:
        yield provider, box


async def _error_of(attempt: Awaitable[object]) -> CapacityExceeded | None:
    try:
        await attempt
    except CapacityExceeded as exc:
        return exc
    return None


@PROVIDERS
@pytest.mark.parametrize("few", [0, 1, 3, 5, 6])
async def test_a_harness_without_descriptors_does_not_call_its_sandboxes_dead(
    make: Make, spec: SandboxSpec, few: int
) -> None:
    async with one_of(make, spec) as (provider, box):
        await box.write_file("file", b"x")
        before = _descriptors()
        with no_descriptors_but(few):
            for attempt in (
                lambda: box.exec(["true"], timeout_seconds=10),
                lambda: box.spawn(["sleep", "0.01"]),
                lambda: box.read_file("file"),
                box.reset,
                lambda: provider.create(spec),
            ):
                error = await _error_of(attempt())
                assert error is None or "open files" in error.message
        await box.write_file("file", b"y")
        assert await box.read_file("file") == b"y"
        assert (await box.exec(["true"], timeout_seconds=10)).ok
        async with asyncio.timeout(20):
            while _descriptors() > before:  # noqa: ASYNC110 (a layer is made ready, or freed)
                await asyncio.sleep(0.02)
