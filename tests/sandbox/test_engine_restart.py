"""A real engine that is killed, or stopped, and started again while sandboxes are made, used and ended.

The engine is the test's own. What ends meanwhile says so in its own words, teardown goes to its end, and
nothing is left. The long form, of every phase and every way, is `make soak-sandbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import ProviderUnavailable, SandboxDied, SandboxError
from rock.sandbox.base import ExecStatus, SandboxSpec
from rock.sandbox.box.channel_sandbox import ChannelSandbox
from rock.sandbox.docker.docker import DockerProvider
from rock.sandbox.docker.reaper import reap
from rock.sandbox.pool import PooledProvider, PoolPolicy
from tests.private_engine import PrivateEngine, private_engine
from tests.sandbox.baseline import Baseline, until_same
from tests.sandbox.plain_helper import until

pytestmark = pytest.mark.docker
SPEC = SandboxSpec()
LEASE_SECONDS = 8.0
How = Literal["kill", "stop"]


def provider_of(engine: PrivateEngine, folder: Path) -> DockerProvider:
    return DockerProvider(host=engine.host, base=folder / "b", lease_seconds=LEASE_SECONDS)


async def end(engine: PrivateEngine, how: How) -> None:
    await (engine.kill() if how == "kill" else engine.stop())


def folders(provider: DockerProvider) -> list[str]:
    """The directories of sandboxes that are still there."""
    found = provider.base.iterdir() if provider.base.exists() else ()
    return [
        path.name
        for path in found
        if path.is_dir() and not path.name.startswith(("layers-", "log-"))
    ]


async def until_nothing_is_left(engine: PrivateEngine, provider: DockerProvider) -> None:
    """Of containers, their processes and their directories; an engine takes a moment for its part."""
    deadline = time.monotonic() + 20
    while left := (
        await provider.engine.containers("rock.run"),
        engine.running(),
        folders(provider),
    ):
        if left == ([], [], []):
            return
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.05)


async def test_an_engine_may_crash_below_living_sandboxes(tmp_path: Path) -> None:
    """Commands and resets need no engine; what is stopped while it is away ends at once."""
    before = Baseline.now()
    async with private_engine() as engine, provider_of(engine, tmp_path) as provider:
        used = await provider.create(SPEC)
        kept = await provider.create(SPEC)
        running = await used.spawn(["sleep", "300"])
        await engine.kill()
        assert (await used.exec(["echo", "on"], timeout_seconds=20)).stdout == b"on\n"
        await used.write_file("dirty", b"1")
        assert (await used.reset()).tier == "sweep"
        assert (await running.wait()).status is ExecStatus.SIGNALED
        assert (await used.exec(["ls"], timeout_seconds=20)).stdout == b""
        with pytest.raises(ProviderUnavailable, match="no Docker engine answers"):
            await provider.create(SPEC)
        assert len(engine.running()) == 2
        await used.stop()
        await until("its first process is gone", lambda: len(engine.running()) == 1)
        assert folders(provider) == [kept.id]

        await engine.start()
        # This engine ends what a crash has left; the sandbox says so, and a reset makes it anew.
        with pytest.raises(SandboxDied, match="its container"):
            await kept.exec(["true"], timeout_seconds=20)
        assert (await kept.reset()).tier == "rebuild"
        assert (await kept.exec(["echo", "anew"], timeout_seconds=20)).stdout == b"anew\n"
        await kept.stop()
        await until_nothing_is_left(engine, provider)
    await until_same(before)


OWNER = """
import asyncio, sys
from pathlib import Path
from rock.sandbox.base import SandboxSpec
from rock.sandbox.docker import DockerProvider

