"""Sampled once: what is a retry joins its call, what is meant twice is two calls; docs/retries.md.

Over real connections, plain and streamed, with and without a retry header, and over `kill -9`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.errors import ContextLengthExceeded
from rock.modelservice import wire
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import complete
from rock.modelservice.wire import AssistantMessage, SessionCreated, TrajectoryCall
from tests.modelservice.fixtures import (
    ask,
    claim,
    completion,
    incoming,
    open_session,
    running,
    user,
)
from tests.modelservice.fixtures import complete as store
from tests.modelservice.live import admin_of, eventually, last_text, raw_agent, trainer_of

MARKED = {"x-stainless-retry-count": "1"}


@dataclass
class Agent:
    """One session's client, which asks the same thing every time."""

    session: SessionCreated
    stream: bool
    retry: Mapping[str, str]
    client: httpx.AsyncClient

    async def asks(self, headers: Mapping[str, str] | None = None) -> str:
        """The text of the reply, read to its end."""
        message: Any = {"role": "user", "content": self.session.session_id}
        body: Any = {"model": "m", "messages": [message], "stream": self.stream}
        reply = await self.client.post("/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        if not self.stream:
            return reply.json()["choices"][0]["message"]["content"]
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if "{" in line]
        return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

    async def again(self) -> str:
        return await self.asks(self.retry)


@asynccontextmanager
async def agents(service: ServiceProcess, admin: AdminClient) -> AsyncGenerator[list[Agent], None]:
    """One for each way of asking: plain and streamed, with and without a retry header."""
    made: list[Agent] = []
    try:
        for stream in (False, True):
            for retry in ({}, MARKED):
                session = await admin.create_session()
                client = raw_agent(service, session.key)
                made.append(Agent(session, stream, retry, client))
        yield made
    finally:
        for one in made:
            await one.client.aclose()


async def answer_all(trainer: TrainerClient, count: int) -> None:
    """Answer so many calls, each with its own prompt."""
    while count > 0:
        leases = (await trainer.claim("w", max_leases=count, wait_seconds=10.0)).leases
        assert leases, f"{count} calls never came"
        text = {lease.lease_id: json.loads(last_text(lease))["content"] for lease in leases}
        done = [
            complete(lease, [AssistantMessage(content=f"re {text[lease.lease_id]}")])
            for lease in leases
        ]
        assert all(result.error is None for result in await trainer.complete(done))
        count -= len(leases)


async def calls_of(admin: AdminClient, one: Agent) -> list[TrajectoryCall]:
    return (await admin.trajectory(one.session.session_id)).calls


async def kill_and_restart(service: ServiceProcess) -> None:
    os.kill(service.pid, signal.SIGKILL)
    await service.wait()
    await service.restart()


async def in_state(admin: AdminClient, made: list[Agent], state: str) -> None:
    async def all_there() -> bool:
        found = [await calls_of(admin, one) for one in made]
        return all(calls and calls[-1].state == state for calls in found)

    await eventually(all_there)


@asynccontextmanager
async def stage(
    tmp_path: Path,
) -> AsyncGenerator[tuple[ServiceProcess, TrainerClient, AdminClient, list[Agent]], None]:
    async with (
        ServiceProcess(tmp_path, exit_with_parent=True) as service,
        trainer_of(service) as trainer,
        admin_of(service) as admin,
        agents(service, admin) as made,
    ):
        yield service, trainer, admin, made


async def test_a_retry_after_a_crash_joins_the_call_that_waits(tmp_path: Path) -> None:
    async with stage(tmp_path) as (service, trainer, admin, made):
        first = [asyncio.ensure_future(one.asks()) for one in made]
        await in_state(admin, made, "queued")
        await kill_and_restart(service)
        broken = await asyncio.gather(*first, return_exceptions=True)
        assert all(isinstance(error, httpx.TransportError) for error in broken)
        retried = [asyncio.ensure_future(one.again()) for one in made]
        await answer_all(trainer, len(made))
        assert await asyncio.gather(*retried) == [f"re {one.session.session_id}" for one in made]
        await in_state(admin, made, "delivered")
        assert [len(await calls_of(admin, one)) for one in made] == [1] * len(made)


async def test_a_retry_after_a_crash_collects_the_answer_that_was_never_read(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as (service, trainer, admin, made):
        first = [asyncio.ensure_future(one.asks()) for one in made]
        await in_state(admin, made, "queued")
        for waiting in first:
            waiting.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        await answer_all(trainer, len(made))
        await in_state(admin, made, "undelivered")
        await kill_and_restart(service)
        said = [await one.again() for one in made]  # no worker answers anything any more
        assert said == [f"re {one.session.session_id}" for one in made]
        await in_state(admin, made, "delivered")
        assert [len(await calls_of(admin, one)) for one in made] == [1] * len(made)


async def test_the_same_again_after_the_answer_was_read_is_a_new_call_unless_marked(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as (service, trainer, admin, made):
        first = [asyncio.ensure_future(one.asks()) for one in made]
        await answer_all(trainer, len(made))
        said = await asyncio.gather(*first)
        await in_state(admin, made, "delivered")
        await kill_and_restart(service)
        again = [asyncio.ensure_future(one.again()) for one in made]
        meant = [one for one in made if not one.retry]
        await answer_all(trainer, len(meant))
        assert await asyncio.gather(*again) == said
        counts = [len(await calls_of(admin, one)) for one in made]
        assert counts == [1 if one.retry else 2 for one in made]


async def test_requests_with_one_key_at_the_same_time_are_one_call(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, trainer, admin, made):
        key = {"Idempotency-Key": "mine"}
        several = [asyncio.ensure_future(one.asks(key)) for one in made for _ in range(4)]
        await answer_all(trainer, len(made))
        said = await asyncio.gather(*several)
        assert said == [f"re {one.session.session_id}" for one in made for _ in range(4)]
        assert [len(await calls_of(admin, one)) for one in made] == [1] * len(made)


async def test_equal_requests_at_the_same_time_are_as_many_calls(tmp_path: Path) -> None:
    async with stage(tmp_path) as (_, trainer, admin, made):
        both = [asyncio.ensure_future(one.asks()) for one in made for _ in range(2)]
        await answer_all(trainer, 2 * len(made))
        await asyncio.gather(*both)
        assert [len(await calls_of(admin, one)) for one in made] == [2] * len(made)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_may_change_how_it_wants_the_reply(tmp_path: Path, stream: bool) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await service.submit(session, incoming(user("x"), stream=stream))
        service.agent_left(first)
        assert await service.submit(session, incoming(user("x"), stream=not stream)) is first


async def test_a_retry_reaches_its_call_also_in_a_session_that_is_used_up(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=wire.SessionLimits(max_calls=1))
        only = await ask(service, session, user("x"))
        with pytest.raises(ContextLengthExceeded):
            await ask(service, session, user("more"))
        (lease,) = await claim(service)
        service.agent_left(only)
        await store(service, completion(lease, "kept"))
        again = await ask(service, session, user("x"))
        assert again is only
        assert (await again.answer()).choices[0].message.content == "kept"
        with pytest.raises(ContextLengthExceeded):
            await ask(service, session, user("x"))
