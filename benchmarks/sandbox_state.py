"""Resets, pools, and many sandboxes at once, beside what the engine itself would take.

    python benchmarks/sandbox_state.py [--providers local,docker] [--rounds 9] [--many 1000] [--json] [--check]

Each reset has 5,000 changed files and 14 processes before it, and is taken in turn with `docker rm`,
`create` and `start`, so that other work on the machine slows both: the bar is their ratio. Figures are
medians in milliseconds. `--check` exits with 1 and says which bar falls short.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bar import Bar

from rock import process
from rock.config import inherited_environment, read_environment
from rock.errors import SandboxError
from rock.sandbox.base import ExecResult, Provider, Sandbox, SandboxSpec
from rock.sandbox.doctor import providers
from rock.sandbox.pool import PooledProvider, PoolPolicy

MAKE_FILES = """
for i in $(seq 100); do mkdir $i; for j in $(seq 50); do echo x >$i/$j; done; done
for i in 1 2 3 4 5 6 7; do (setsid sleep 300 & sleep 300) & done; echo ready >ready; sleep 300
"""
WAIT_SECONDS = 60.0


@dataclass
class Figures:
    """Medians of one provider in milliseconds, memory in MB; None where it was not measured."""

    provider: str
    create_ms: float | None = None
    reset_ms: float | None = None
    reset_min_ms: float | None = None
    reset_tier: str | None = None
    engine_recreate_ms: float | None = None
    pool_claim_ms: float | None = None
    snapshot_ms: float | None = None
    restore_ms: float | None = None
    idle_mb: float | None = None
    live: int | None = None
    live_bound: str | None = None
    """Why there were not more, if there were less than asked."""
    live_create_seconds: float | None = None
    live_answer_seconds: float | None = None
    reason: str | None = None


async def timed_ms(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return 1000 * (time.perf_counter() - started)


async def dirty(box: Sandbox) -> asyncio.Future[ExecResult]:
    running = asyncio.ensure_future(box.exec(["sh", "-c", MAKE_FILES], timeout_seconds=300))
    deadline = time.monotonic() + WAIT_SECONDS
    while b"ready" not in (await box.exec(["ls"], timeout_seconds=30)).stdout.split():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return running


async def docker(*arguments: str) -> None:
    done = await process.start(
        ["docker", *arguments],
        env=inherited_environment(),
        stdout=process.DEVNULL,
        stderr=process.DEVNULL,
    )
    assert await done.wait() == 0, arguments


async def recreate(name: str, image: str) -> None:
    await docker("rm", "-f", name)
    await docker(
        "create", "--network", "none", "--name", name, image, "/bin/busybox", "sleep", "300"
    )
    await docker("start", name)


async def measure_resets(
    figures: Figures, provider: Provider, rounds: int, image: str | None
) -> None:
    name = f"rock-bench-{uuid.uuid4().hex[:8]}"
    resets: list[float] = []
    engine: list[float] = []
    if image:
        await docker(
            "create", "--network", "none", "--name", name, image, "/bin/busybox", "sleep", "300"
        )
    try:
        async with await provider.create(SandboxSpec()) as box:
            for _ in range(rounds):
                running = await dirty(box)
                started = time.perf_counter()
                receipt = await box.reset()
                resets.append(1000 * (time.perf_counter() - started))
                assert receipt.clean
                assert receipt.ended >= 14 or receipt.tier != "sweep", receipt
                figures.reset_tier = receipt.tier
                await running
                assert (await box.exec(["ls"], timeout_seconds=30)).stdout == b""
                if image:
                    engine.append(await timed_ms(recreate(name, image)))
            await box.write_file("file", b"x")
            snapshots = [await box.snapshot() for _ in range(3)]
            figures.snapshot_ms = await timed_ms(box.snapshot())
            figures.restore_ms = statistics.median(
                [await timed_ms(box.restore(snapshot)) for snapshot in snapshots]
            )
    finally:
        if image:
            await docker("rm", "-f", name)
    figures.reset_ms, figures.reset_min_ms = statistics.median(resets), min(resets)
    figures.engine_recreate_ms = statistics.median(engine) if engine else None


async def measure_creates(figures: Figures, provider: Provider, rounds: int) -> None:
    times: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        async with await provider.create(SandboxSpec()):
            times.append(1000 * (time.perf_counter() - started))
    figures.create_ms = statistics.median(times)


async def measure_pool(figures: Figures, make: Callable[[], Provider], rounds: int) -> None:
    policy = PoolPolicy(ready_min=2, ready_max=4)
    async with PooledProvider(make(), policy) as pool:
        claims: list[float] = []
        await pool.warm(SandboxSpec())
        for _ in range(rounds):
            deadline = time.monotonic() + WAIT_SECONDS
            while pool.counts().ready < 2 or pool.counts().making:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            started = time.perf_counter()
            box = await pool.create(SandboxSpec())
            claims.append(1000 * (time.perf_counter() - started))
            await box.stop()
        figures.pool_claim_ms = statistics.median(claims)


def available_mb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("MemAvailable:"))
    return int(line.split()[1]) / 1024


async def create_many(provider: Provider, many: int) -> tuple[list[Sandbox], str | None]:
    """So many, or as many as the machine has room for, and then why there are no more."""
    boxes: list[Sandbox] = []
    reasons: list[str] = []
    left = iter(range(many))

    async def create() -> None:
        for _ in left:
            if reasons:
                return
            try:
                boxes.append(await provider.create(SandboxSpec()))
            except SandboxError as exc:
                reasons.append(exc.message)

    await asyncio.gather(*(create() for _ in range(8)))
    return boxes, reasons[0] if reasons else None


async def measure_many(figures: Figures, provider: Provider, many: int) -> None:
    """All alive, every one answering; memory is what the machine has less of."""
    before = available_mb()
    started = time.perf_counter()
    boxes, figures.live_bound = await create_many(provider, many)
    figures.live_create_seconds = time.perf_counter() - started
    figures.idle_mb = (before - available_mb()) / len(boxes)
    free = asyncio.Semaphore(64)

    async def answer(box: Sandbox) -> bool:
        async with free:
            return (await box.exec(["true"], timeout_seconds=60)).ok

    started = time.perf_counter()
    assert all(await asyncio.gather(*(answer(box) for box in boxes)))
    figures.live = len(boxes)
    figures.live_answer_seconds = time.perf_counter() - started
    await asyncio.gather(*(box.stop() for box in boxes))


async def measure(name: str, rounds: int, many: int, image: str | None) -> Figures:
    def make() -> Provider:
        host = read_environment().docker_host
        (found,) = (each for each in providers(host) if each.name == name)
        return found

    figures = Figures(provider=name)
    async with make() as provider:
        probed = await provider.probe()
        if not probed.available:
            figures.reason = probed.detail
            return figures
        await measure_creates(figures, provider, rounds)
        await measure_resets(figures, provider, rounds, image)
        if many:
            await measure_many(figures, provider, many)
    await measure_pool(figures, make, rounds)
    return figures


def bars(rows: list[Figures]) -> list[Bar]:
    found: list[Bar] = []
    engine = next((row.engine_recreate_ms for row in rows if row.engine_recreate_ms), None)
    for row in rows:
        name = row.provider
        if row.reset_ms is not None and engine is not None:
            found.append(
                Bar(f"{name}: reset / engine's rm+create+start", row.reset_ms / engine, 1 / 30)
            )
        if row.pool_claim_ms is not None:
            found.append(Bar(f"{name}: claim from a warm pool, ms", row.pool_claim_ms, 10))
        if name == "local" and row.create_ms is not None:
            found.append(Bar("local: create, ms", row.create_ms, 50))
        if name == "local" and row.idle_mb is not None:
            found.append(Bar("local: memory of an idle sandbox, MB", row.idle_mb, 5))
        if name == "local" and row.live is not None:
            found.append(
                Bar("local: live sandboxes that all answer", row.live, 1000, at_least=True)
            )
    return found


async def bench(names: list[str], rounds: int, many: dict[str, int]) -> list[Figures]:
    image = "rock-busybox:latest" if shutil.which("docker") else None
    if image:
        with contextlib.suppress(AssertionError):
            await docker("image", "inspect", image)
            return [await measure(name, rounds, many.get(name, 0), image) for name in names]
    return [await measure(name, rounds, many.get(name, 0), None) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--providers", default="local,docker", help="names, with commas")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--many", type=int, default=1000, help="live local sandboxes")
    parser.add_argument("--many-docker", type=int, default=20, help="live docker ones")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar falls short")
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    many = {"local": given.many, "docker": given.many_docker}
    rows = asyncio.run(bench(given.providers.split(","), given.rounds, many))
    verdicts = bars(rows)
    if given.json:
        shown = [{**asdict(bar), "kept": bar.kept} for bar in verdicts]
        print(json.dumps({"figures": [asdict(row) for row in rows], "bars": shown}, indent=2))
    else:
        for row in rows:
            print(" ".join(f"{name}={value}" for name, value in asdict(row).items()))
        print("\n".join(map(str, verdicts)))
    if given.check and not (verdicts and all(bar.kept for bar in verdicts)):
        sys.exit(1)


if __name__ == "__main__":
    main()
