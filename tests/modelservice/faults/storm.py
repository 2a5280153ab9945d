"""A storm: many agents, several workers, and somebody who kills the service and the workers.

    report = await Storm(folder, seed=7, agents=100, workers=2).run(kills=3)
    assert report.faults == []

Everything random comes from the seed, except when the machine's scheduling decides. The service is
killed with SIGKILL while at least `in_flight` calls wait, also while it recovers, and started
again on the same state directory and sockets. The storm is over in bounded time or fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rock import process
from rock.config import inherited_environment
from rock.errors import JournalError, ServiceUnavailable
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import LOG_FILE, ServiceProcess
from rock.modelservice.journal.journal import LOCK_NAME
from rock.modelservice.journal.segments import FILE_NAME
from rock.modelservice.wire import PauseMode, Trajectory
from tests.modelservice.faults import reconcile
from tests.modelservice.faults.agents import MANNERS, Agent
from tests.modelservice.faults.stories import Chronicle, worker_lines

ROOT = Path(__file__).parent.parent.parent.parent
SETTINGS = {"cancel_grace_seconds": 30.0, "restart_grace_seconds": 60.0, "max_deliveries": 8}
START_TRIES = 5
SYNC_SECONDS = 2.0
"""Between two weight updates, at most."""
GATHER_SECONDS = 120.0
"""Until so many calls wait again; twice that for every agent to be done after the storm."""


@dataclass
class Report:
    """What happened, for the reader; `faults` is what must not have."""

    seed: int
    kills: int = 0
    kills_in_recovery: int = 0
    full_disks: int = 0
    worker_kills: int = 0
    in_flight: list[int] = field(default_factory=list[int])
    """Calls queued or leased just before each kill of the service."""
    spans: int = 0
    """Of answers, accepted before the answers were whole."""
    continued: int = 0
    """Leases that came with what an earlier one had said."""
    compactions: int = 0
    """Number of the last one."""
    syncs: int = 0
    """Pauses of the policy, in all their modes, that ended in a new version."""
    turns: int = 0
    calls: int = 0
    ended: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        flights = f"{min(self.in_flight, default=0)}..{max(self.in_flight, default=0)}"
        return (
            f"seed {self.seed}: {self.kills} kills with {flights} calls in flight, "
            f"{self.kills_in_recovery} more in recovery, {self.full_disks} full disks, {self.worker_kills} of workers, {self.compactions} compactions, {self.syncs} weight updates; "
            f"{self.turns} turns, {self.calls} calls, {dict(self.ended)}; "
            f"{self.spans} spans accepted, {self.continued} deliveries that went on from some; "
            f"{len(self.faults)} faults"
        )


class Storm:
    """One run. `full_disks` is how often, of one, the disk fills up instead of a kill; `settings` are fields of ServiceConfig, on top of this file's."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        agents: int,
        workers: int,
        in_flight: int = 1,
        full_disks: float = 0.0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._rng = random.Random(seed)
        self._agent_count = agents
        self._worker_count = workers
        self._in_flight = in_flight
        self._full_disks = full_disks
        self._service = ServiceProcess(
            folder / "state", settings={**SETTINGS, **(settings or {})}, exit_with_parent=True
        )
        self._agents: list[Agent] = []
        self._workers: list[process.Process] = []
        self._logs: list[Path] = []
        self.report = Report(seed)

    async def run(self, *, kills: int) -> Report:
        """Raises TimeoutError if the storm does not come to its end."""
        async with self._service:
            trajectories = await self._weather(kills)
        self.report.compactions = count_of_bases(self._folder / "state")
        chronicle = Chronicle(self._folder / "state")
        lines = worker_lines(self._logs)
        self._summarise(chronicle, lines)
        self.report.faults += [
            *reconcile.faults_of_agents(self._agents, chronicle),
            *reconcile.faults_of_workers(lines, chronicle),
            *reconcile.faults_of_calls(chronicle),
            *reconcile.faults_of_trajectories(trajectories, chronicle),
            *self._faults_in_log(),
        ]
        return self.report

    async def _weather(self, kills: int) -> dict[str, Trajectory]:
        stop = asyncio.Event()
        running: list[asyncio.Task[None]] = []
        try:
            await self._make_agents()
            for _ in range(self._worker_count):
                self._workers.append(await self._start_worker())
            running = [asyncio.ensure_future(agent.run(stop)) for agent in self._agents]
            running.append(asyncio.ensure_future(self._sync_weights(stop)))
            for _ in range(kills):
                await self._wait_for_flight()
                # A random moment, not a wait for a condition.
                await asyncio.sleep(self._rng.random())
                self.report.in_flight.append(await self._wait_for_flight())
                if self._rng.random() < self._full_disks:
                    await self._fill_disk()
                else:
                    await self._kill_service()
                if self._rng.random() < 0.5:
                    await self._replace_worker()
            await self._wait_for_flight()
            stop.set()
            async with asyncio.timeout(2 * GATHER_SECONDS):
                await asyncio.gather(*running)
            await self._see_connections_end()
            return await self._look()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for worker in self._workers:
                await self._end(worker)

    async def _make_agents(self) -> None:
        async with self._admin() as admin:
            for number in range(self._agent_count):
                made = await admin.create_session()
                agent = Agent(
                    name=f"a{number}",
                    url=self._service.agent_url,
                    session_id=made.session_id,
                    key=made.key,
                    manner=MANNERS[number % len(MANNERS)],
                    rng=random.Random(self._rng.random()),
                )
                self._agents.append(agent)

    def _admin(self) -> AdminClient:
        return AdminClient(self._service.control_url, self._service.keys.admin_key)

    # --- workers ---

    async def _start_worker(self) -> process.Process:
        log = self._folder / f"worker-{len(self._logs)}.log"
        log.touch()
        self._logs.append(log)
        argv = [sys.executable, "-m", "tests.modelservice.faults.worker"]
        argv += [self._service.control_url, str(log), str(self._rng.random()), str(len(self._logs))]
        with (self._folder / "workers.err").open("ab") as errors:
            worker = await process.start(
                argv,
                env=inherited_environment(),
                cwd=ROOT,
                stdin=process.PIPE,
                stderr=errors,
            )
        assert worker.stdin is not None
        worker.stdin.write(f"{self._service.keys.trainer_key}\n".encode())
        await worker.stdin.drain()
        worker.stdin.close()
        return worker

    async def _end(self, worker: process.Process) -> None:
        if worker.returncode is None:
            worker.kill()
        elif worker.returncode > 0:
            errors = (self._folder / "workers.err").read_text(errors="replace")
            self.report.faults.append(f"a worker ended by itself: {errors[-2000:]}")
        await worker.wait()

    async def _replace_worker(self) -> None:
        number = self._rng.randrange(len(self._workers))
        await self._end(self._workers[number])
        self._workers[number] = await self._start_worker()
        self.report.worker_kills += 1

    async def _sync_weights(self, stop: asyncio.Event) -> None:
        """Pause, and go on with new weights, again and again, whoever is killed meanwhile."""
        url, key = self._service.control_url, self._service.keys.trainer_key
        rng = random.Random(self._rng.random())
        modes: tuple[PauseMode, ...] = ("hold", "drain", "requeue")
        async with TrainerClient(url, key, retry_seconds=120.0) as trainer:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() * SYNC_SECONDS):
                        await stop.wait()
                await trainer.policy(state="paused", mode=rng.choice(modes))
                await asyncio.sleep(rng.random() * 0.1)
                self.report.syncs += 1
                await trainer.policy(state="running", version=self.report.syncs)

    # --- the service ---

    async def _wait_for_flight(self) -> int:
        """Until enough calls wait in the service; how many."""
        keys = self._service.keys
        async with (
            TrainerClient(self._service.control_url, keys.trainer_key) as trainer,
            asyncio.timeout(GATHER_SECONDS),
        ):
            while True:
                stats = await trainer.stats()
                if stats.queued + stats.leased >= self._in_flight:
                    return stats.queued + stats.leased
                await asyncio.sleep(0.02)

    async def _fill_disk(self) -> None:
        """Let the journal grow by a few more bytes and no further, as on a disk that fills up."""
        journal = self._folder / "state" / FILE_NAME
        room = journal.stat().st_size + self._rng.randrange(20_000)
        resource.prlimit(self._service.pid, resource.RLIMIT_FSIZE, (room, room))
        keys = self._service.keys
        async with (
            AdminClient(self._service.control_url, keys.admin_key, retry_seconds=0.0) as admin,
            asyncio.timeout(GATHER_SECONDS),
        ):
            while True:
                try:
                    await admin.health()
                except JournalError:
                    break
                await asyncio.sleep(0.01)
        self.report.full_disks += 1
        await self._service.restart()

    async def _kill_service(self) -> None:
        os.kill(self._service.pid, signal.SIGKILL)
        assert await self._service.wait() == -signal.SIGKILL
        self.report.kills += 1
        for number in range(START_TRIES):
            if number < START_TRIES - 1 and self._rng.random() < 0.3:
                if await self._restart_and_kill():
                    continue
                return
            await self._service.restart()
            return

    async def _restart_and_kill(self) -> bool:
        """Kill the service while it reads its journal or opens its doors; False if it was faster."""
        lock = self._folder / "state" / LOCK_NAME
        lock.unlink()
        restart = asyncio.ensure_future(self._service.restart())
        try:
            while not restart.done():
                await asyncio.sleep(self._rng.random() * 0.02)
                with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
                    os.kill(int(lock.read_text()), signal.SIGKILL)
                    break
            await restart
        except ServiceUnavailable:
            self.report.kills_in_recovery += 1
            return True
        if await self._alive():
            return False
        self.report.kills_in_recovery += 1
        return True

    async def _alive(self) -> bool:
        """Whether the service outlives a moment: the signal may have come after it was ready."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await self._service.wait()
                return False
        return True

    # --- the end ---

    async def _see_connections_end(self) -> None:
        """Every agent has hung up: one that is still counted would take room for ever."""
        headers = {"Authorization": f"Bearer {self._service.keys.trainer_key}"}
        left = "?"
        async with httpx.AsyncClient(headers=headers) as client:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    while left != "0.0":
                        await asyncio.sleep(0.05)
                        text = (await client.get(f"{self._service.control_url}/metrics")).text
                        left = text.partition("\nrock_connections ")[2].partition("\n")[0]
        if left != "0.0":
            self.report.faults.append(f"{left} connections are counted when all have ended")

    async def _look(self) -> dict[str, Trajectory]:
        async with self._admin() as admin:
            return {
                agent.session_id: await admin.trajectory(agent.session_id) for agent in self._agents
            }

    def _summarise(self, chronicle: Chronicle, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self.report.spans += line["what"] == "said" and line["error"] is None
            self.report.continued += line["what"] == "claimed" and bool(line["said"])
        self.report.turns = sum(len(agent.turns) for agent in self._agents)
        self.report.calls = len(chronicle.stories)
        self.report.ended = Counter(story.state.value for story in chronicle.stories.values())

    def _faults_in_log(self) -> list[str]:
        """Tracebacks of the service, which nobody else would hear of."""
        text = (self._folder / "state" / LOG_FILE).read_text(errors="replace")
        return [f"the service logged: {text[-2000:]}"] if "Traceback" in text else []


def count_of_bases(folder: Path) -> int:
    """How many compactions there were, by the number of the last one's base."""
    return max((int(path.name[5:13]) for path in folder.glob("base-*.log")), default=0)
