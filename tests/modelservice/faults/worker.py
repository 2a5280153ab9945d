"""A trainer that is made to misbehave, as a process of its own that can be killed at any moment.

    python -m tests.modelservice.faults.worker URL LOG SEED      (the trainer key on stdin)

Every answer echoes the nonce of its prompt. What it is about to send, and what the service said to
that, is one JSON line each in LOG, written with one `write`, so that a kill loses no line. It
sometimes gives calls back, fails them, or sits on them until their lease is over and answers then.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from rock.modelservice.client import TrainerClient
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure, Lease

LEASE_SECONDS = 1.5
MAX_BUSY = 2
"""Batches at once: slow enough that calls pile up, which is what the tests are about."""
LATE_SECONDS = 1.0
"""How long after the end of its lease a late answer comes, at most."""


class Log:
    """Lines that survive a kill of this process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, what: str, **fields: Any) -> None:
        os.write(self._fd, json.dumps({"what": what, **fields}).encode() + b"\n")


def nonce_of(lease: Lease) -> str:
    return json.loads(bytes(lease.request.messages[-1]))["content"]


def completion_of(lease: Lease, rng: random.Random) -> Completion:
    """The prompt's tokens go on from the parent's, as those of a real engine do."""
    parent = lease.parent
    prompt = list(parent.token_ids) if parent is not None and parent.token_ids else []
    prompt += [rng.randrange(1000, 30_000) for _ in range(3)]
    text = f"{nonce_of(lease)} by {lease.lease_id}/{rng.getrandbits(64):x}"
    choice = Choice(
        message=AssistantMessage(content=text),
        # Each sampled token is the only one of its value, so that it can be found again.
        token_ids=[rng.randrange(1 << 20, 1 << 31) for _ in range(4)],
        logprobs=[-rng.randrange(1, 64) / 8 for _ in range(4)],
    )
    return Completion(
        lease_id=lease.lease_id, choices=[choice], prompt_token_ids=prompt, policy_version=1
    )


async def answer(trainer: TrainerClient, log: Log, leases: list[Lease], rng: random.Random) -> None:
    """Complete leases in one batch."""
    items = [completion_of(lease, rng) for lease in leases]
    for item in items:
        choice = item.choices[0]
        log.say(
            "sending",
            lease=item.lease_id,
            text=choice.message.content,
            ids=choice.token_ids,
            logprobs=choice.logprobs,
        )
    for result in await trainer.complete(items):
        code = None if result.error is None else result.error.code
        log.say("told", lease=result.lease_id, error=code, untrainable=result.untrainable)


async def work(trainer: TrainerClient, log: Log, leases: list[Lease], rng: random.Random) -> None:
    """Answer most leases soon, and the others as no good worker would."""
    soon: list[Lease] = []
    late: list[Lease] = []
    for lease in leases:
        fate = rng.random()
        if fate < 0.02:
            await trainer.release([lease.lease_id])
        elif fate < 0.03:
            [result] = await trainer.fail([Failure(lease_id=lease.lease_id, message="by design")])
            log.say("failed", lease=lease.lease_id, error=result.error and result.error.code)
        elif fate < 0.04:
            late.append(lease)
        elif fate < 0.05:
            pass  # forgotten
        else:
            soon.append(lease)
    await asyncio.sleep(rng.random() * 0.2)
    await answer(trainer, log, soon, rng)
    if late:
        await asyncio.sleep(LEASE_SECONDS + rng.random() * LATE_SECONDS)
        await answer(trainer, log, late, rng)


def ended(task: asyncio.Task[None], busy: set[asyncio.Task[None]], log: Log) -> None:
    busy.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.say("crashed", error=repr(task.exception()))


async def main(url: str, log_path: str, seed: str, key: str) -> None:
    rng = random.Random(seed)
    log = Log(Path(log_path))
    busy: set[asyncio.Task[None]] = set()
    async with TrainerClient(url, key, retry_seconds=120.0) as trainer:
        log.say("started", pid=os.getpid())
        while True:
            reply = await trainer.claim(
                f"worker-{os.getpid()}",
                max_leases=rng.choice((1, 8, 64)),
                lease_seconds=LEASE_SECONDS,
                wait_seconds=5.0,
                policy_version=1,
            )
            for lease in reply.leases:
                log.say("claimed", lease=lease.lease_id, nonce=nonce_of(lease))
            if reply.leases:
                task = asyncio.ensure_future(work(trainer, log, reply.leases, rng))
                busy.add(task)
                task.add_done_callback(lambda done: ended(done, busy, log))
            while len(busy) >= MAX_BUSY:
                await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.stdin.readline().strip()))
