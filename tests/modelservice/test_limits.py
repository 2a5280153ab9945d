"""Pins and limits of a session: what an agent may use up, what it hears then, what is on record."""

from pathlib import Path
from typing import Any

import pytest

from rock.errors import ContextLengthExceeded, SessionClosed
from rock.modelservice import wire
from rock.modelservice.wire import Pins, SessionLimits
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from tests.modelservice.fixtures import (
    answered,
    ask,
    claim,
    complete,
    completion,
    open_session,
    running,
    user,
)
from tests.modelservice.live import HELLO, new_session, raw_agent


@pytest.mark.parametrize(
    ("limits", "name", "said"),
    [
        (SessionLimits(max_calls=2), "max_calls", "2 calls"),
        (SessionLimits(max_prompt_tokens=5), "max_prompt_tokens", "5 prompt tokens"),
        (SessionLimits(max_completion_tokens=4), "max_completion_tokens", "4 completion tokens"),
    ],
)
async def test_a_used_up_limit_ends_the_session_and_says_which_it_was(
    tmp_path: Path, limits: SessionLimits, name: str, said: str
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=limits)
        await answered(service, session, user("a"))  # 3 prompt tokens, 2 completion tokens
        await answered(service, session, user("b"))
        with pytest.raises(ContextLengthExceeded, match=f"limit of {said} is reached"):
            await ask(service, session, user("c"))
        info = service.session_info(session.id)
        assert (info.state, info.close_reason, info.limit) == ("closed", "limit", name)
        assert (info.prompt_tokens, info.completion_tokens, info.calls) == (6, 4, 2)
        exported = service.trajectory(session.id)
        assert (exported.close_reason, exported.limit, exported.limits) == ("limit", name, limits)
    async with running(tmp_path) as again:
        info = again.session_info(session.id)
        assert (info.close_reason, info.limit, info.prompt_tokens) == ("limit", name, 6)
        with pytest.raises(ContextLengthExceeded, match=f"limit (of {said}|{name}) is reached"):
            await ask(again, again.session(session.id), user("d"))


async def test_a_session_whose_time_is_over_ends_its_waiting_calls_with_the_same_error(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service, limits=SessionLimits(max_wall_seconds=30))
        waiting = await ask(service, session, user("a"))
        taken = await ask(service, session, user("b"))
        [lease] = await claim(service)
        clock.advance(29)
        service.tick()
        assert session.open
        clock.advance(2)
        service.tick()
        for call in (waiting, taken):
            with pytest.raises(ContextLengthExceeded, match="limit of 30"):
                await call.answer()
        [late] = await complete(service, completion(lease))
        assert late.error is not None
        assert late.error.code == "lease_lost"
        assert service.session_info(session.id).limit == "max_wall_seconds"
        codes = [call.error_code for call in service.trajectory(session.id).calls]
    assert codes == ["context_length_exceeded"] * 2


async def test_what_is_left_of_the_completion_budget_bounds_the_next_answer(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=SessionLimits(max_completion_tokens=10))
        await answered(service, session, user("a"))
        await ask(service, session, user("b"), max_tokens=100)
        await ask(service, session, user("c"), max_tokens=3)
        [wide, narrow] = await claim(service, 2)
        assert (wide.request.max_tokens, narrow.request.max_tokens) == (8, 3)
        calls = service.trajectory(session.id).calls
    assert (calls[1].pinned, calls[1].requested) == ({"max_tokens": 8}, {"max_tokens": 100})
    assert (calls[2].pinned, calls[2].requested) == ({}, {})


async def test_requested_and_effective_sampling_are_both_on_record(tmp_path: Path) -> None:
    pins = Pins(temperature=0.7, model="policy")
    async with running(tmp_path) as service:
        session = await open_session(service, pins=pins)
        await answered(service, session, user("a"))
    async with running(tmp_path) as service:
        exported = service.trajectory(session.id)
    [call] = exported.calls
    assert exported.pins == pins
    assert call.pinned == {"temperature": 0.7, "model": "policy"}
    assert call.requested == {"temperature": None, "model": "m"}
    assert (call.request.temperature, call.request.model) == (0.7, "policy")


async def test_a_session_that_nobody_uses_expires_and_one_that_waits_does_not(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    idle_seconds = 100.0
    settings: dict[str, Any] = {
        "session_idle_seconds": idle_seconds,
        "call_deadline_seconds": 1000.0,
    }
    async with running(tmp_path, clock, **settings) as service:
        unused = await open_session(service)
        waiting = await open_session(service)
        call = await ask(service, waiting, user("a"))
        clock.advance(101)
        service.tick()
        assert (unused.close_reason, waiting.open) == ("expired", True)
        with pytest.raises(SessionClosed):
            await ask(service, unused, user("a"))
        [lease] = await claim(service)
        await complete(service, completion(lease))
        await call.answer()
        clock.advance(99)
        service.tick()
        assert waiting.open
        clock.advance(2)
        service.tick()
        assert waiting.close_reason == "expired"


async def test_every_dialect_says_it_so_that_real_agents_stop(tmp_path: Path) -> None:
    spec = wire.SessionSpec(limits=SessionLimits(max_calls=0))
    messages = [{"role": "user", "content": "hi"}]
    async with running_service(tmp_path) as service:
        key = (await new_session(service, spec)).key
        async with raw_agent(service, key) as http:
            chat = await http.post("/v1/chat/completions", json=HELLO)
            claude = await http.post(
                "/v1/messages", json={"model": "m", "max_tokens": 9, "messages": messages}
            )
            responses = await http.post("/v1/responses", json={"model": "m", "input": "hi"})
    assert (chat.status_code, chat.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length" in chat.json()["error"]["message"]
    assert (responses.status_code, responses.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    assert claude.status_code == 400
    assert "prompt is too long" in claude.json()["error"]["message"]


async def test_limits_that_mean_nothing_are_refused_by_name(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, raw_agent(service) as http:
        for limits, name in (({"max_calls": -1}, "max_calls"), ({"max_wall_seconds": 0}, "max_w")):
            reply = await http.post(
                f"{service.control_url}/admin/v1/sessions",
                json={"limits": limits},
                headers={"Authorization": f"Bearer {service.keys.admin_key}"},
            )
            assert reply.status_code == 400
            assert name in reply.json()["error"]["param"]