async def main(host: str, base: str) -> None:
    async with DockerProvider(host=host, base=Path(base)) as provider:
        await provider.create(SandboxSpec())
        print("made", flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.soak
@pytest.mark.parametrize("live_restore", [False, True], ids=["plain", "live-restore"])
async def test_what_a_killed_harness_left_on_an_engine_that_crashed_is_found(
    tmp_path: Path, live_restore: bool
) -> None:
    async with (
        private_engine(live_restore=live_restore) as engine,
        provider_of(engine, tmp_path) as provider,
    ):
        owner = await process.start(
            [sys.executable, "-c", OWNER, engine.host, provider.base],
            env=inherited_environment(),
            stdout=process.PIPE,
        )
        try:
            assert owner.stdout is not None
            assert await asyncio.wait_for(owner.stdout.readline(), 60) == b"made\n"
            await engine.kill()
            owner.kill()
            await owner.wait()
            assert len(engine.running()) == len(folders(provider)) == 1
            await engine.start()
            await reap(provider.engine, base=provider.base)
            await until_nothing_is_left(engine, provider)
        finally:
            await process.stop(owner)


class Moment:
    """An engine that ends at a random moment of what is done meanwhile, and then is started again."""

    def __init__(self, engine: PrivateEngine, how: How, seconds: float) -> None:
        self._engine = engine
        self._how: How = how
        self._seconds = seconds

    async def during(self, work: Awaitable[object]) -> str:
        """What became of `work`, in a word. Whatever is no `SandboxError` is a failure of the test."""
        breaking = asyncio.ensure_future(self._break())
        try:
            async with asyncio.timeout(60):
                await work
        except SandboxError as exc:
            return type(exc).__name__
        finally:
            await breaking
        return "done"

    async def _break(self) -> None:
        await asyncio.sleep(self._seconds)
        await end(self._engine, self._how)
        await self._engine.start()


Phase = Callable[[DockerProvider, Moment], Awaitable[str]]


async def create(provider: DockerProvider, moment: Moment) -> str:
    made: list[ChannelSandbox] = []

    async def make() -> None:
        made.append(await provider.create(SPEC))

    said = await moment.during(make())
    for box in made:
        await box.stop()
    return said


async def command(provider: DockerProvider, moment: Moment) -> str:
    async with await provider.create(SPEC) as box:
        statuses: list[str] = []

        async def run() -> None:
            result = await box.exec(["sh", "-c", "echo begun; sleep 3"], timeout_seconds=30)
            statuses.append(f"{result.status}, {result.death.cause if result.death else None}")
            assert result.stdout in (b"begun\n", b""), result

        said = await moment.during(run())
        return statuses[0] if statuses else said


async def stream(provider: DockerProvider, moment: Moment) -> str:
    async with await provider.create(SPEC) as box:
        statuses: list[str] = []

        async def follow() -> None:
            script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"
            async with box.stream(["sh", "-c", script], timeout_seconds=30) as process:
                heard = b"".join([output.data async for output in process.events()])
                result = await process.wait()
            assert b"1\n2\n3\n4\n5\n6\n".startswith(heard)
            statuses.append(result.status)

        said = await moment.during(follow())
        return statuses[0] if statuses else said


async def stop(provider: DockerProvider, moment: Moment) -> str:
    boxes = [await provider.create(SPEC) for _ in range(3)]

    async def stop_them() -> None:
        for box in boxes:
            await box.stop()

    return await moment.during(stop_them())


async def reset(provider: DockerProvider, moment: Moment) -> str:
    async with await provider.create(SPEC) as box:
        tiers: list[str] = []

        async def reset_often() -> None:
            until = time.monotonic() + 1
            while time.monotonic() < until:
                await box.write_file("dirty", b"1")
                tiers.append((await box.reset()).tier)
                result = await box.exec(["ls"], timeout_seconds=20)
                assert result.stdout == b"", result

        said = await moment.during(reset_often())
        with contextlib.suppress(ProviderUnavailable):
            await box.reset()
            assert (await box.exec(["true"], timeout_seconds=20)).ok
        return f"{said}, last {tiers[-1] if tiers else None}"


async def refill(provider: DockerProvider, moment: Moment) -> str:
    policy = PoolPolicy(ready_min=2, ready_max=2, making_at_once=2)
    async with PooledProvider(provider, policy, owns_inner=False) as pool:
        await pool.warm(SPEC)

        async def claim() -> None:
            for _ in range(3):
                async with await pool.create(SPEC) as box:
                    result = await box.exec(["true"], timeout_seconds=20)
                    assert result.ok or result.status is ExecStatus.SANDBOX_DIED, result

        said = await moment.during(claim())
        deadline = time.monotonic() + 30
        while pool.counts().ready < 2:
            assert time.monotonic() < deadline, pool.counts()
            await asyncio.sleep(0.05)
        # Those that waited when the engine ended are found out when they are claimed.
        async with await pool.create(SPEC) as box:
            assert (await box.exec(["true"], timeout_seconds=20)).ok
        return said


@pytest.fixture
def seed() -> int:
    drawn = random.SystemRandom().getrandbits(32)
    print(f"seed {drawn}")  # noqa: T201 (to run the same again)
    return drawn


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("phase", [create, command, stream, stop, reset, refill])
@pytest.mark.parametrize("live_restore", [False, True], ids=["plain", "live-restore"])
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_an_engine_may_be_started_again_in_every_phase(
    tmp_path: Path, how: How, live_restore: bool, phase: Phase, seed: int
) -> None:
    drawn = random.Random(seed)
    before = Baseline.now()
    said: list[str] = []
    async with (
        private_engine(live_restore=live_restore) as engine,
        provider_of(engine, tmp_path) as provider,
    ):
        await (await provider.create(SPEC)).stop()
        for _ in range(5):
            moment = Moment(engine, how, drawn.uniform(0, 0.6))
            said.append(await phase(provider, moment))
        await until_nothing_is_left(engine, provider)
        assert (await reap(provider.engine, base=provider.base)).containers == ()
        forgotten = len(engine.shims())
    print(said, f"{forgotten} shims forgotten by the engine;", await until_same(before))  # noqa: T201 (what the soak reports)
