"""The benchmarks' trainer: a process that answers at once, over the trainer API only.

    python benchmarks/trainer.py CONTROL_URL short|long      (the trainer key is read from stdin)

It works like an engine that keeps its conversations: it claims without `whole` and sends the ids that
are new in a turn, 64 sampled ones and 100 of the prompt; with `long`, for conversations that grow to
100,000 tokens, 3,270 of the prompt.
"""

from __future__ import annotations

import asyncio
import sys

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease

ANSWER = "ok " * 400
SAMPLED = list(range(64))
LOGPROBS = [-0.5] * 64
NEW = {"short": list(range(100)), "long": list(range(30_000, 33_270))}
"""New prompt ids per turn. 100 are what 400 bytes are; with 3,270, 30 turns make 100,000."""


def choice() -> Choice:
    return Choice(message=AssistantMessage(content=ANSWER), token_ids=SAMPLED, logprobs=LOGPROBS)


def answer(lease: Lease, new: list[int]) -> Completion:
    known = lease.omitted is not None and lease.omitted.token_ids
    before = [] if lease.parent is None or known else lease.parent.token_ids or []
    return Completion(
        lease_id=lease.lease_id,
        prompt_token_ids=before + new,
        continues_parent=known,
        choices=[choice()],
    )


async def main(url: str, key: str, new: list[int]) -> None:
    async with TrainerClient(url, key) as trainer:

        async def work(name: str) -> None:
            while True:
                reply = await trainer.claim(name, max_leases=256, policy_version=1, whole=False)
                await trainer.complete([answer(lease, new) for lease in reply.leases])

        # Two, so that one claims while the other's answers travel.
        await asyncio.gather(work("engine"), work("engine"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.stdin.readline().strip(), NEW[sys.argv[2]]))
