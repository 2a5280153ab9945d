"""Thousands of sandboxes made, used, broken and ended: nothing may be left, and memory may not grow.

The short form runs with the other tests; `make soak-sandbox` is the long one. What is done to each
sandbox is drawn from a seed, which is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rock.errors import SandboxBusy, SandboxDied, SandboxError
from rock.sandbox.base import ExecResult, ExecStatus, Provider, Sandbox, SandboxSpec
from rock.sandbox.box.stateful import StatefulSandbox
from rock.sandbox.docker import DockerProvider
from rock.sandbox.docker.engine import Engine
from rock.sandbox.ending import to_the_end
from rock.sandbox.local import LocalProvider
from tests.needs import BUSYBOX_IMAGE
from tests.private_engine import PrivateEngine, private_engine
from tests.sandbox.baseline import Baseline, resident_bytes, until_same

SOAK_SECONDS = 3600
RESETS_PER_SANDBOX = 4
PARTS = 10
STORM_SECONDS = (1.0, 6.0)
"""Between two ends of the engine."""


class Soak:
    """Cycles of one provider. A fault that it causes itself is no failure; anything else is.

    With an `engine`, it is killed or stopped now and then, and containers are removed behind the
    provider's back: then a sandbox may be refused, or die, if it says so.
    """

    def __init__(
        self,
        provider: Provider,
        spec: SandboxSpec,
        drawn: random.Random,
        engine: PrivateEngine | None = None,
    ) -> None:
        self.provider = provider
        self.spec = spec
        self.random = drawn
        self.engine = engine
        self.done: Counter[str] = Counter()

    async def cycles(self, count: int, *, at_once: int) -> None:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                await self.cycle()

        storm = asyncio.ensure_future(self.storm())
        try:
            await asyncio.gather(*(work() for _ in range(at_once)))
        finally:
            storm.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await storm

    async def storm(self) -> None:
        if self.engine is None:
            return
        while True:
            await asyncio.sleep(self.random.uniform(*STORM_SECONDS))
            how = self.random.choice([self.engine.kill, self.engine.stop])
            await to_the_end(self.restart(how))

    async def restart(self, end: Callable[[], Awaitable[None]]) -> None:
        assert self.engine is not None
        self.done[f"engine: {end.__name__}"] += 1
        await end()
        await self.engine.start()

    async def cycle(self) -> None:
        try:
            await self._cycle()
        except SandboxError as exc:
            if self.engine is None:
                raise
            self.done[f"ended by {type(exc).__name__}"] += 1
            # As an episode would: another one, after a moment.
            await asyncio.sleep(self.random.uniform(0, 0.5))

    async def _cycle(self) -> None:
        acts = [self.fine, self.slow, self.loud, self.dirty, self.cancelled, self.kept, self.killed]
        if self.engine is not None:
            acts.append(self.removed)
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
                self.check(listed.stdout.split() == [b"3"], listed)

    def check(self, holds: bool, result: ExecResult) -> None:
        if self.engine is not None and result.status is ExecStatus.SANDBOX_DIED:
            assert result.death is not None
            raise SandboxDied("in the storm", cause=result.death.cause)
        assert holds, result

    async def fine(self, box: Sandbox) -> None:
        result = await box.exec(["sh", "-c", "echo $((40 + 2)) >f; cat f"], timeout_seconds=60)
        self.check(result.stdout == b"42\n", result)

    async def slow(self, box: Sandbox) -> None:
        script = "(setsid sleep 300 &); sleep 300 & sleep 300"
        result = await box.exec(["sh", "-c", script], timeout_seconds=0.1)
        self.check(result.status is ExecStatus.TIMED_OUT, result)

    async def loud(self, box: Sandbox) -> None:
        result = await box.exec(
            ["cat", "/dev/zero"], timeout_seconds=60, output_limit_bytes=100_000
        )
        self.check(result.status is ExecStatus.OUTPUT_LIMIT, result)

    async def dirty(self, box: Sandbox) -> None:
        script = (
            "for i in 1 2 3 4 5 6 7 8 9; do mkdir -p a/$i; echo x >a/$i/f; done; echo x >/tmp/x"
        )
        result = await box.exec(["sh", "-c", script], timeout_seconds=60)
        self.check(result.ok, result)

    async def cancelled(self, box: Sandbox) -> None:
        running = asyncio.ensure_future(box.exec(["sleep", "300"], timeout_seconds=400))
        await asyncio.sleep(self.random.uniform(0, 0.02))
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()

    async def kept(self, box: Sandbox) -> None:
        await box.write_file("kept", b"1")
        try:
            snapshot = await box.snapshot()
        except SandboxBusy:  # what was cancelled just now is still ending
            return
        await box.write_file("kept", b"2")
        try:
            await box.restore(snapshot)
            assert await box.read_file("kept") == b"1"
        finally:
            snapshot.release()

    async def killed(self, box: Sandbox) -> None:
        """The box ends in the middle of a command, as by a crash of the machine below it."""
        assert isinstance(box, StatefulSandbox)
        await self._dies(box, box.state.renew(lifetime_seconds=0.001))

    async def removed(self, box: Sandbox) -> None:
        """Somebody removes the container in the middle of a command."""
        assert isinstance(self.provider, DockerProvider)
        await self._dies(box, self.provider.engine.remove(f"rock-{box.id}"))

    async def _dies(self, box: Sandbox, fault: Awaitable[object]) -> None:
        running = asyncio.ensure_future(box.exec(["sleep", "300"], timeout_seconds=400))
        await asyncio.sleep(self.random.uniform(0, 0.02))
        try:
            with contextlib.suppress(SandboxDied):
                await fault
        except SandboxError:  # no engine to do it
            running.cancel()
            await asyncio.wait([running])
            raise
        with contextlib.suppress(SandboxDied):
            assert (await running).status is ExecStatus.SANDBOX_DIED


async def soak(
    make: Callable[[], Provider],
    spec: SandboxSpec,
    cycles: int,
    at_once: int,
    engine: PrivateEngine | None = None,
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    async with make() as provider:  # what is made once and stays: threads, code, caches
        await Soak(provider, spec, random.Random(seed)).cycles(3, at_once=1)
    before = Baseline.now()
    sizes: list[float] = []
    started = time.monotonic()
    async with make() as provider:
        run = Soak(provider, spec, random.Random(seed), engine)
        for _ in range(PARTS):
            await run.cycles(max(1, cycles // PARTS), at_once=at_once)
            sizes.append(resident_bytes() / 1024)
    after = await until_same(before)
    # What the first half makes ready, the second half uses.
    late = sizes[PARTS // 2 :]
    slope = statistics.linear_regression(range(len(late)), late).slope * PARTS / cycles
    print(  # noqa: T201 (the soak's report)
        f"\nseed {seed}: {cycles} cycles in {time.monotonic() - started:.0f} s: {dict(run.done)}\n"
        f"before: {before}\nafter:  {after}\n"
        f"resident memory {sizes[0]:.0f} to {sizes[-1]:.0f} KiB; {slope:.2f} KiB per cycle at the end"
    )
    assert late[-1] - late[0] < 20 * 1024, sizes


@pytest.mark.userns
async def test_cycles_of_local_sandboxes_leave_nothing() -> None:
    await soak(LocalProvider, SandboxSpec(), cycles=15, at_once=2)


@pytest.mark.soak
@pytest.mark.userns
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("part", [1, 2, 3])
async def test_thousands_of_local_sandboxes_leave_nothing(part: int) -> None:
    await soak(LocalProvider, SandboxSpec(), cycles=1500, at_once=4)


@pytest.mark.soak
@pytest.mark.docker
@pytest.mark.timeout(SOAK_SECONDS)
@pytest.mark.parametrize("stormy", [False, True], ids=["engine stays", "engine is restarted"])
async def test_hundreds_of_containers_leave_nothing(tmp_path: Path, stormy: bool) -> None:
    async with private_engine(images=[BUSYBOX_IMAGE]) as engine:

        def make() -> DockerProvider:
            return DockerProvider(host=engine.host, base=tmp_path / "b", lease_seconds=20)

        spec = SandboxSpec(image=BUSYBOX_IMAGE)
        await soak(make, spec, cycles=500, at_once=4, engine=engine if stormy else None)
        left = (engine.running(), await containers_of(engine), [*(tmp_path / "b").iterdir()])
        forgot = f"{len(engine.shims())} shims that the engine forgot"
        print(f"containers, their processes, directories: {left}; {forgot}")  # noqa: T201 (the report)
        assert left == ([], [], [])


async def containers_of(engine: PrivateEngine) -> list[str]:
    client = Engine(engine.host)
    try:
        return [found.name for found in await client.containers("rock.run")]
    finally:
        await client.close()
