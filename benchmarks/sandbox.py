"""Create and exec round trip per provider, and `docker exec` beside them.

    python benchmarks/sandbox.py [--providers local,docker] [--creates 5] [--execs 50] [--json]

Figures are medians in milliseconds, taken in one run on one machine: compare ratios. A provider that
does not work here is named with its reason and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from rock.config import read_environment
from rock.sandbox.base import Provider, Sandbox, SandboxSpec
from rock.sandbox.doctor import providers


@dataclass(frozen=True)
class Figures:
    """Medians of one provider in milliseconds; None where it was not measured."""

    provider: str
    create_ms: float | None = None
    exec_true_ms: float | None = None
    exec_shell_ms: float | None = None
    write_read_1kb_ms: float | None = None
    stop_ms: float | None = None
    docker_exec_ms: float | None = None
    reason: str | None = None


async def median_ms(count: int, work: Callable[[], Awaitable[object]]) -> float:
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        await work()
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


async def measure(provider: Provider, creates: int, execs: int) -> Figures:
    found = await provider.probe()
    if not found.available:
        return Figures(provider=provider.name, reason=found.detail)
    boxes: list[Sandbox] = []

    async def create() -> None:
        boxes.append(await provider.create(SandboxSpec()))

    create_ms = await median_ms(creates, create)
    box = boxes[-1]

    async def true() -> None:
        result = await box.exec(["true"], timeout_seconds=10)
        assert result.ok

    async def shell() -> None:
        result = await box.exec(["sh", "-c", "echo $((1 + 1))"], timeout_seconds=10)
        assert result.stdout == b"2\n"

    async def write_and_read() -> None:
        await box.write_file("/workspace/file", b"x" * 1024)
        assert len(await box.read_file("/workspace/file")) == 1024

    exec_ms = await median_ms(execs, true)
    shell_ms = await median_ms(execs, shell)
    file_ms = await median_ms(execs, write_and_read)
    docker_ms = None
    if provider.name == "docker" and shutil.which("docker"):
        docker_ms = await median_ms(max(3, execs // 10), lambda: docker_exec(box))
    left = iter(boxes)
    stop_ms = await median_ms(len(boxes), lambda: next(left).stop())
    return Figures(
        provider=provider.name,
        create_ms=create_ms,
        exec_true_ms=exec_ms,
        exec_shell_ms=shell_ms,
        write_read_1kb_ms=file_ms,
        stop_ms=stop_ms,
        docker_exec_ms=docker_ms,
    )


async def docker_exec(box: Sandbox) -> None:
    """The way that everybody else takes: a `docker exec` for each command."""
    await asyncio.to_thread(
        subprocess.run, ["docker", "exec", f"rock-{box.id}", "/usr/bin/true"], check=True
    )


async def bench(names: list[str], creates: int, execs: int) -> list[Figures]:
    rows: list[Figures] = []
    for provider in providers(read_environment().docker_host):
        async with provider:
            if provider.name in names:
                rows.append(await measure(provider, creates, execs))
    return rows


def table(rows: list[Figures]) -> str:
    names = [name for name in asdict(rows[0]) if name.endswith("_ms")]
    lines = [f"{'provider':10}" + "".join(f"{name.removesuffix('_ms'):>16}" for name in names)]
    for row in rows:
        if row.reason:
            lines.append(f"{row.provider:10}  not measured: {row.reason}")
            continue
        values = [asdict(row)[name] for name in names]
        shown = ["-" if value is None else f"{value:.2f}" for value in values]
        lines.append(f"{row.provider:10}" + "".join(f"{value:>16}" for value in shown))
    return "\n".join([*lines, "medians in milliseconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--providers", default="local,docker", help="names, with commas")
    parser.add_argument("--creates", type=int, default=5)
    parser.add_argument("--execs", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    given = parser.parse_args()
    rows = asyncio.run(bench(given.providers.split(","), given.creates, given.execs))
    print(json.dumps([asdict(row) for row in rows], indent=2) if given.json else table(rows))


if __name__ == "__main__":
    main()
