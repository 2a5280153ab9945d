"""What agents have read of an answer stands after a `kill -9` of the service, in every dialect; what
nobody has read does not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.journal.segments import FILE_NAME
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Failure,
    Lease,
    Prefix,
    SessionCreated,
)
from rock.modelservice.wire.partial import Partial
from tests.modelservice.live import admin_of, eventually, trainer_of

USER: Any = {"role": "user", "content": "hi"}
DIALECTS: dict[str, Any] = {
    "/chat/completions": {"messages": [USER]},
    "/completions": {"prompt": "hi"},
    "/messages": {"messages": [USER], "max_tokens": 9},
    "/responses": {"input": "hi"},
}
RETRIES: list[Mapping[str, str]] = [{}, {"x-stainless-retry-count": "1"}]
MOMENT = re.compile(rb'"created(_at)?":\d+')
"""When a reply was begun, which is all that two replies to one call may differ in."""


@dataclass
class Agent:
    """One session's client: asks the same every time, and keeps what came of each reply."""

    session: SessionCreated
    path: str
    body: Mapping[str, Any]
    retry: Mapping[str, str]
    client: httpx.AsyncClient
    replies: list[bytes] = field(default_factory=list[bytes])

    async def asks(self, *, stream: bool = True, again: bool = False) -> int:
        """The status of the reply, once it is over or broke off."""
        self.replies.append(b"")
        url = f"{self.session.base_url}{self.path}"
        body = {"model": "m", "stream": stream, **self.body}
        headers = dict(self.retry) if again else dict[str, str]()
        try:
            async with self.client.stream("POST", url, json=body, headers=headers) as reply:
                async for piece in reply.aiter_bytes():
                    self.replies[-1] += piece
                return reply.status_code
        except httpx.TransportError:
            return 0

    @property
    def heard(self) -> list[bytes]:
        return [MOMENT.sub(b"", reply) for reply in self.replies]


@dataclass
class Stage:
    """A service, a trainer, and an agent for each dialect and way of trying again."""

    service: ServiceProcess
    trainer: TrainerClient
    admin: AdminClient
    agents: list[Agent]

    async def claim(self) -> list[Lease]:
        """A lease for each agent."""
        leases: list[Lease] = []
        while len(leases) < len(self.agents):
            reply = await self.trainer.claim("w", max_leases=99, wait_seconds=10.0)
            assert reply.leases, f"{len(leases)} calls of {len(self.agents)}"
            leases += reply.leases
        return leases

    async def crash(self) -> None:
        os.kill(self.service.pid, signal.SIGKILL)
        await self.service.wait()
        await self.service.restart()

    async def states(self) -> list[list[str]]:
        found = [await self.admin.trajectory(one.session.session_id) for one in self.agents]
        return [[call.state for call in trajectory.calls] for trajectory in found]

    async def all_are(self, *states: str) -> None:
        async def settled() -> bool:
            return await self.states() == [[*states]] * len(self.agents)

        await eventually(settled)


def ids_of(text: str) -> list[int]:
    return [*text.encode()]


def span(lease: Lease, index: int, text: str, ids: str | None = None) -> Partial:
    given = ids_of(text if ids is None else ids)
    return Partial(
        lease.lease_id, index, text, token_ids=given, logprobs=[-1.0] * len(given), policy_version=1
    )


def whole(lease: Lease, text: str) -> Completion:
    ids = ids_of(text)
    choice = Choice(AssistantMessage(content=text), token_ids=ids, logprobs=[-2.0] * len(ids))
    return Completion(lease.lease_id, [choice], prompt_token_ids=[3], policy_version=1)


async def say_ab(stage: Stage, leases: list[Lease]) -> None:
    spans = [span(lease, n, text) for lease in leases for n, text in enumerate("ab")]
    assert all(result.error is None for result in (await stage.trainer.partial(spans)).results)


@pytest.fixture
async def stage(tmp_path: Path) -> Any:
    async with (
        ServiceProcess(tmp_path, exit_with_parent=True) as service,
        trainer_of(service) as trainer,
        admin_of(service) as admin,
        httpx.AsyncClient(timeout=20.0, limits=httpx.Limits(max_connections=None)) as client,
    ):
        agents = [
            Agent(await admin.create_session(), path, body, retry, client)
            for path, body in DIALECTS.items()
            for retry in RETRIES
        ]
        yield Stage(service, trainer, admin, agents)


