"""How fast is agent → queue → claim → complete → reply, beside what it could be replaced with?

In one run on one machine: (a) a static nginx, (b) nginx as reverse proxy, (c) ModelService as proxy,
(d) ModelService's queue with a trainer and the journal on, as source and (e) compiled, (f) LiteLLM's
proxy and (g) rLLM's gateway; then 10,000 parked calls, then conversations that grow to 100,000 tokens.

    python benchmarks/loop.py [--parts side,parked,history] [--agents 1,64,512] [--seconds 4]
                              [--rounds 3] [--no-peers] [--check] [--json]

`--check` exits with 1 and says which bar falls short; `--json` prints every figure. How to read it:
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bar import Bar
from bars import history_bars, parked_bars, side_bars
from compiled import compiled_tree
from history import History, growing
from parked import Parked, parked
from proc import pin
from side import SERVER_CORE, Row, Side, side_by_side

PARTS = ("side", "parked", "history")


@dataclass
class Figures:
    side: Side | None = None
    parked: Parked | None = None
    history: History | None = None

    def bars(self) -> list[Bar]:
        found = side_bars(self.side) if self.side else []
        found += parked_bars(self.parked) if self.parked else []
        return found + (history_bars(self.history) if self.history else [])


async def measure(given: argparse.Namespace, folder: Path, compiled: Path | None) -> Figures:
    parts = given.parts.split(",")
    figures = Figures()
    if compiled is not None:
        agents = [int(part) for part in given.agents.split(",")]
        figures.side = await side_by_side(
            agents,
            given.seconds,
            given.rounds,
            folder,
            compiled=compiled,
            peers=not given.no_peers,
        )
    if "parked" in parts:
        figures.parked = await parked(given.parked, folder)
    if "history" in parts:
        figures.history = await growing(given.sessions, folder)
    return figures


def tables(figures: Figures) -> str:
    lines: list[str] = []
    if figures.side is not None:
        lines += side_table(figures.side)
    if figures.parked is not None:
        one = figures.parked
        lines += [
            f"parked: {one.calls} calls, {one.bytes_each / 1024:.1f} KiB each besides the body of "
            f"{one.body_bytes} B, {one.park_cpu_us:.0f} us CPU to park; {one.answered} answered in "
            f"{one.answer_seconds:.1f} s",
            "",
        ]
    if figures.history is not None:
        lines += history_table(figures.history)
    return "\n".join([*lines, *map(str, figures.bars())])


def side_table(side: Side) -> list[str]:
    head = f"{'target':14}{'agents':>7}{'turns/s':>9}{'p50 ms':>9}{'p99 ms':>9}{'added p50':>11}"
    lines = [head + f"{'CPU us':>9}{'/ nginx':>9}{'errors':>8}"]
    nginx = {row.agents: row.cpu_us_per_turn for row in side.rows if row.target == "nginx"}
    lines += [side_line(row, nginx[row.agents]) for row in side.rows]
    lines += [f"{name}: not measured: {why}" for name, why in side.skipped.items()]
    return [*lines, ""]


def side_line(row: Row, nginx_cpu_us: float) -> str:
    return (
        f"{row.target:14}{row.agents:>7}{row.turns_per_second:>9.0f}{row.p50_ms:>9.2f}"
        f"{row.p99_ms:>9.2f}{row.added_p50_ms:>11.2f}{row.cpu_us_per_turn:>9.0f}"
        f"{row.cpu_us_per_turn / nginx_cpu_us:>9.1f}{row.errors:>8}"
    )


def history_table(history: History) -> list[str]:
    lines = [f"{'turn':>6}{'body KB':>9}{'CPU us':>9}{'reading':>9}{'the rest':>10}{'turns/s':>9}"]
    for turn in history.turns:
        if turn.turn % 5 == 0 or turn.turn == 1:
            lines.append(
                f"{turn.turn:>6}{turn.body_bytes / 1000:>9.0f}{turn.cpu_us:>9.0f}"
                f"{turn.read_cpu_us:>9.0f}{turn.cpu_us - turn.read_cpu_us:>10.0f}"
                f"{turn.per_second:>9.0f}"
            )
    lines.append(
        f"history: {history.sessions} sessions, {history.per_second:.0f} turns/s by the clock, "
        f"{history.per_cpu_second:.0f} per CPU second, "
        f"{history.memory_bytes_per_session / 1e6:.1f} MB kept per session"
    )
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="which, with commas")
    parser.add_argument("--agents", default="1,64,512", help="numbers of agents, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parked", type=int, default=10_000, help="parked calls")
    parser.add_argument("--sessions", type=int, default=32, help="growing conversations")
    parser.add_argument("--no-peers", action="store_true", help="leave LiteLLM and rLLM out")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar falls short")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    compiled = compiled_tree() if "side" in given.parts.split(",") else None
    if (os.cpu_count() or 1) > 1:
        pin([os.getpid()], SERVER_CORE + 1)  # children inherit it until they are pinned
    with tempfile.TemporaryDirectory(prefix="rock-loop-") as folder:
        figures = asyncio.run(measure(given, Path(folder), compiled))
    bars = figures.bars()
    if given.json:
        print(json.dumps({**asdict(figures), "bars": [asdict(bar) for bar in bars]}, indent=2))
    else:
        print(tables(figures))
    short = [bar for bar in bars if not bar.kept]
    for bar in short if given.check else ():
        print(bar, file=sys.stderr)
    return 1 if short and given.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
