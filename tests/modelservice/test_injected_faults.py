"""Faults on purpose: which calls they hit, and what a real SDK makes of each."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec import Raw

from rock.errors import ConfigError, RockError
from rock.modelservice.hosting.server import Running
from rock.modelservice.policies.faults import FaultRule, FaultyPolicy
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Lease,
    SessionCreated,
    SessionSpec,
)
from rock.testing import ScriptedPolicy
from rock.testing.fake_engine import fake_openai_server
from rock.testing.service import running_service
from tests.modelservice.live import agent, answering, new_session
from tests.modelservice.test_openai_backend import QUICK, OpenAIPolicy, calls_of

USER: Any = {"role": "user", "content": "hi"}
SAID = AssistantMessage(content="hello out there", reasoning_content="hm")


def lease(**labels: str) -> Lease:
    request = CanonicalRequest(model="m", messages=[Raw(b'{"role":"user","content":"hi"}')])
    return Lease("l", "c", "s", 1, 60.0, request, labels=labels)


async def hit(policy: FaultyPolicy, asked: Lease) -> bool:
    try:
        await policy([asked])
    except RockError:
        return True
    return False


async def pattern(rule: FaultRule, calls: int, *, seed: int = 0) -> list[bool]:
    policy = FaultyPolicy(ScriptedPolicy(lambda _: SAID), [rule], seed=seed)
    return [await hit(policy, lease()) for _ in range(calls)]


async def test_every_nth_call_is_hit_until_the_rule_is_used_up() -> None:
    hits = await pattern(FaultRule("500", every=3, at_most=2), 12)
    assert [place for place, was_hit in enumerate(hits) if was_hit] == [2, 5]


async def test_a_seed_decides_the_same_calls_every_time() -> None:
    rule = FaultRule("500", probability=0.3)
    first = await pattern(rule, 200, seed=1)
    assert first == await pattern(rule, 200, seed=1)
    assert first != await pattern(rule, 200, seed=2)
    assert 30 < sum(first) < 90
    assert await pattern(FaultRule("500", probability=0), 50) == [False] * 50
    assert await pattern(FaultRule("500", probability=1), 50) == [True] * 50


async def test_only_sessions_with_the_labels_are_hit() -> None:
    rule = FaultRule("500", every=1, labels={"suite": "chaos"})
    policy = FaultyPolicy(ScriptedPolicy(lambda _: SAID), [rule])
    asked = [lease(), lease(suite="calm"), lease(suite="chaos", other="x")]
    assert [await hit(policy, one) for one in asked] == [False, False, True]
    assert policy.hits == [1]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "one of probability and every"),
        ({"every": 1, "probability": 0.5}, "one of probability and every"),
        ({"every": 0}, "every: expected at least 1"),
        ({"probability": 1.5}, "probability: expected 0 to 1"),
        ({"every": 1, "seconds": -1.0}, "seconds: expected at least 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        FaultRule("latency", **fields)


@asynccontextmanager
async def hitting(
    tmp_path: Path, rules: Sequence[FaultRule], **settings: Any
) -> AsyncGenerator[tuple[Running, SessionCreated], None]:
    policy = FaultyPolicy(ScriptedPolicy(lambda _: SAID), rules)
    async with running_service(
        tmp_path, policies={"bad": policy}, stream_grace_seconds=0.05, **settings
    ) as service:
        yield service, await new_session(service, SessionSpec(backend="bad"))


async def test_the_sdk_gets_over_a_refusal_and_one_answer_is_sampled(tmp_path: Path) -> None:
    async with hitting(tmp_path, [FaultRule("500", every=1, at_most=1)]) as (service, session):
        async with agent(session.base_url, max_retries=2) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
        calls = calls_of(service, session.session_id)
    assert reply.choices[0].message.content == SAID.content
    assert [call.state for call in calls] == ["failed", "delivered"]


@pytest.mark.parametrize(
    ("fault", "stream", "status"),
    [
        ("429", False, 429),
        ("429", True, 429),
        ("500", False, 500),
        ("500", True, 500),
        ("cut", False, 502),
    ],
)
async def test_a_client_that_does_not_try_again_gets_the_status(
    fault: Any, stream: bool, status: int, tmp_path: Path
) -> None:
    async with (
        hitting(tmp_path, [FaultRule(fault, every=1)]) as (_, session),
        agent(session.base_url) as client,
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=[USER], stream=stream)
    assert caught.value.status_code == status
    assert "fault injection" in str(caught.value)
    assert caught.value.response.headers.get("Retry-After") == ("5" if fault == "429" else None)


async def read_all(client: openai.AsyncOpenAI, said: list[str]) -> None:
    stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
    async for chunk in stream:
        said += [choice.delta.content or "" for choice in chunk.choices]


async def test_a_cut_stream_shows_a_part_and_then_its_error(tmp_path: Path) -> None:
    said: list[str] = []
    async with hitting(tmp_path, [FaultRule("cut", every=1)]) as (service, session):
        async with agent(session.base_url) as client:
            with pytest.raises(openai.APIError, match="cut off"):
                await read_all(client, said)
        (call,) = calls_of(service, session.session_id)
    assert "".join(said) == "hello o"
    assert (call.state, call.error_code) == ("failed", "upstream_error")


async def test_an_aborted_call_is_handed_out_again_and_answered_once(tmp_path: Path) -> None:
    async with hitting(tmp_path, [FaultRule("abort", every=1, at_most=2)]) as (service, session):
        async with agent(session.base_url) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
        (call,) = calls_of(service, session.session_id)
    assert reply.choices[0].message.content == SAID.content
    assert (call.state, call.deliveries, call.untrainable) == ("delivered", 3, None)


async def test_latency_is_late_and_nothing_else(tmp_path: Path) -> None:
    rule = FaultRule("latency", every=1, seconds=0.5)
    async with hitting(tmp_path, [rule]) as (_, session):
        started = time.monotonic()
        async with agent(session.base_url) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
    assert reply.choices[0].message.content == SAID.content
    assert time.monotonic() - started >= 0.5


async def test_a_dropped_call_ends_at_its_deadline(tmp_path: Path) -> None:
    rule = FaultRule("drop", every=1)
    async with hitting(tmp_path, [rule], call_deadline_seconds=0.5) as (service, session):
        async with agent(session.base_url) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model="m", messages=[USER])
        (call,) = calls_of(service, session.session_id)
    assert caught.value.status_code == 504
    assert call.error_code == "deadline_exceeded"


async def test_a_trainers_own_policy_can_be_wrapped_too(tmp_path: Path) -> None:
    policy = FaultyPolicy(ScriptedPolicy(lambda _: SAID), [FaultRule("abort", every=1, at_most=1)])
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            await client.chat.completions.create(model="m", messages=[USER])
        (call,) = calls_of(service, session.session_id)
    assert call.deliveries == 2


async def test_what_the_wrapped_policy_streams_is_still_streamed(tmp_path: Path) -> None:
    async with fake_openai_server(["one two three"]) as server:
        inner = OpenAIPolicy("m", base_url=server.url, api_key="k", retries=QUICK)
        policy = FaultyPolicy(inner, [FaultRule("500", every=2)])
        async with running_service(
            tmp_path, policies={"bad": policy}, stream_grace_seconds=0.05
        ) as service:
            session = await new_session(service, SessionSpec(backend="bad"))
            said: list[str] = []
            async with agent(session.base_url) as client:
                await asyncio.wait_for(read_all(client, said), 10)
    assert "".join(said) == "one two three"
    assert server.requests[0]["stream"] is True
