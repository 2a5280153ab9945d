"""Turns per second and added latency through agent → queue → claim → complete → reply.

A ModelService process with its journal on (replies wait for it), one trainer process that answers
at once, and N agents in a closed loop from this process. Each agent has its own session and sends a
6 KB request. The baseline is the same load against a bare server that answers a constant, so the
added latency is p50 minus the baseline's p50 in the same run. CPU is that of the service's process.

    python benchmarks/loop.py [--agents 1,64,512] [--seconds 4] [--rounds 3] [--json]

Figures are medians over the rounds. The machine matters: compare ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from load import MakeRequest, post, run_load

from rock import process
from rock.config import inherited_environment
from rock.modelservice.client import AdminClient
from rock.modelservice.supervise import ServiceProcess

TRAINER = """
import asyncio, sys
from rock.modelservice.client import TrainerClient
from rock.modelservice.wire import AssistantMessage, Choice, Completion

TEXT = "ok " * 400
IDS, LOGPROBS = list(range(64)), [-0.5] * 64

async def main(url, key):
    async with TrainerClient(url, key) as trainer:
        async def work(name):
            while True:
                reply = await trainer.claim(name, max_leases=256, policy_version=1)
                await trainer.complete([
                    Completion(lease_id=lease.lease_id, prompt_token_ids=IDS, choices=[Choice(
                        message=AssistantMessage(content=TEXT), token_ids=IDS, logprobs=LOGPROBS)])
                    for lease in reply.leases])
        await asyncio.gather(work("a"), work("b"))

asyncio.run(main(sys.argv[1], sys.stdin.readline().strip()))
"""


@dataclass(frozen=True)
class Row:
    """One line of the table, medians over rounds."""

    target: str
    agents: int
    turns_per_second: float
    p50_ms: float
    p99_ms: float
    added_p50_ms: float | None
    service_cpu_us_per_turn: float | None
    errors: int


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def body_of(agent: int) -> bytes:
    """About 6 KB in 12 messages, different for each agent."""
    text = f"agent {agent} " + "The quick brown fox jumps over the lazy dog. " * 10
    roles = ["system", "user"] + ["user", "user"] * 5
    messages = [{"role": role, "content": f"{n} {text}"} for n, role in enumerate(roles)]
    return json.dumps({"model": "policy", "messages": messages}).encode()


class Constant(asyncio.Protocol):
    """Answers every request with the same 1.5 KB: what any server costs at least, in Python."""

    REPLY = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1500\r\n\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, _, body = self._buffer.partition(b"\r\n\r\n")
        length = head.lower().find(b"content-length:")
        if body and len(body) >= int(head[length + 15 :].split(b"\r\n", 1)[0]):
            self._buffer = b""
            self._transport.write(self.REPLY + b"x" * 1500)


@asynccontextmanager
async def trainer(service: ServiceProcess) -> AsyncGenerator[None, None]:
    started = await process.start(
        [sys.executable, "-c", TRAINER, service.control_url],
        env=inherited_environment(),
        stdin=process.PIPE,
    )
    assert started.stdin is not None
    started.stdin.write(f"{service.keys.trainer_key}\n".encode())
    await started.stdin.drain()
    try:
        yield
    finally:
        await process.stop(started)


async def measure(
    target: str, host: str, port: int, makers: list[MakeRequest], pid: int | None, seconds: float
) -> Row:
    before = cpu_seconds(pid) if pid else 0.0
    result = await run_load(host, port, makers, seconds=seconds)
    used = cpu_seconds(pid) - before if pid else 0.0
    done = max(1, len(result.latencies_seconds))
    return Row(
        target=target,
        agents=len(makers),
        turns_per_second=result.per_second,
        p50_ms=result.quantile_ms(0.5),
        p99_ms=result.quantile_ms(0.99),
        added_p50_ms=None,
        service_cpu_us_per_turn=1e6 * used / done if pid else None,
        errors=result.errors,
    )


def median_of(rows: list[Row], baseline_p50_ms: float | None) -> Row:
    def mid(values: list[float]) -> float:
        return statistics.median(values)

    p50 = mid([row.p50_ms for row in rows])
    cpu = [row.service_cpu_us_per_turn for row in rows if row.service_cpu_us_per_turn is not None]
    return Row(
        target=rows[0].target,
        agents=rows[0].agents,
        turns_per_second=mid([row.turns_per_second for row in rows]),
        p50_ms=p50,
        p99_ms=mid([row.p99_ms for row in rows]),
        added_p50_ms=None if baseline_p50_ms is None else p50 - baseline_p50_ms,
        service_cpu_us_per_turn=mid(cpu) if cpu else None,
        errors=sum(row.errors for row in rows),
    )


async def bench(agents: list[int], seconds: float, rounds: int, state_dir: Path) -> list[Row]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Constant, "127.0.0.1", 0)
    constant_port: int = server.sockets[0].getsockname()[1]
    rows: list[Row] = []
    settings = {"cancel_grace_seconds": 1}
    async with (
        server,
        ServiceProcess(state_dir, settings=settings, exit_with_parent=True) as service,
        trainer(service),
        AdminClient(service.control_url, service.keys.admin_key) as admin,
    ):
        port = int(service.agent_url.rpartition(":")[2])
        for count in agents:
            keys = [(await admin.create_session()).key for _ in range(count)]
            requests = [
                post("/v1/chat/completions", body_of(n), key=key) for n, key in enumerate(keys)
            ]
            makers: list[MakeRequest] = [lambda _, r=request: r for request in requests]
            direct: list[Row] = []
            queued: list[Row] = []
            for _ in range(rounds):
                direct.append(
                    await measure("constant", "127.0.0.1", constant_port, makers, None, seconds)
                )
                queued.append(
                    await measure("queue", "127.0.0.1", port, makers, service.pid, seconds)
                )
            baseline = median_of(direct, None)
            rows += [baseline, median_of(queued, baseline.p50_ms)]
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        f"{'target':10}{'agents':>8}{'turns/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'added p50':>11}"
        f"{'CPU us/turn':>13}{'errors':>8}"
    ]
    for row in rows:
        added = "-" if row.added_p50_ms is None else f"{row.added_p50_ms:.2f}"
        cpu = "-" if row.service_cpu_us_per_turn is None else f"{row.service_cpu_us_per_turn:.0f}"
        lines.append(
            f"{row.target:10}{row.agents:>8}{row.turns_per_second:>10.0f}{row.p50_ms:>9.2f}"
            f"{row.p99_ms:>9.2f}{added:>11}{cpu:>13}{row.errors:>8}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", default="1,64,512", help="numbers of agents, with commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    given = parser.parse_args()
    agents = [int(part) for part in given.agents.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(bench(agents, given.seconds, given.rounds, Path(folder, "state")))
    print(json.dumps([asdict(row) for row in rows], indent=2) if given.json else table(rows))


if __name__ == "__main__":
    main()
