"""A trainer to be killed: `python -m tests.rollout.trainer CONTROL_URL KEY ACKS HOLD`.

It answers calls and acknowledges groups; what it took is a JSON line in the file ACKS. The
first call that it takes of turn HOLD it never answers, and there is a file ACKS.held then.
"""

import asyncio
import json
import sys
from pathlib import Path

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.client.worker import serve
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.testing import ScriptedPolicy


async def main(url: str, key: str, acks: Path, hold: str) -> None:
    async def answer(lease: Lease) -> str:
        held = acks.with_suffix(".held")
        if hold == str(turn_of(lease)) and not held.exists():
            held.touch()
            await asyncio.Event().wait()
        return "done" if turn_of(lease) else "write 42"

    policy = ScriptedPolicy(answer, policy_version=1)
    async with TrainerClient(url, key) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(policy, url=url, key=key, lease_seconds=2))
        while True:
            for item in await client.claim_rollouts("t", max_groups=8, wait_seconds=2):
                (result,) = await client.ack_rollouts([item.lease_id], step=7)
                episodes = item.group.episodes
                line = {
                    "group_id": item.group.group_id,
                    "error": result.error and str(result.error),
                    "rewards": [episode.reward for episode in episodes],
                    "sampled": [sum(sum(row.mask) for row in e.rows) for e in episodes],
                }
                with acks.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
