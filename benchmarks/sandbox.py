"""Sandbox operations per provider, and beside them what docker itself and SWE-ReX take for the same.

    python benchmarks/sandbox.py [--providers local,docker] [--creates 5] [--execs 100] [--json] [--check]

Figures are medians in milliseconds, taken in one run on one machine: compare ratios. Operations are
taken in turn with the others' (`sandbox_peers.py`), so that other work on the machine slows both. `--check` exits with 1
and says which bar falls short. A provider that does not work here is named with its reason and left
out, and so is a bar whose figures could not be taken.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

from bar import Bar
from sandbox_peers import Work, peers

from rock.config import read_environment
from rock.sandbox.base import Provider, Sandbox, SandboxSpec
from rock.sandbox.doctor import providers

PROCESS_RATIO = 1 / 25
SHELL_RATIO = 1 / 50
FILE_MS = 5.0
Medians: TypeAlias = tuple[dict[str, float], dict[str, float]]
ROUNDS = 10
"""Each operation is measured in so many pieces, between pieces of the others."""


@dataclass(frozen=True)
class Figures:
    """Medians of one provider in milliseconds; None where it was not measured."""

    provider: str
    create_ms: float | None = None
    exec_true_ms: float | None = None
    exec_shell_ms: float | None = None
    kept_shell_ms: float | None = None
    stream_first_byte_ms: float | None = None
    write_read_1kb_ms: float | None = None
    stop_ms: float | None = None
    docker_exec_ms: float | None = None
    others: Mapping[str, float] = field(default_factory=dict[str, float])
    """Milliseconds of theirs, in the same rounds."""
    reason: str | None = None


async def times_ms(count: int, work: Work) -> list[float]:
    """What says itself how many seconds it took is believed."""
    times: list[float] = []
    for _ in range(count):
        started = time.perf_counter()
        said = await work()
        took = time.perf_counter() - started
        times.append(1000 * (said if isinstance(said, float) else took))
    return times


async def in_turn(execs: int, works: Mapping[str, Work], others: Mapping[str, Work]) -> Medians:
    """The medians of both; in every round a piece of each operation, and each of the others once."""
    every: dict[str, list[float]] = {name: [] for name in [*works, *others]}
    for _ in range(ROUNDS):
        for name, work in works.items():
            every[name] += await times_ms(max(1, execs // ROUNDS), work)
        for name, work in others.items():
            every[name] += await times_ms(1, work)
    medians = {name: statistics.median(times) for name, times in every.items()}
    return {name: medians[name] for name in works}, {name: medians[name] for name in others}


async def measure(
    provider: Provider, creates: int, execs: int, others: Mapping[str, Work]
) -> Figures:
    found = await provider.probe()
    if not found.available:
        return Figures(provider=provider.name, reason=found.detail)
    boxes: list[Sandbox] = []

    async def create() -> None:
        boxes.append(await provider.create(SandboxSpec()))

    create_ms = statistics.median(await times_ms(creates, create))
    box = boxes[-1]

    async def true() -> None:
        result = await box.exec(["true"], timeout_seconds=10)
        assert result.ok

    async def shell() -> None:
        result = await box.exec(["sh", "-c", "echo $((1 + 1))"], timeout_seconds=10)
        assert result.stdout == b"2\n"

    async def stream() -> None:
        async with box.stream(["echo", "x"], timeout_seconds=10) as process:
            assert (await anext(process.events())).data == b"x\n"

    async def write_and_read() -> None:
        await box.write_file("/workspace/file", b"x" * 1024)
        assert len(await box.read_file("/workspace/file")) == 1024

    async with await box.shell() as kept:

        async def in_kept_shell() -> None:
            result = await kept.run("echo $((1 + 1))", timeout_seconds=10)
            assert result.stdout == b"2\n"

        works: dict[str, Work] = {
            "exec_true_ms": true,
            "exec_shell_ms": shell,
            "kept_shell_ms": in_kept_shell,
            "stream_first_byte_ms": stream,
            "write_read_1kb_ms": write_and_read,
        }
        medians, beside = await in_turn(execs, works, others)
    left = iter(boxes)
    stop_ms = statistics.median(await times_ms(len(boxes), lambda: next(left).stop()))
    return replace(
        Figures(provider=provider.name, create_ms=create_ms, stop_ms=stop_ms),
        **medians,
        docker_exec_ms=beside.get("docker exec"),
        others=beside,
    )


async def bench(names: list[str], creates: int, execs: int) -> list[Figures]:
    rows: list[Figures] = []
    async with contextlib.AsyncExitStack() as stack:
        found = {one.name: one for one in providers(read_environment().docker_host)}
        for provider in found.values():
            await stack.enter_async_context(provider)
        others: Mapping[str, Work] = {}
        if shutil.which("docker") and (await found["docker"].probe()).available:
            others = await stack.enter_async_context(peers())
        for name, provider in found.items():
            if name in names:
                rows.append(await measure(provider, creates, execs, others))
    return rows


def bars(rows: list[Figures]) -> list[Bar]:
    found: list[Bar] = []
    for row in rows:
        if row.docker_exec_ms and row.exec_true_ms:
            ratio = row.exec_true_ms / row.docker_exec_ms
            name = f"{row.provider}: a new process ({row.exec_true_ms:.2f} ms) per docker exec"
            found.append(Bar(f"{name} ({row.docker_exec_ms:.0f} ms)", ratio, PROCESS_RATIO))
        if row.docker_exec_ms and row.kept_shell_ms:
            ratio = row.kept_shell_ms / row.docker_exec_ms
            name = f"{row.provider}: a command in a kept shell ({row.kept_shell_ms:.2f} ms) per docker exec"
            found.append(Bar(f"{name} ({row.docker_exec_ms:.0f} ms)", ratio, SHELL_RATIO))
        if row.write_read_1kb_ms:
            name = f"{row.provider}: write and read 1 KB, ms"
            found.append(Bar(name, row.write_read_1kb_ms, FILE_MS))
    return found


def table(rows: list[Figures]) -> str:
    names = [name for name in asdict(rows[0]) if name.endswith("_ms")]
    lines = [f"{'provider':10}" + "".join(f"{name.removesuffix('_ms'):>19}" for name in names)]
    for row in rows:
        if row.reason:
            lines.append(f"{row.provider:10}  not measured: {row.reason}")
            continue
        values = [asdict(row)[name] for name in names]
        shown = ["-" if value is None else f"{value:.2f}" for value in values]
        lines.append(f"{row.provider:10}" + "".join(f"{value:>19}" for value in shown))
        lines += [f"{'':10}  {name}: {value:.1f}" for name, value in row.others.items()]
    return "\n".join([*lines, "medians in milliseconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--providers", default="local,docker", help="names, with commas")
    parser.add_argument("--creates", type=int, default=5)
    parser.add_argument("--execs", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar falls short")
    given = parser.parse_args()
    rows = asyncio.run(bench(given.providers.split(","), given.creates, given.execs))
    verdicts = bars(rows)
    if given.json:
        print(
            json.dumps(
                {
                    "figures": [asdict(row) for row in rows],
                    "bars": [{**asdict(bar), "kept": bar.kept} for bar in verdicts],
                },
                indent=2,
            )
        )
    else:
        print(table(rows))
        print("\n".join(map(str, verdicts)))
    if given.check and not (verdicts and all(bar.kept for bar in verdicts)):
        sys.exit(1)


if __name__ == "__main__":
    main()
