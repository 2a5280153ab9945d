"""Thousands of agents wait and no worker is there: what each costs, and whether all are answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from load import post, rounds
from proc import cpu_seconds, pin, resident_bytes
from side import SERVER_CORE
from targets import NONCE, PATH, body_of, rock_service, trainer

from rock.modelservice.client.client import AdminClient, TrainerClient

SESSIONS = 100
PARK_SECONDS = 120.0
ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Parked:
    calls: int
    body_bytes: int
    bytes_each: float
    """Memory that the service grew by per call, besides the call's body."""
    park_cpu_us: float
    answered: int
    answer_seconds: float
    """From the worker's start to the last answer."""


async def parked(calls: int, folder: Path) -> Parked:
    async with (
        rock_service(folder, "rock-parked") as (target, service),
        AdminClient(service.control_url, service.keys.admin_key) as admin,
        TrainerClient(service.control_url, service.keys.trainer_key) as control,
        rounds("127.0.0.1", target.port, calls) as load,
    ):
        pin([target.pid], SERVER_CORE)
        keys = [(await admin.create_session()).key for _ in range(SESSIONS)]
        body = body_of(0, 3)
        requests = [
            post(PATH, body.replace(NONCE, b"%012d" % n), key=keys[n % SESSIONS])
            for n in range(calls)
        ]
        memory, cpu = resident_bytes(target.pid), cpu_seconds(target.pid)
        load.send(requests)
        async with asyncio.timeout(PARK_SECONDS):
            while (await control.stats()).queued < calls:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)
        memory, cpu = resident_bytes(target.pid) - memory, cpu_seconds(target.pid) - cpu
        async with trainer(service):
            result = await load.answered(seconds=ANSWER_SECONDS)
    return Parked(
        calls=calls,
        body_bytes=len(body),
        bytes_each=memory / calls - len(body),
        park_cpu_us=1e6 * cpu / calls,
        answered=len(result.latencies_seconds),
        answer_seconds=result.wall_seconds,
    )
