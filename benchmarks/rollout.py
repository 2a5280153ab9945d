"""What the harness adds to its agents, and what it keeps of episodes that are over.

    python benchmarks/rollout.py [--episodes 1000] [--turns 10] [--check] [--json]

*Overhead*: the same agent command, the same number at once, with a model that thinks for a second per
turn: as bare processes on this machine that ask a plain server, and as episodes of `rock run` in local
sandboxes, with journal, tokens, grades and records. Wall time from the first start to the last end, in
rounds: bare, `rock run`, bare, and so on. The overhead is the median of the rounds' ratios, since what else
loads the machine loads both halves of a round.

*Throughput*: `--episodes` episodes with a model that hardly thinks. Episodes per hour, the harness
process's own CPU per episode and its share of one core, and its resident memory over the number of
finished episodes: the slope, from a third of the run on.

The harness is the `rock run` process alone; ModelService, the trainer and the sandboxes are others.
`--check` exits with 1 and says which bar falls short.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bar import Bar
from proc import resident_bytes

OVERHEAD = 0.05
EPISODE_BYTES = 20 * 1024
THINK_SECONDS = 1.0
HARDLY_SECONDS = 0.02
SAMPLE_EVERY = 10
HERE = Path(__file__).parent
ROCK = Path(sys.executable).parent / "rock"
PYTHON = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or "/usr/bin/python3"
AGENT = """
import http.client, json, os, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
link = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
messages = [{"role": "user", "content": "do it"}]
for turn in range(int(sys.argv[1])):
    body = json.dumps({"model": "policy", "messages": messages})
    link.request("POST", url.path + "/chat/completions", body, headers)
    reply = link.getresponse()
    answer = json.loads(reply.read())
    assert reply.status == 200, answer
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "next %d" % turn}]
"""


@dataclass(frozen=True)
class Run:
    """One `rock run`. `memory` is (finished episodes, resident bytes) now and then."""

    episodes: int
    seconds: float
    harness_cpu_seconds: float
    report: dict[str, Any]
    memory: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def bytes_per_episode(self) -> float:
        """Least squares over the last two thirds."""
        points = [(n, size) for n, size in self.memory if n >= self.episodes / 3]
        if len(points) < 2:
            return float("nan")
        mean_n = sum(n for n, _ in points) / len(points)
        mean_size = sum(size for _, size in points) / len(points)
        covariance = sum((n - mean_n) * (size - mean_size) for n, size in points)
        return covariance / sum((n - mean_n) ** 2 for n, _ in points)


@dataclass(frozen=True)
class Figures:
    concurrency: int
    turns: int
    overhead_episodes: int
    bare_seconds: list[float]
    rock_seconds: list[float]
    """By rounds."""
    phases: dict[str, Any]
    episodes: int
    valid: int
    episodes_per_hour: float
    harness_cpu_ms_per_episode: float
    harness_share_of_a_core: float
    harness_peak_mib: float
    bytes_per_episode: float

    @property
    def overhead(self) -> float:
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """How much longer `rock run` took than the bare agents of the same round, as a share."""
        rounds = zip(self.rock_seconds, self.bare_seconds, strict=True)
        return [rock / bare - 1 for rock, bare in rounds]

    def bars(self) -> list[Bar]:
        return [
            Bar("wall time over the bare agents', share", self.overhead, OVERHEAD),
            Bar("memory per finished episode, bytes", self.bytes_per_episode, EPISODE_BYTES),
            Bar("valid episodes", self.valid, self.episodes, at_least=True),
        ]


@asynccontextmanager
async def process(*argv: object, **options: Any) -> AsyncGenerator[asyncio.subprocess.Process]:
    """In a session of its own; ended with all of it."""
    started = await asyncio.create_subprocess_exec(
        *map(str, argv), start_new_session=True, stdout=asyncio.subprocess.PIPE, **options
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        await started.wait()


async def run_bare(folder: Path, episodes: int, concurrency: int, turns: int) -> float:
    """Seconds that the agents take by themselves."""
    async with process(sys.executable, HERE / "thinking.py", "bare", THINK_SECONDS) as server:
        assert server.stdout is not None
        port = (await server.stdout.readline()).decode().strip()
        env = {"PATH": "/usr/bin:/bin", "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1"}
        env["OPENAI_API_KEY"] = "none"
        room = asyncio.Semaphore(concurrency)

        async def one() -> None:
            async with room:
                agent = await asyncio.create_subprocess_exec(
                    PYTHON, str(folder / "agent.py"), str(turns), env=env
                )
                assert await agent.wait() == 0

        started = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(episodes)))
        return time.perf_counter() - started


async def run_rock(
    folder: Path, episodes: int, concurrency: int, turns: int, think_seconds: float
) -> Run:
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    write_run_file(folder, episodes, concurrency, turns)
    harness = process(ROCK, "run", folder / "run.yaml", "--json", "--out", out, limit=2**26)
    model = process(sys.executable, HERE / "thinking.py", "trainer", out, think_seconds)
    async with harness as running, model:
        return await watched(running, episodes)


async def watched(running: asyncio.subprocess.Process, episodes: int) -> Run:
    """Follow the events of a harness to the end."""
    assert running.stdout is not None
    first = last = cpu = cpu_before = 0.0
    done = 0
    memory: list[tuple[int, int]] = []
    async for line in running.stdout:
        event = json.loads(line)
        match event["event"]:
            case "phase_entered" if not first:
                first, cpu_before = time.perf_counter(), own_cpu_seconds(running.pid)
            case "attempt_done":
                last, done = time.perf_counter(), done + 1
                if done % SAMPLE_EVERY == 0:
                    memory.append((done, resident_bytes(running.pid)))
                    cpu = own_cpu_seconds(running.pid)
            case "run_ended":
                return Run(episodes, last - first, cpu - cpu_before, event["report"], memory)
            case _:
                pass
    raise SystemExit("rock run ended without a report")


def own_cpu_seconds(pid: int) -> float:
    """Of this process alone, ended threads included: utime and stime of proc(5)."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def write_run_file(folder: Path, episodes: int, concurrency: int, turns: int) -> None:
    size = 4
    rows = [
        {"task_id": f"task-{n}", "instruction": "do it"} for n in range(max(1, episodes // size))
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = {
        "tasks": "tasks.jsonl",
        "episodes_per_task": size,
        "concurrency": concurrency,
        "provider": "local",
        "agent": {
            "command": [PYTHON, "/opt/agent.py", str(turns)],
            "files": {"/opt/agent.py": "agent.py"},
        },
        "grader": {"command": ["true"]},
        "consume_timeout_seconds": 5,
    }
    (folder / "run.yaml").write_text(json.dumps(run))


async def measure(options: argparse.Namespace, folder: Path) -> Figures:
    folder.joinpath("agent.py").write_text(AGENT)
    concurrency, turns = options.concurrency, options.turns
    count = 4 * max(1, round(concurrency * options.waves / 4))
    bares: list[float] = []
    runs: list[Run] = []
    for _ in range(options.rounds):
        bares.append(await run_bare(folder, count, concurrency, turns))
        runs.append(await run_rock(folder, count, concurrency, turns, THINK_SECONDS))
    middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
    many = await run_rock(folder, options.episodes, concurrency, turns, HARDLY_SECONDS)
    total = many.report["total"]
    return Figures(
        concurrency=concurrency,
        turns=turns,
        overhead_episodes=count,
        bare_seconds=bares,
        rock_seconds=[run.seconds for run in runs],
        phases=middle.report["total"]["phases"],
        episodes=total["episodes"],
        valid=total["valid"],
        episodes_per_hour=3600 * total["episodes"] / many.seconds,
        harness_cpu_ms_per_episode=1000 * many.harness_cpu_seconds / total["episodes"],
        harness_share_of_a_core=many.harness_cpu_seconds / many.seconds,
        harness_peak_mib=max(size for _, size in many.memory) / 2**20,
        bytes_per_episode=many.bytes_per_episode,
    )


def show(figures: Figures) -> None:
    print(
        f"{figures.overhead_episodes} episodes x {figures.turns} turns, {figures.concurrency} at once, "
        f"{THINK_SECONDS:g} s per turn, {len(figures.bare_seconds)} rounds: "
        f"bare {statistics.median(figures.bare_seconds):.2f} s, "
        f"rock {statistics.median(figures.rock_seconds):.2f} s, {figures.overhead:+.1%} "
        f"(by rounds: {', '.join(f'{ratio:+.1%}' for ratio in figures.ratios)})"
    )
    for phase, spread in figures.phases.items():
        print(f"  {phase:<10} p50 {spread['p50']:.3f} s  p95 {spread['p95']:.3f} s")
    print(
        f"{figures.episodes} episodes x {figures.turns} turns, {HARDLY_SECONDS:g} s per turn: "
        f"{figures.episodes_per_hour:.0f} per hour; harness {figures.harness_cpu_ms_per_episode:.1f} "
        f"ms CPU per episode, {figures.harness_share_of_a_core:.0%} of a core, "
        f"peak {figures.harness_peak_mib:.0f} MiB, {figures.bytes_per_episode:.0f} bytes per episode"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument(
        "--waves", type=float, default=3, help="episodes per place, for the overhead"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rock-bench-") as name:
        Path(name).chmod(0o755)
        figures = asyncio.run(measure(options, Path(name)))
    bars = figures.bars()
    if options.json:
        print(json.dumps({**asdict(figures), "overhead": figures.overhead}))
    else:
        show(figures)
    if options.check:
        print(*bars, sep="\n", file=sys.stderr)
        return int(not all(bar.kept for bar in bars))
    return 0


if __name__ == "__main__":
    sys.exit(main())
