"""The demo's trainer: a process that knows one URL and one key and speaks only the trainer API.

It answers calls with the scripted policy and, beside that, takes finished groups with their rewards
and token rows, prints what a real trainer would learn from, and acknowledges them.

Usage: ROCK_TRAINER_KEY=... python -m rock.demo.trainer CONTROL_URL SEED PARENT_PID
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from rock.demo.policy import ScriptedSolver
from rock.modelservice.client.client import TrainerClient
from rock.modelservice.client.worker import serve
from rock.modelservice.wire.groups import Group
from rock.rollout.tasks.humaneval import problems

WORKER = "demo-trainer"


async def take_groups(trainer: TrainerClient, stop: asyncio.Event) -> None:
    """Claim, look at and acknowledge groups until `stop`. One not acknowledged comes again."""
    while not stop.is_set():
        for claimed in await trainer.claim_rollouts(WORKER, max_groups=8, wait_seconds=1.0):
            print(describe(claimed.group), flush=True)
            await trainer.ack_rollouts([claimed.lease_id])


def describe(group: Group) -> str:
    """One line: rewards, the advantages that a group baseline gives, and how much can be trained."""
    counted = [
        e.reward for e in group.episodes if e.reward is not None and e.outcome["in_baseline"]
    ]
    mean = sum(counted) / len(counted) if counted else 0.0
    advantages = " ".join(f"{reward - mean:+.2f}" for reward in counted)
    rows = [row for episode in group.episodes for row in episode.rows]
    sampled = sum(sum(row.mask) for row in rows)
    return f"{group.task_id}: advantages {advantages}; {len(rows)} rows, {sampled} sampled tokens"


async def main(url: str, key: str, seed: int, parent_pid: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # A demo that is killed cannot stop its trainer; the kernel says when it is gone.
    try:
        asyncio.get_running_loop().add_reader(os.pidfd_open(parent_pid), stop.set)
    except ProcessLookupError:  # killed while this process was starting
        return
    policy = ScriptedSolver(problems(), seed=seed)
    async with TrainerClient(url, key) as trainer:
        told = asyncio.ensure_future(trainer.policy(version=policy.version))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((told, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not told.done():  # the service has gone with the demo
            told.cancel()
            return
        await told
        await asyncio.gather(
            serve(policy, url=url, key=key, worker_id=WORKER, stop=stop),
            take_groups(trainer, stop),
        )


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], os.environ["ROCK_TRAINER_KEY"], int(sys.argv[2]), int(sys.argv[3]))
    )
