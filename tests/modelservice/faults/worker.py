"""A trainer that is made to misbehave, as a process of its own that can be killed at any moment.

    python -m tests.modelservice.faults.worker URL LOG SEED NUMBER      (the trainer key on stdin)

NUMBER is the worker's own, from 1: it gives tokens that no other does.

Every answer echoes the nonce of its prompt. What it is about to send, and what the service said to
that, is one JSON line each in LOG, written with one `write`, so that a kill loses no line. It
sometimes gives calls back, fails them, or sits on them until their lease is over and answers then;
or it does not go on from what another worker has said.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure, Lease
from rock.modelservice.wire.partial import Partial

LEASE_SECONDS = 1.5
TOKENS_OF_ONE_BITS = 22
MAX_BUSY = 2
"""Batches at once: slow enough that calls pile up, which is what the tests are about."""
SAY_SHARE = 0.2
"""Of the answers that are said span by span."""
AFRESH_SHARE = 0.1
"""Of the answers that should go on from what was said and do not, or that say that they cannot."""
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


def completion_of(
    lease: Lease, rng: random.Random, sampled: Iterator[int], *, afresh: bool = False
) -> Completion:
    """The prompt's tokens go on from the parent's, and the answer's from what was said already unless
    it is `afresh`, as those of a real engine do."""
    parent, said = lease.parent, None if afresh else lease.prefix
    prompt = list(parent.token_ids) if parent is not None and parent.token_ids else []
    prompt += [rng.randrange(1000, 30_000) for _ in range(3)]
    text = f"{nonce_of(lease)} by"
    ids: list[int] = []
    logprobs: list[float] = []
    if said is not None:
        prompt, text = list(said.prompt_token_ids or prompt), said.content
        ids, logprobs = list(said.token_ids or ()), list(said.logprobs or ())
    ids += [next(sampled) for _ in range(4)]
    logprobs += [-rng.randrange(1, 64) / 8 for _ in range(4)]
    choice = Choice(
        message=AssistantMessage(content=f"{text} {lease.lease_id}/{rng.getrandbits(64):x}"),
        token_ids=ids,
        logprobs=logprobs,
    )
    return Completion(
        lease_id=lease.lease_id, choices=[choice], prompt_token_ids=prompt, policy_version=1
    )


async def say(trainer: TrainerClient, log: Log, lease: Lease, item: Completion) -> None:
    """Send most of an answer span by span, before it is completed."""
    choice = item.choices[0]
    text, ids, logprobs = (
        choice.message.content or "",
        choice.token_ids or [],
        choice.logprobs or [],
    )
    done = 0 if lease.prefix is None else len(lease.prefix.content)
    index = 0 if lease.prefix is None else lease.prefix.spans
    for end, start in ((-2, -4), (-1, -2)):
        until = done + (len(text) - done) // 2
        partial = Partial(
            lease_id=lease.lease_id,
            index=index,
            content=text[done:until],
            token_ids=ids[start:end],
            logprobs=logprobs[start:end],
            policy_version=1,
            prompt_token_ids=item.prompt_token_ids if index == 0 else None,
        )
        [result] = (await trainer.partial([partial])).results
        error = None if result.error is None else result.error.code
        log.say("said", lease=lease.lease_id, ids=ids[start:end], error=error)
        done, index = until, index + 1


async def answer(
    trainer: TrainerClient,
    log: Log,
    leases: list[Lease],
    rng: random.Random,
    sampled: Iterator[int],
) -> None:
    """Complete leases in one batch."""
    afresh = {
        lease.lease_id: lease.prefix is not None and rng.random() < AFRESH_SHARE for lease in leases
    }
    items = [completion_of(lease, rng, sampled, afresh=afresh[lease.lease_id]) for lease in leases]
    for lease, item in zip(leases, items, strict=True):
        if not afresh[lease.lease_id] and (lease.prefix is not None or rng.random() < SAY_SHARE):
            await say(trainer, log, lease, item)
    for item in items:
        choice = item.choices[0]
        log.say(
            "sending",
            lease=item.lease_id,
            afresh=afresh[item.lease_id],
            text=choice.message.content,
            ids=choice.token_ids,
            logprobs=choice.logprobs,
        )
    for result in await trainer.complete(items):
        code = None if result.error is None else result.error.code
        log.say("told", lease=result.lease_id, error=code, untrainable=result.untrainable)


async def work(
    trainer: TrainerClient,
    log: Log,
    leases: list[Lease],
    rng: random.Random,
    sampled: Iterator[int],
) -> None:
    """Answer most leases soon, and the others as no good worker would."""
    soon: list[Lease] = []
    late: list[Lease] = []
    for lease in leases:
        fate = rng.random()
        if lease.prefix is not None and rng.random() < AFRESH_SHARE:
            await trainer.fail([Failure(lease_id=lease.lease_id, code="cannot_continue")])
        elif fate < 0.02:
            await trainer.release([lease.lease_id])
        elif fate < 0.03:
            [result] = await trainer.fail([Failure(lease_id=lease.lease_id, message="by design")])
            log.say("failed", lease=lease.lease_id, error=result.error and result.error.code)
        elif fate < 0.04:
            late.append(lease)
        elif fate < 0.05:
            pass  # forgotten
        elif fate < 0.12:  # forgotten in the middle of its answer
            await say(trainer, log, lease, completion_of(lease, rng, sampled))
        else:
            soon.append(lease)
    await asyncio.sleep(rng.random() * 0.2)
    await answer(trainer, log, soon, rng, sampled)
    if late:
        await asyncio.sleep(LEASE_SECONDS + rng.random() * LATE_SECONDS)
        await answer(trainer, log, late, rng, sampled)


def ended(task: asyncio.Task[None], busy: set[asyncio.Task[None]], log: Log) -> None:
    busy.discard(task)
    if not task.cancelled() and task.exception() is not None:
        log.say("crashed", error=repr(task.exception()))


async def main(url: str, log_path: str, seed: str, number: int, key: str) -> None:
    rng = random.Random(seed)
    # Each sampled token is the only one of its value, so that it can be found again.
    sampled = itertools.count(number << TOKENS_OF_ONE_BITS)
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
                said = lease.prefix.token_ids if lease.prefix is not None else []
                log.say("claimed", lease=lease.lease_id, nonce=nonce_of(lease), said=said)
            if reply.leases:
                task = asyncio.ensure_future(work(trainer, log, reply.leases, rng, sampled))
                busy.add(task)
                task.add_done_callback(lambda done: ended(done, busy, log))
            while len(busy) >= MAX_BUSY:
                await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    url, log_path, seed, number = sys.argv[1:]
    asyncio.run(main(url, log_path, seed, int(number), sys.stdin.readline().strip()))
