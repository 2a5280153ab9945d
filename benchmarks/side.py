"""The same load on every target, one after another, round by round: speed, latency, CPU."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from load import run_load
from proc import cpu_seconds, pin
from targets import Skipped, Target, litellm, nginx, rllm, rock_service, trainer

SERVER_CORE = 0


@dataclass(frozen=True)
class Row:
    """One target with so many agents, medians over rounds."""

    target: str
    agents: int
    turns_per_second: float
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    """Over the static server's p50 in the same run."""
    cpu_us_per_turn: float
    """Of the server's process tree."""
    errors: int


@dataclass(frozen=True)
class Side:
    rows: list[Row]
    skipped: dict[str, str]


async def side_by_side(
    agents: Sequence[int],
    seconds: float,
    rounds: int,
    folder: Path,
    *,
    compiled: Path,
    peers: bool,
) -> Side:
    """`compiled` is a tree with ModelService compiled: the queue is measured in both forms."""
    skipped: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        static = await stack.enter_async_context(nginx(folder))
        targets = [static, await stack.enter_async_context(nginx(folder, static))]
        proxy, _ = await stack.enter_async_context(
            rock_service(folder, "rock-proxy", upstream=static)
        )
        targets.append(proxy)
        for name, tree in {"rock-queue": None, "rock-compiled": compiled}.items():
            queue, service = await stack.enter_async_context(
                rock_service(folder, name, compiled=tree)
            )
            await stack.enter_async_context(trainer(service))
            targets.append(queue)
        for name, make in {"litellm": litellm, "rllm": rllm}.items() if peers else ():
            try:
                targets.append(await stack.enter_async_context(make(folder, static)))
            except Skipped as exc:
                skipped[name] = str(exc)
        pin((target.pid for target in targets), SERVER_CORE)
        rows: list[Row] = []
        for count in agents:
            rows += await _measured(targets, count, seconds, rounds)
    return Side(rows, skipped)


async def _measured(targets: list[Target], agents: int, seconds: float, rounds: int) -> list[Row]:
    measured: dict[str, list[Row]] = {target.name: [] for target in targets}
    for _ in range(rounds):
        for target in targets:
            measured[target.name].append(await _measure(target, agents, seconds))
    base = statistics.median(row.p50_ms for row in measured[targets[0].name])
    return [_median(rows, base) for rows in measured.values()]


async def _measure(target: Target, agents: int, seconds: float) -> Row:
    makers = await target.makers(agents)
    before = cpu_seconds(target.pid)
    result = await run_load("127.0.0.1", target.port, makers, seconds=seconds, drain_seconds=60)
    used = cpu_seconds(target.pid) - before
    return Row(
        target=target.name,
        agents=agents,
        turns_per_second=result.per_second,
        p50_ms=result.quantile_ms(0.5),
        p99_ms=result.quantile_ms(0.99),
        added_p50_ms=0.0,
        cpu_us_per_turn=1e6 * used / max(1, len(result.latencies_seconds)),
        errors=result.errors + (not result.latencies_seconds),
    )


def _median(rows: list[Row], base_p50_ms: float) -> Row:
    p50 = statistics.median(row.p50_ms for row in rows)
    return Row(
        target=rows[0].target,
        agents=rows[0].agents,
        turns_per_second=statistics.median(row.turns_per_second for row in rows),
        p50_ms=p50,
        p99_ms=statistics.median(row.p99_ms for row in rows),
        added_p50_ms=p50 - base_p50_ms,
        cpu_us_per_turn=statistics.median(row.cpu_us_per_turn for row in rows),
        errors=sum(row.errors for row in rows),
    )