async def all_have_read_ab(stage: Stage, *, tries: int = 1) -> None:
    """Of the last of so many replies to each."""

    async def read() -> bool:
        return all(len(one.replies) == tries and b'b"' in one.replies[-1] for one in stage.agents)

    await eventually(read)


async def read_ab_and_crash(stage: Stage) -> None:
    """Every agent has read `ab` of its answer when the service is killed."""
    asking = [asyncio.ensure_future(one.asks()) for one in stage.agents]
    await say_ab(stage, await stage.claim())
    await all_have_read_ab(stage)
    journal = (stage.service.state_dir / FILE_NAME).read_bytes()
    assert journal.count(b'"t":"spans_read"') == len(stage.agents)
    await stage.crash()
    assert await asyncio.gather(*asking) == [0] * len(asking)


def goes_on(prefix: Prefix | None) -> bool:
    return prefix is not None and (prefix.spans, prefix.content, prefix.token_ids) == (
        2,
        "ab",
        ids_of("ab"),
    )


async def test_who_comes_back_after_a_crash_reads_on_from_what_it_read(stage: Stage) -> None:
    await read_ab_and_crash(stage)
    leases = await stage.claim()
    assert all(goes_on(lease.prefix) for lease in leases)
    again = [asyncio.ensure_future(one.asks(again=True)) for one in stage.agents]
    await all_have_read_ab(stage, tries=2)
    more = await stage.trainer.partial([span(lease, 2, "c") for lease in leases])
    assert all(result.error is None for result in more.results)
    done = await stage.trainer.complete([whole(lease, "abcd") for lease in leases])
    assert all(result.error is None for result in done)
    assert await asyncio.gather(*again) == [200] * len(again)
    for one in stage.agents:
        before, after = one.heard
        assert after.startswith(before)
        assert len(after) > len(before)
    await stage.all_are("delivered")
    rows = [(await stage.admin.trajectory(one.session.session_id)).rows for one in stage.agents]
    assert [row.logprobs for (row,) in rows] == [[0, -1, -1, -1, -2]] * len(rows)


async def test_after_a_crash_too_an_answer_that_contradicts_what_was_read_ends_the_call(
    stage: Stage,
) -> None:
    await read_ab_and_crash(stage)
    again = [asyncio.ensure_future(one.asks(again=True)) for one in stage.agents]
    await all_have_read_ab(stage, tries=2)
    leases = await stage.claim()
    afresh, unable = leases[::2], leases[1::2]
    done = await stage.trainer.complete([whole(lease, "other") for lease in afresh])
    assert [result.error and result.error.code for result in done] == ["invalid_request"] * len(
        done
    )
    failures = [Failure(lease.lease_id, "cannot_continue", "no") for lease in unable]
    assert all(result.error is None for result in await stage.trainer.fail(failures))
    assert await asyncio.gather(*again) == [200] * len(again)
    for one in stage.agents:
        before, after = one.heard
        assert after.startswith(before)
        assert b"error" in after[len(before) :]
        assert b"other" not in after
    await stage.all_are("failed")


async def test_after_a_crash_an_answer_that_nobody_has_read_may_begin_afresh(stage: Stage) -> None:
    asking = [asyncio.ensure_future(one.asks(stream=False)) for one in stage.agents]
    await say_ab(stage, await stage.claim())
    await stage.crash()
    await asyncio.gather(*asking)
    again = [asyncio.ensure_future(one.asks(stream=False, again=True)) for one in stage.agents]
    leases = await stage.claim()
    assert all(goes_on(lease.prefix) for lease in leases)
    done = await stage.trainer.complete([whole(lease, "other") for lease in leases])
    assert all(result.error is None for result in done)
    assert await asyncio.gather(*again) == [200] * len(again)
    assert all(b"other" in one.heard[-1] for one in stage.agents)
    assert await stage.states() == [["delivered"]] * len(stage.agents)


async def test_who_comes_back_for_the_whole_gets_the_answer_that_it_read_of(stage: Stage) -> None:
    await read_ab_and_crash(stage)
    await stage.crash()  # and once more: the journal says it twice over
    again = [asyncio.ensure_future(one.asks(stream=False, again=True)) for one in stage.agents]
    leases = await stage.claim()
    assert all(goes_on(lease.prefix) for lease in leases)
    done = await stage.trainer.complete([whole(lease, "abcd") for lease in leases])
    assert all(result.error is None for result in done)
    assert await asyncio.gather(*again) == [200] * len(again)
    assert all(b"abcd" in json.dumps(json.loads(one.replies[-1])).encode() for one in stage.agents)
