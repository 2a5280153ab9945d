"""The agent's side of the service: asking, waiting, retrying, leaving, limits."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from rock.errors import (
    BadRequest,
    CallFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    NotFound,
    QueueFull,
    SessionClosed,
    Unauthorized,
)
from rock.modelservice import wire
from rock.modelservice.service.service import AgentRequest
from rock.modelservice.states import State
from rock.testing.clock import FakeClock
from rock.types import SessionId
from tests.modelservice.fixtures import (
    answered,
    ask,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    user,
)

HI = user("hi")


async def test_an_agent_gets_the_answer_that_a_worker_gave(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        waiting = asyncio.create_task(call.answer())
        assert call.outcome is None
        (lease,) = await claim(service)
        await complete(service, completion(lease, "hello"))
        answer = await waiting
        assert answer.choices[0].message.content == "hello"
        assert answer.choices[0].token_ids == [10, 11]
        assert answer.choices[0].logprobs == [-0.5, -0.25]
        assert answer.prompt_token_ids == [1, 2, 3]
        assert answer.usage == wire.Usage(prompt_tokens=3, completion_tokens=2)
        assert call.outcome is not None
        service.sent(call)
        assert call.state is State.DELIVERED


async def test_a_key_opens_its_session_and_nothing_else_does(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        made = await service.create_session(wire.SessionSpec(labels={"task": "t1"}))
        other = await service.create_session(wire.SessionSpec())
        assert service.authenticate(made.key).id == made.session_id
        assert service.authenticate(made.key).labels == {"task": "t1"}
        assert made.key != other.key
        for wrong in ("", "x", made.key[:-1], made.key + "x", str(made.session_id), "\ud800"):
            with pytest.raises(Unauthorized):
                service.authenticate(wrong)
        with pytest.raises(NotFound, match="'nope'"):
            service.session(SessionId("nope"))
    assert made.key.encode() not in (tmp_path / "journal.log").read_bytes()


async def test_pins_override_the_agent_and_both_are_on_record(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, pins=wire.Pins(temperature=1.0, model="policy"))
        call = await ask(service, session, HI, temperature=0.0, top_p=0.5)
        (lease,) = await claim(service)
        assert (lease.request.model, lease.request.temperature, lease.request.top_p) == (
            "policy",
            1.0,
            0.5,
        )
        await complete(service, completion(lease))
        assert (await call.answer()).model == "policy"
        (exported,) = service.trajectory(session.id).calls
        assert exported.pinned == {"temperature": 1.0, "model": "policy"}
    assert b'"temperature":0.0' in (tmp_path / "journal.log").read_bytes()


# --- retries ---


async def test_the_same_idempotency_key_is_the_same_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await service.submit(session, incoming(HI, key="k"))
        assert await service.submit(session, incoming(HI, key="k", stream=True)) is first
        with pytest.raises(BadRequest, match="Idempotency-Key"):
            await service.submit(session, incoming(user("other"), key="k"))
        assert await service.submit(session, incoming(HI, key="other")) is not first


async def test_a_marked_retry_of_a_live_call_shares_its_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await ask(service, session, HI)
        again = await service.submit(session, incoming(HI, retry=1))
        assert again is first
        (lease,) = await claim(service, 9)
        await complete(service, completion(lease))
        assert await first.answer() is await again.answer()


async def test_a_marked_retry_collects_an_answer_that_was_delivered_already(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await answered(service, session, HI)
        again = await service.submit(session, incoming(HI, retry=1))
        assert again is first
        service.sent(again)
        assert first.state is State.DELIVERED


async def test_a_client_that_hung_up_and_asks_again_finds_its_call(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, cancel_grace_seconds=10.0) as service:
        session = await open_session(service)
        first = await ask(service, session, HI)
        service.agent_left(first)
        clock.advance(9.0)
        service.tick()
        assert await service.submit(session, incoming(HI, stream=True)) is first
        clock.advance(60.0)
        service.tick()
        assert first.state is State.QUEUED


async def test_an_undelivered_answer_waits_for_the_retry(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await ask(service, session, HI)
        (lease,) = await claim(service)
        service.agent_left(first)
        await complete(service, completion(lease, "kept"))
        assert first.state is State.UNDELIVERED
        assert service.session_info(session.id).undelivered == 1
        again = await ask(service, session, HI)
        assert again is first
        assert (await again.answer()).choices[0].message.content == "kept"
        service.sent(again)
        assert first.state is State.DELIVERED
        assert service.session_info(session.id).calls == 1


async def test_two_equal_requests_that_are_both_meant_are_two_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        live = await ask(service, session, HI)
        assert await ask(service, session, HI) is not live
        (one, two) = await claim(service, 9)
        await complete(service, completion(one), completion(two))
        service.sent(live)
        assert await ask(service, session, HI) is not live


async def test_an_equal_request_of_another_session_is_another_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        first = await ask(service, await open_session(service), HI)
        service.agent_left(first)
        other = await open_session(service)
        assert await service.submit(other, incoming(HI, retry=3)) is not first


@pytest.mark.parametrize(
    "field", [{"temperature": 0.1}, {"tools": [{"a": 1}]}, {"extra": {"x": 1}}]
)
async def test_a_retry_with_other_parameters_is_another_call(
    tmp_path: Path, field: dict[str, Any]
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await ask(service, session, HI)
        service.agent_left(first)
        assert await service.submit(session, incoming(HI, retry=1, **field)) is not first


async def test_a_retry_of_a_failed_call_is_sampled_anew(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await service.submit(session, incoming(HI, key="k"))
        (lease,) = await claim(service)
        await service.fail(wire.FailRequest([wire.Failure(lease.lease_id, message="engine died")]))
        with pytest.raises(CallFailed, match="engine died"):
            await first.answer()
        again = await service.submit(session, incoming(HI, key="k", retry=1))
        assert again is not first
        assert len(await claim(service)) == 1


# --- leaving and ending ---


async def test_a_call_whose_agent_left_is_withdrawn_after_the_grace(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, cancel_grace_seconds=10.0) as service:
        session = await open_session(service)
        queued = await ask(service, session, HI)
        leased = await ask(service, session, user("two"))
        (lease,) = [lease for lease in await claim(service, 2) if lease.call_id == leased.id]
        service.release(wire.ReleaseRequest([f"{queued.id}.1-1"]))
        for call in (queued, leased):
            service.agent_left(call)
        clock.advance(9.9)
        service.tick()
        assert (queued.state, leased.state) == (State.QUEUED, State.LEASED)
        clock.advance(0.1)
        service.tick()
        assert (queued.state, leased.state) == (State.CANCELLED, State.CANCELLED)
        (told,) = service.renew(wire.RenewRequest([lease.lease_id])).results
        assert told.error is not None
        assert (told.error.status, told.error.code) == (409, "lease_lost")
        assert "cancelled" in told.error.message
        assert await claim(service) == []


async def test_one_of_two_connections_leaving_ends_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        call = await service.submit(session, incoming(HI, key="k"))
        await service.submit(session, incoming(HI, key="k"))
        service.agent_left(call)
        clock.advance(100.0)
        service.tick()
        assert call.state is State.QUEUED


async def test_a_cancelled_submit_counts_as_leaving(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        task = asyncio.create_task(service.submit(session, incoming(HI)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.session_info(session.id).queued == 1
        clock.advance(100.0)
        service.tick()
        assert service.session_info(session.id).cancelled == 1


async def test_an_unanswered_call_fails_at_its_deadline(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, call_deadline_seconds=100.0) as service:
        patient = await ask(service, await open_session(service), HI)
        limits = wire.SessionLimits(call_deadline_seconds=5.0)
        hasty = await ask(service, await open_session(service, limits=limits), HI)
        clock.advance(5.0)
        service.tick()
        with pytest.raises(DeadlineExceeded):
            await hasty.answer()
        assert patient.outcome is None
        await claim(service, lease_seconds=1000.0)
        clock.advance(95.0)
        service.tick()
        with pytest.raises(DeadlineExceeded):
            await patient.answer()


async def test_closing_a_session_ends_its_calls_and_refuses_new_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        closed: list[str] = []
        service.on_session_closed(closed.append)
        done = await answered(service, session, HI)
        leased = await ask(service, session, user("two"))
        (lease,) = await claim(service)
        queued = await ask(service, session, user("three"))
        info = await service.close_session(session.id, "revoked")
        assert (info.state, info.close_reason, info.cancelled) == ("closed", "revoked", 2)
        for call in (leased, queued):
            with pytest.raises(SessionClosed):
                await call.answer()
        with pytest.raises(SessionClosed, match="revoked"):
            await ask(service, session, user("four"))
        (result,) = await complete(service, completion(lease))
        assert result.error is not None
        assert result.error.code == "lease_lost"
        assert (await done.answer()).choices
        assert (await service.close_session(session.id, "stale")).close_reason == "revoked"
        assert closed == [session.id]


# --- limits ---


async def test_a_session_over_its_calls_stops_its_agent_cleanly(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=wire.SessionLimits(max_calls=2))
        first = await ask(service, session, HI)
        await ask(service, session, user("two"))
        for _ in range(2):
            with pytest.raises(ContextLengthExceeded, match="limit of 2 calls"):
                await ask(service, session, user("three"))
        assert service.session_info(session.id).close_reason == "limit"
        assert first.state is State.QUEUED


async def test_a_session_has_at_most_its_parked_calls(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=wire.SessionLimits(max_parked=1))
        await ask(service, session, HI)
        with pytest.raises(QueueFull):
            await ask(service, session, user("two"))


async def test_a_full_queue_refuses_new_calls_but_not_retries(tmp_path: Path) -> None:
    async with running(tmp_path, max_queued=2) as service:
        session = await open_session(service)
        requests = [ask(service, session, user(f"{number}")) for number in range(4)]
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert [isinstance(result, QueueFull) for result in results] == [False, False, True, True]
        refused = results[2]
        assert isinstance(refused, QueueFull)
        assert 0 < refused.retry_after_seconds <= 30
        await service.submit(session, incoming(user("0"), retry=1))
        await claim(service)
        await ask(service, session, user("again"))


async def test_the_bound_on_parked_calls_counts_leased_ones(tmp_path: Path) -> None:
    async with running(tmp_path, max_parked=1) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        await claim(service)
        with pytest.raises(QueueFull):
            await ask(service, session, user("two"))


async def test_a_session_expires(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        limits = wire.SessionLimits(session_deadline_seconds=60.0)
        session = await open_session(service, limits=limits)
        call = await ask(service, session, HI)
        clock.advance(60.0)
        service.tick()
        with pytest.raises(SessionClosed):
            await call.answer()
        assert service.session_info(session.id).close_reason == "expired"


async def test_bytes_that_no_worker_could_read_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        for fields in ({"messages": [Raw(b'"\xff"')]}, {"extra": {"x": Raw(b'"\xff"')}}):
            request = replace(incoming(HI).request, **fields)
            with pytest.raises(BadRequest, match="not valid UTF-8"):
                await service.submit(
                    session, AgentRequest(dialect="chat", request=request, body=b"")
                )
        odd = user("\x00 \U0001f600 LLM_REQUEST_END")
        call = await ask(service, session, odd)
        (lease,) = await claim(service)
        assert json.loads(bytes(lease.request.messages[0])) == odd
        assert lease.call_id == call.id


async def test_a_deeply_nested_request_is_refused_or_survives_a_restart(tmp_path: Path) -> None:
    refused: list[int] = []
    async with running(tmp_path) as service:
        session_id = (await open_session(service)).id
        for depth in (100, 300, 600, 700, 800, 900, 950):
            message = b'{"role":"user","x":' + b"[" * depth + b"]" * depth + b"}"
            request = replace(incoming(HI).request, messages=[Raw(message)])
            asked = AgentRequest(dialect="chat", request=request, body=b"")
            try:
                await service.submit(service.session(session_id), asked)
            except BadRequest:
                refused.append(depth)
    async with running(tmp_path) as service:
        assert service.session_info(session_id).queued == 7 - len(refused)
        assert all(
            json.loads(bytes(lease.request.messages[0])) for lease in await claim(service, 9)
        )
    assert 100 not in refused


async def test_a_request_without_messages_or_with_a_wild_n_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        with pytest.raises(BadRequest, match="messages"):
            await ask(service, session)
        for n in (0, -1, 10**9):
            with pytest.raises(BadRequest, match="n: expected 1 to"):
                await ask(service, session, HI, n=n)
        assert service.session_info(session.id).calls == 0
