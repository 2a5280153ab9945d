"""Nobody samples for an agent that has gone: who is told, how fast, and what the agent hears later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.errors import SessionClosed
from rock.modelservice import wire
from rock.modelservice.client.worker import Worker
from rock.modelservice.engine.notices import KEEP_SECONDS, Notices
from rock.modelservice.hosting.server import Running
from rock.modelservice.service.service import ModelService
from rock.modelservice.states import State
from rock.modelservice.wire import Completion, Lease
from rock.modelservice.wire.partial import CancelledReply, CancelledRequest, PartialRequest
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from rock.types import LeaseId, WorkerId
from tests.modelservice.fixtures import (
    ask,
    claim,
    complete,
    completion,
    open_session,
    running,
    user,
)
from tests.modelservice.live import admin_of, new_session, raw_agent, trainer_of

HI = user("hi")
CHAT: Any = {"model": "m", "messages": [HI]}


async def cancelled(service: ModelService, worker: str = "w", after: int = 0) -> CancelledReply:
    request = CancelledRequest(worker_id=worker, after=after, wait_seconds=0.0)
    return await service.cancelled(request)


async def test_a_worker_hears_of_a_cancelled_lease_in_every_way(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, cancel_grace_seconds=5.0) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        waiting = asyncio.create_task(
            service.cancelled(CancelledRequest(worker_id="w", wait_seconds=30.0))
        )
        service.agent_left(call)
        clock.advance(4.9)
        service.tick()
        assert call.state is State.LEASED  # a retry may still come
        clock.advance(0.1)
        service.tick()
        assert call.state is State.CANCELLED
        async with asyncio.timeout(5):
            reply = await waiting
        assert reply.lease_ids == [lease.lease_id]
        (renewed,) = service.renew(wire.RenewRequest([lease.lease_id])).results
        assert renewed.error is not None
        assert (renewed.error.code, "cancelled" in renewed.error.message) == ("lease_lost", True)
        told = await service.partial(PartialRequest(partials=[], worker_id="w"))
        assert told.cancelled == [lease.lease_id]
        assert (await cancelled(service, after=reply.cursor)).lease_ids == []
        assert (await cancelled(service, "another")).lease_ids == []


async def test_closing_a_session_tells_at_once_and_expiry_tells_nobody(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        await ask(service, session, user("two"))
        slow, lost = await claim(service, 2, lease_seconds=50.0)
        service.renew(wire.RenewRequest([lost.lease_id], 1.0))
        clock.advance(1.0)
        service.tick()
        assert (await cancelled(service)).lease_ids == []  # renewing says it, to who still renews
        await service.close_session(session.id)
        assert (await cancelled(service)).lease_ids == [slow.lease_id]


@pytest.mark.parametrize("closed_first", [False, True])
async def test_an_answer_and_the_end_of_its_session_at_the_same_time_are_one_or_the_other(
    tmp_path: Path, closed_first: bool
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        (lease,) = await claim(service)
        closing = service.close_session(session.id)
        completing = complete(service, completion(lease))
        if closed_first:
            _, [result] = await asyncio.gather(closing, completing)
            assert result.error is not None
            assert result.error.code == "lease_lost"
            with pytest.raises(SessionClosed):
                await call.answer()
        else:
            [result], _ = await asyncio.gather(completing, closing)
            assert result.error is None
            assert (await call.answer()).choices[0].message.content == "hello"
            service.sent(call)
        state = call.state
        assert state is (State.CANCELLED if closed_first else State.DELIVERED)
    async with running(tmp_path) as service:
        assert [one.state for one in service.trajectory(session.id).calls] == [state]
        assert await claim(service) == []


async def test_a_deadline_tells_the_worker_too(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, call_deadline_seconds=5.0) as service:
        await ask(service, await open_session(service), HI)
        (lease,) = await claim(service, lease_seconds=60.0)
        clock.advance(5.0)
        service.tick()
        assert (await cancelled(service)).lease_ids == [lease.lease_id]


def test_notices_are_repeated_until_they_were_seen() -> None:
    notices = Notices()
    w = WorkerId("w")
    notices.tell(w, LeaseId("a"), now=0.0)
    leases, cursor = notices.after(w, 0)
    assert leases == ["a"]
    assert notices.after(w, 0)[0] == ["a"]  # the reply had got lost
    notices.tell(w, LeaseId("b"), now=1.0)
    leases, cursor = notices.after(w, cursor)
    assert leases == ["b"]
    assert notices.after(w, cursor)[0] == []
    notices.tell(w, LeaseId("c"), now=2.0)
    assert notices.after(w, 99)[0] == ["c"]  # a cursor of an earlier run of the service
    notices.tell(WorkerId("silent"), LeaseId("d"), now=2.0)
    notices.forget(2.0 + KEEP_SECONDS)
    assert len(notices) == 0


async def test_the_list_of_waiting_workers_does_not_grow(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        for number in range(20):
            request = CancelledRequest(worker_id=f"w{number}", wait_seconds=0.001)
            assert (await service.cancelled(request)).lease_ids == []
        assert service._engine.notice_bells == {}  # pyright: ignore[reportPrivateUsage]


async def _policy_stopped_by(tmp_path: Path, end: Any, **config: Any) -> None:
    """Run an endless policy whose lease is renewed only after minutes; `end` must stop it."""
    started, stopped = asyncio.Event(), asyncio.Event()

    async def endless(leases: list[Lease]) -> list[Completion]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return []

    async with running_service(tmp_path, **config) as service, trainer_of(service) as desk:
        session = await new_session(service)
        stop = asyncio.Event()
        working = asyncio.ensure_future(Worker(endless, desk, lease_seconds=600.0).run(stop))
        async with raw_agent(service, session.key) as client:
            asked = asyncio.ensure_future(client.post("/v1/chat/completions", json=CHAT))
            async with asyncio.timeout(10):
                await started.wait()
                await end(service, session.session_id, asked)
                await stopped.wait()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        stop.set()
        await working


async def test_a_policy_stops_when_its_agent_hangs_up(tmp_path: Path) -> None:
    async def hang_up(service: Running, session_id: str, asked: asyncio.Future[Any]) -> None:
        asked.cancel()

    await _policy_stopped_by(tmp_path, hang_up, cancel_grace_seconds=0.0)


async def test_a_policy_stops_when_its_session_is_closed(tmp_path: Path) -> None:
    async def close(service: Running, session_id: str, asked: asyncio.Future[Any]) -> None:
        async with admin_of(service) as admin:
            await admin.close_session(session_id)
        assert (await asked).status_code == 410

    await _policy_stopped_by(tmp_path, close)


async def test_a_policy_stops_when_a_pause_takes_its_call_back(tmp_path: Path) -> None:
    async def requeue(service: Running, session_id: str, asked: asyncio.Future[Any]) -> None:
        async with trainer_of(service) as trainer:
            status = await trainer.policy(state="paused", mode="requeue")
        assert status.leased == 0
        assert not asked.done()

    await _policy_stopped_by(tmp_path, requeue)


@pytest.mark.parametrize(
    ("path", "body", "shape"),
    [
        ("/v1/chat/completions", CHAT, ("error", "code")),
        ("/v1/completions", {"model": "m", "prompt": "x"}, ("error", "code")),
        ("/v1/responses", {"model": "m", "input": "x"}, ("error", "code")),
        ("/v1/messages", {**CHAT, "max_tokens": 5}, ("error", "type")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_session_is_410_in_the_dialects_shape(
    tmp_path: Path, path: str, body: dict[str, Any], shape: tuple[str, str], stream: bool
) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        async with admin_of(service) as admin, raw_agent(service, session.key) as client:
            waiting = asyncio.ensure_future(client.post(path, json={**body, "stream": stream}))
            await until_parked(service, session.session_id)
            await admin.close_session(session.session_id)
            later: httpx.Response = await client.post(path, json={**body, "stream": stream})
            for reply in (await waiting, later):
                assert reply.status_code == 410
                outer, inner = shape
                assert reply.json()[outer][inner]
                assert "closed" in reply.json()[outer]["message"]


async def until_parked(service: Running, session_id: str) -> None:
    session = service.service.session(session_id)  # pyright: ignore[reportArgumentType]
    async with asyncio.timeout(5):
        while session.parked < 1:  # noqa: ASYNC110 - the service tells nobody
            await asyncio.sleep(0.005)
