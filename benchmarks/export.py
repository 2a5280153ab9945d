"""How fast are trajectories exported, and in how much memory?

    python benchmarks/export.py [--episodes 1000] [--turns 50] [--tokens 100] [--json] [--check]

A run of made-up episodes (8 per task; one tool call per turn, `--tokens` ids per message) is
exported in each format by a process of its own, so that the peak memory is that format's. Rows are
sequences; with `--rows turn` one per answer. Compare formats by tokens per second: a row of one is
not a row of another. *quadratic* is what the run directory would take with each request written out.
`--check` fails above the bounds on memory, or if the stream does less than a tenth of what it did.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rock.modelservice.graph.stored import decode
from rock.modelservice.wire import encode
from rock.rollout.export import FORMATS, export, options_of, samples
from rock.testing.made_run import make_run

GROUP = 8
STREAM_MEGABYTES, FORMAT_MEGABYTES = 120.0, 600.0
"""Peak of a process: the stream holds one trajectory, a padded format one file."""
STREAM_ROWS_PER_CPU_SECOND = 25.0


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
    parser.add_argument("--check", action="store_true", help="fail above the bounds")
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
        quadratic = stored * _written_out(next(run.rglob("trajectory.json")))
        found: list[Figures] = []
        for name in args.formats:
            if args.rows == "turn" and name in ("atif", "openai-dpo"):
                continue  # they hold whole chains
            found.append(measure(name, run, Path(folder) / name.strip("()"), args.rows))
    if args.json:
        setup = {"episodes": args.episodes, "turns": args.turns, "tokens": args.tokens}
        setup |= {"rows": args.rows, "run_megabytes": round(stored / 1e6, 1)}
        setup["quadratic_megabytes"] = round(quadratic / 1e6, 1)
        print(json.dumps({**setup, "formats": [asdict(figures) for figures in found]}, indent=2))
    else:
        _print(args, stored, quadratic, found)
    over = list(_over(found))
    if args.check and over:
        sys.exit("; ".join(over))


def _written_out(trajectory: Path) -> float:
    """How many times larger a trajectory is with each request written out."""
    data = trajectory.read_bytes()
    return len(encode(decode(data))) / len(data)


def _over(found: list[Figures]) -> Iterator[str]:
    for row in found:
        stream = row.format == "(stream)"
        bound = STREAM_MEGABYTES if stream else FORMAT_MEGABYTES
        if row.peak_megabytes > bound:
            yield f"{row.format}: {row.peak_megabytes} MB at its peak, above {bound}"
        if stream and row.rows < STREAM_ROWS_PER_CPU_SECOND * row.cpu_seconds:
            yield f"{row.format}: fewer than {STREAM_ROWS_PER_CPU_SECOND} rows per CPU second"


def _print(args: argparse.Namespace, stored: float, quadratic: float, found: list[Figures]) -> None:
    print(
        f"{args.episodes} episodes x {args.turns} turns, {stored / 1e6:.0f} MB of run directory "
        f"({quadratic / 1e6:.0f} MB with each request written out)"
    )
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
