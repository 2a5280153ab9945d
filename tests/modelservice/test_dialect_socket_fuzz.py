"""Hostile bodies through a real socket: every one is answered in time, and none is a 500.

A short form runs always, the long one by `make fuzz`: `ROCK_FUZZ_BODIES` per dialect (10,000), made from
`ROCK_FUZZ_SEED` (printed; another one each time).
"""

import asyncio
import copy
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rock.modelservice.dialects import BY_NAME
from rock.modelservice.wire import Lease
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.live import answering, new_session, raw_agent
from tests.modelservice.test_dialect_fuzz import ANSWERS, GOLDEN, damaged, mutate

BODIES = 250
"""Per dialect, in the short form."""
AT_ONCE = 8
ANSWER_SECONDS = 5.0


def bodies(name: str, seed: int, count: int) -> Iterator[bytes]:
    rng = random.Random(f"{seed} {name}")
    for number in range(count):
        body = copy.deepcopy(GOLDEN[name])
        body.pop("previous_response_id", None)  # this session has no such call
        for _ in range(rng.randint(0, 2)):
            mutate(rng, body)
        encoded = json.dumps(body).encode()
        yield damaged(rng, encoded) if number % 4 == 3 else encoded


def any_answer(seed: int) -> ScriptedPolicy:
    """Text, reasoning, calls that are well-formed and calls that are not."""
    rng = random.Random(seed)

    def line(lease: Lease) -> Any:
        del lease
        return rng.choice(ANSWERS).choices[0].message

    return ScriptedPolicy(line)


async def send_all(name: str, seed: int, count: int, folder: Path) -> tuple[Counter[int], float]:
    """(statuses, longest wait in seconds)"""
    path = f"/v1{BY_NAME[name].routes[0]}"
    statuses: Counter[int] = Counter()
    slowest = 0.0
    left = bodies(name, seed, count)
    async with running_service(folder) as service, answering(service, any_answer(seed)):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:

            async def ask() -> None:
                nonlocal slowest
                for body in left:
                    started = time.monotonic()
                    async with asyncio.timeout(ANSWER_SECONDS):
                        reply = await http.post(path, content=body)
                    slowest = max(slowest, time.monotonic() - started)
                    assert reply.status_code in (200, 400), body[:2000]
                    statuses[reply.status_code] += 1

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(ask())
    return statuses, slowest


@pytest.mark.parametrize("name", sorted(GOLDEN))
async def test_every_body_gets_an_answer_or_a_refusal_in_time(name: str, tmp_path: Path) -> None:
    statuses, _ = await send_all(name, 7, BODIES, tmp_path)
    assert statuses.keys() == {200, 400}
    assert statuses.total() == BODIES


@pytest.mark.fuzz
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(GOLDEN))
async def test_ten_thousand_bodies_get_an_answer_or_a_refusal_in_time(
    name: str, tmp_path: Path
) -> None:
    count = int(os.environ.get("ROCK_FUZZ_BODIES", "10000"))
    seed = int(os.environ.get("ROCK_FUZZ_SEED") or random.randrange(2**32))
    print(f"\n{name}: ROCK_FUZZ_SEED={seed}")  # noqa: T201 - to run the same again
    statuses, slowest = await send_all(name, seed, count, tmp_path)
    print(f"{name}: {dict(statuses)}, slowest {slowest:.2f} s")  # noqa: T201 - the result
    assert statuses.total() == count
    assert statuses.keys() == {200, 400}
