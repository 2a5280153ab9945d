"""How fast are trajectories exported, and in how much memory?

    python benchmarks/export.py [--episodes 1000] [--turns 50] [--tokens 100] [--json]

A run of made-up episodes (8 per task; one tool call per turn, `--tokens` ids per message) is
exported in each format by a process of its own, so that the peak memory is that format's. Rows are
sequences; with `--rows turn` one per answer. Compare formats by tokens per second: a row of one is
not a row of another.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rock.rollout.export import FORMATS, export, options_of, samples
from rock.testing.made_run import make_run

GROUP = 8


@dataclass
class Figures:
    """One way of exporting the run."""

    format: str
    rows: int
    seconds: float
    rows_per_second: float
    tokens_per_second: float
    cpu_seconds: float
    """Says more than `seconds` on a machine that does other work, too."""
    peak_megabytes: float
    """Of the exporting process, with Python and the libraries."""
    megabytes_written: float


def measure(name: str, run: Path, out: Path, rows: str) -> Figures:
    """In a fresh process: its peak memory is nobody else's."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_measure, args=(theirs, name, run, out, rows)
    )
    process.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        process.join()


def _measure(pipe: Connection, name: str, run: Path, out: Path, rows: str) -> None:
    options = options_of(rows=rows)
    start, cpu = time.perf_counter(), time.process_time()
    if name == "(stream)":
        lengths = [len(sample.token_ids) for sample in samples(run, options)]
        count, tokens, size = len(lengths), sum(lengths), 0
    else:
        manifest = export(run, out, name, options)
        count, tokens = manifest.samples, manifest.tokens
        size = sum(file.bytes for file in manifest.files)
    seconds = time.perf_counter() - start
    pipe.send(
        Figures(
            format=name,
            rows=count,
            seconds=round(seconds, 3),
            rows_per_second=round(count / seconds, 1),
            tokens_per_second=round(tokens / seconds),
            cpu_seconds=round(time.process_time() - cpu, 3),
            peak_megabytes=round(_peak_kilobytes() / 1024, 1),
            megabytes_written=round(size / 1e6, 1),
        )
    )


def _peak_kilobytes() -> int:
    # Not ru_maxrss: a process inherits that from the one that started it.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and memory of rock export.")
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100, help="ids per message")
    parser.add_argument("--rows", choices=["chain", "turn"], default="chain")
    parser.add_argument("--formats", nargs="*", default=["(stream)", *FORMATS])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rock-export-") as folder:
        run = Path(folder) / "run"
        make_run(
            run,
            tasks=max(1, args.episodes // GROUP),
            episodes=GROUP,
            turns=args.turns,
            tokens_per_message=args.tokens,
        )
        stored = sum(path.stat().st_size for path in run.rglob("*.json"))
        found: list[Figures] = []
        for name in args.formats:
            if args.rows == "turn" and name in ("atif", "openai-dpo"):
                continue  # they hold whole chains
            found.append(measure(name, run, Path(folder) / name.strip("()"), args.rows))
    if args.json:
        setup = {"episodes": args.episodes, "turns": args.turns, "tokens": args.tokens}
        setup |= {"rows": args.rows, "run_megabytes": round(stored / 1e6, 1)}
        print(json.dumps({**setup, "formats": [asdict(figures) for figures in found]}, indent=2))
        return
    print(f"{args.episodes} episodes x {args.turns} turns, {stored / 1e6:.0f} MB of run directory")
    print(
        f"{'format':<12}{'rows':>8}{'rows/s':>10}{'cpu s':>8}{'tokens/s':>14}{'peak MB':>10}{'MB out':>10}"
    )
    for row in found:
        print(
            f"{row.format:<12}{row.rows:>8}{row.rows_per_second:>10}{row.cpu_seconds:>8.2f}{row.tokens_per_second:>14,}"
            f"{row.peak_megabytes:>10}{row.megabytes_written:>10}"
        )


if __name__ == "__main__":
    main()
