"""A trainer that dies, or is told off, over an acknowledgement: `python -m tests.rollout.acking ...`.

    CONTROL_URL KEY STATE_DIR LOG HOW

It takes one group, for a second, and does with it what HOW says; then it says so in a JSON line in LOG.

    claimed   SIGKILL before it acknowledges
    unread    SIGKILL once the acknowledgement is in the journal, before the reply is read
    cut       the service is killed instead, at that moment; then the trainer says it again
    twice     says it twice
    late      waits until the group was handed out again, says it for the old lease, then for the new one
    once      says it
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.wire.groups import ClaimedGroup
from tests.rollout.live import wait_until

LEASE_SECONDS = 1.0
STEPS = {"claimed": 1, "unread": 2, "cut": 3, "twice": 4, "late": 5, "once": 6}


class Trainer:
    def __init__(self, client: TrainerClient, url: str, key: str, state_dir: Path) -> None:
        self.client = client
        self.url = url
        self.key = key
        self.state_dir = state_dir

    async def take(self) -> ClaimedGroup:
        while True:
            found = await self.client.claim_rollouts("t", lease_seconds=LEASE_SECONDS)
            if found:
                return found[0]

    async def acknowledge(self, item: ClaimedGroup, step: int) -> str | None:
        (result,) = await self.client.ack_rollouts([item.lease_id], step=step)
        return result.error and result.error.code

    async def send_and_not_read(self, item: ClaimedGroup, step: int) -> None:
        """The request goes out; on return the journal has what it says, and nobody read the reply."""
        port = int(self.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"lease_ids": [item.lease_id], "step": step})
        writer.write(
            f"POST /trainer/v1/rollouts/ack HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
        said = f'"group_acknowledged","group_id":"{item.group.group_id}"'.encode()
        journal = self.state_dir / "journal.log"
        await wait_until(lambda: said in journal.read_bytes())

    async def do(self, how: str) -> list[str | None]:
        """What each acknowledgement was answered with: an error's code, or null."""
        item, step = await self.take(), STEPS[how]
        match how:
            case "claimed" | "unread":
                if how == "unread":
                    await self.send_and_not_read(item, step)
                os.kill(os.getpid(), signal.SIGKILL)
                return []
            case "cut":
                ready = msgspec.json.decode((self.state_dir / READY_FILE).read_bytes(), type=Ready)
                await self.send_and_not_read(item, step)
                os.kill(ready.pid, signal.SIGKILL)
                return [await self.acknowledge(item, step)]
            case "twice":
                return [await self.acknowledge(item, step), await self.acknowledge(item, step + 10)]
            case "late":
                again = await self.take()
                assert (again.group.group_id, again.delivery) == (
                    item.group.group_id,
                    item.delivery + 1,
                )
                return [await self.acknowledge(item, 99), await self.acknowledge(again, step)]
            case _:
                return [await self.acknowledge(item, step)]


async def main(url: str, key: str, state_dir: Path, log: Path, how: str) -> None:
    async with TrainerClient(url, key) as client:
        codes = await Trainer(client, url, key, state_dir).do(how)
    with log.open("a") as file:
        file.write(json.dumps({"how": how, "codes": codes}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]))
