"""Hostile bodies through a real socket: every one is answered in time, and none is a 500."""

import asyncio
import copy
import json
import random
from pathlib import Path

import pytest

from rock.modelservice.dialects import BY_NAME
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.live import answering, new_session, raw_agent
from tests.modelservice.test_dialect_fuzz import GOLDEN, damaged, mutate

BODIES = 250
"""Per dialect. Far more go through `parse` alone (test_dialect_fuzz)."""
AT_ONCE = 8
ANSWER_SECONDS = 5.0


def bodies(name: str, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    made: list[bytes] = []
    for number in range(BODIES):
        body = copy.deepcopy(GOLDEN[name])
        body.pop("previous_response_id", None)  # this session has no such call
        for _ in range(rng.randint(0, 2)):
            mutate(rng, body)
        encoded = json.dumps(body).encode()
        made.append(damaged(rng, encoded) if number % 4 == 3 else encoded)
    return made


@pytest.mark.parametrize("name", sorted(GOLDEN))
async def test_every_body_gets_an_answer_or_a_refusal_in_time(name: str, tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "hello")
    path = f"/v1{BY_NAME[name].routes[0]}"
    statuses: set[int] = set()
    waiting = asyncio.Semaphore(AT_ONCE)
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:

            async def ask(body: bytes) -> None:
                async with waiting, asyncio.timeout(ANSWER_SECONDS):
                    reply = await http.post(path, content=body)
                assert reply.status_code in (200, 400), body[:2000]
                statuses.add(reply.status_code)

            await asyncio.gather(*(ask(body) for body in bodies(name, seed=7)))
    assert statuses == {200, 400}
