"""Two models that think for a while and say nothing: one behind ModelService, one a plain server.

    python benchmarks/thinking.py trainer RUN_DIRECTORY SECONDS
    python benchmarks/thinking.py bare SECONDS            (prints its port)

Both answer every call after SECONDS with the same few words. The trainer also takes the groups of the
run as they come, as one that trains would, so that nothing piles up in the service.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from aiohttp import web

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.client.worker import serve
from rock.modelservice.hosting.server import Ready, read_ready
from rock.modelservice.keys import read_keys
from rock.modelservice.policies.scripted import complete
from rock.modelservice.wire import AssistantMessage, Completion, Lease

WORDS = "I have looked at it and go on with the next step. " * 4
WAIT_SECONDS = 60.0


async def trainer(run: Path, seconds: float) -> None:
    async def think(leases: list[Lease]) -> list[Completion]:
        await asyncio.sleep(seconds)
        message = AssistantMessage(content=WORDS)
        return [complete(lease, [message], policy_version=1) for lease in leases]

    folder = run / "service"
    ready = await started(folder)
    key = read_keys(folder).trainer_key
    await asyncio.gather(
        serve(think, url=ready.control_url, key=key, concurrency=1024),
        take_groups(ready.control_url, key),
    )


async def started(folder: Path) -> Ready:
    deadline = time.monotonic() + WAIT_SECONDS
    for _ in iter(lambda: time.monotonic() < deadline, False):
        if (ready := read_ready(folder)) is not None:
            return ready
        await asyncio.sleep(0.02)
    raise SystemExit(f"no service in {folder} after {WAIT_SECONDS:g} s")


async def take_groups(url: str, key: str) -> None:
    async with TrainerClient(url, key) as client:
        while True:
            claimed = await client.claim_rollouts("bench", max_groups=16)
            await client.ack_rollouts([item.lease_id for item in claimed])


async def bare(seconds: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(seconds)
        message = {"role": "assistant", "content": WORDS}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "bare":
        asyncio.run(bare(float(sys.argv[2])))
    else:
        asyncio.run(trainer(Path(sys.argv[2]), float(sys.argv[3])))
