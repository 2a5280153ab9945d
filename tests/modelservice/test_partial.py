"""Spans of answers: on disk before they are seen, kept with their tokens, binding once they were read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from rock.errors import CallFailed, LeaseLost
from rock.modelservice import wire
from rock.modelservice.client.speaking import Voice
from rock.modelservice.client.worker import serve, serve_streaming
from rock.modelservice.graph.answer import Delta
from rock.modelservice.service.service import Call, ModelService, Seen
from rock.modelservice.states import State
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease, VersionSpan
from rock.modelservice.wire.interceptors import Interceptor
from rock.modelservice.wire.partial import Partial, PartialReply, PartialRequest
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from tests.modelservice.fixtures import (
    ask,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    until,
    user,
)
from tests.modelservice.live import agent, new_session, raw_agent, trainer_of

HI = user("hi")
USER: Any = {"role": "user", "content": "hi"}


def span(
    lease: Lease,
    index: int,
    text: str,
    ids: Sequence[int] | None,
    *,
    version: int | None = None,
    logprob: float = -0.5,
    prompt: Sequence[int] | None = None,
) -> Partial:
    return Partial(
        lease.lease_id,
        index,
        text,
        token_ids=None if ids is None else list(ids),
        logprobs=None if ids is None else [logprob] * len(ids),
        policy_version=version,
        prompt_token_ids=None if prompt is None else list(prompt),
    )


async def send(service: ModelService, *partials: Partial) -> PartialReply:
    return await service.partial(PartialRequest(partials=list(partials)))


def codes(reply: PartialReply) -> list[str | None]:
    return [result.error and result.error.code for result in reply.results]


def whole(lease: Lease, text: str, ids: Sequence[int], **fields: Any) -> Completion:
    return completion(lease, text, ids=ids, logprobs=[-9.0] * len(ids), **fields)


async def read_all(service: ModelService, call: Call) -> None:
    """An agent's connection reads what there is, which binds the answer."""
    assert call.spans_after(Seen())
    await service.bind(call)


async def test_a_span_is_on_disk_before_an_agent_can_see_it(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        sending = asyncio.create_task(send(service, span(lease, 0, "tick", [1])))
        assert await call.news_within(5, Seen())
        assert b'"content":"tick"' in (tmp_path / "journal.log").read_bytes()
        assert call.spans_after(Seen()) == [Delta(content="tick")]
        assert codes(await sending) == [None]


async def test_that_an_agent_reads_is_on_disk_before_it_is_sent_anything(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "tick", [1]))
        both = await asyncio.gather(service.bind(call), service.bind(call))
        assert both == [None, None]
        assert (tmp_path / "journal.log").read_bytes().count(b'"t":"spans_read"') == 1
    async with running(tmp_path) as service:
        assert service._engine.book.calls[call.id].shown  # pyright: ignore[reportPrivateUsage]


async def test_spans_that_were_dropped_on_their_way_to_the_disk_show_none_of_the_next_ones(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "old", [1]))
        old = call.said
        assert old is not None
        await service.fail(wire.FailRequest([wire.Failure(lease.lease_id, "cannot_continue")]))
        (lease,) = await claim(service)
        sending = asyncio.create_task(send(service, span(lease, 0, "new", [2])))
        await until(lambda: call.said is not None)
        call.reveal(old, 1)
        assert call.visible == 0
        assert codes(await sending) == [None]
        assert call.visible == 1


async def test_rows_keep_the_version_and_logprobs_each_span_was_sampled_with(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "a", [10, 11], version=4, logprob=-0.25))
        await send(service, span(lease, 1, "b", [12], version=5, logprob=-0.75))
        (result,) = await complete(service, whole(lease, "abc", [10, 11, 12, 13], version=6))
        assert (result.error, result.untrainable) == (None, None)
        (row,) = service.trajectory(session.id).rows
        assert row.token_ids == [1, 2, 3, 10, 11, 12, 13]
        assert row.logprobs == [0, 0, 0, -0.25, -0.25, -0.75, -9.0]
        sampled = [(s.start, s.end, s.policy_version) for s in row.spans if s.kind == "sampled"]
        assert sampled == [(3, 5, 4), (5, 6, 5), (6, 7, 6)]
        assert session.first_sampled_version == 4
    async with running(tmp_path) as service:
        assert service.trajectory(session.id).rows == [row]


async def test_a_whole_answer_may_name_the_versions_of_its_tokens(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        for spans, reason in [
            ([VersionSpan(1, 2), VersionSpan(1, 3)], None),
            ([VersionSpan(1, 2)], "version_spans cover 1 of 2 token_ids"),
        ]:
            await ask(service, session, user(str(reason)))
            (lease,) = await claim(service)
            choice = Choice(
                AssistantMessage(content="x"),
                token_ids=[10, 11],
                logprobs=[-1.0, -1.0],
                version_spans=spans,
            )
            item = Completion(lease.lease_id, [choice], prompt_token_ids=[1], policy_version=3)
            (result,) = await complete(service, item)
            assert result.untrainable == reason
        (row,) = service.trajectory(session.id).rows
        assert [s.policy_version for s in row.spans] == [None, 2, 3]


async def test_the_next_delivery_carries_what_was_said(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        call = await ask(service, await open_session(service), HI)
        (lost,) = await claim(service, lease_seconds=1.0)
        await send(service, span(lost, 0, "a", [10], version=1, prompt=[1, 2, 3]))
        await read_all(service, call)
        clock.advance(1.0)
        service.tick()
        assert codes(await send(service, span(lost, 1, "b", [11]))) == ["lease_lost"]
        (lease,) = await claim(service)
        assert lease.prefix == wire.Prefix(
            spans=1,
            content="a",
            token_ids=[10],
            logprobs=[-0.5],
            version_spans=[VersionSpan(1, 1)],
            prompt_token_ids=[1, 2, 3],
        )
        await send(service, span(lease, 1, "b", [11], version=2))
        (result,) = await complete(service, whole(lease, "abc", [10, 11, 12], version=2))
        assert result.error is None
        assert (await call.answer()).choices[0].token_ids == [10, 11, 12]


@pytest.mark.parametrize(
    ("text", "ids", "prompt", "said"),
    [
        ("other", [10, 11], [1, 2, 3], "content does not begin"),
        ("ab", [99, 11], [1, 2, 3], "token_ids do not begin"),
        ("ab", [10, 11], [1, 2, 4], "prompt_token_ids are not those"),
    ],
)
async def test_an_answer_with_another_beginning_fails_a_call_that_was_read(
    tmp_path: Path, text: str, ids: list[int], prompt: list[int], said: str
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "a", [10], prompt=[1, 2, 3]))
        await read_all(service, call)
        (result,) = await complete(service, whole(lease, text, ids, prompt=prompt))
        assert result.error is not None
        assert said in result.error.message
        with pytest.raises(CallFailed, match=said):
            await call.answer()


async def test_what_nobody_has_read_binds_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call, other = await ask(service, session, HI), await ask(service, session, user("two"))
        one, two = await claim(service, 2)
        await send(service, span(one, 0, "a", [10]), span(two, 0, "b", [20]))
        assert (await complete(service, whole(one, "other", [5])))[0].error is None
        assert (await call.answer()).choices[0].message.content == "other"
        # A worker that cannot go on from it hands the call back, and the next one begins afresh.
        failure = wire.Failure(two.lease_id, "cannot_continue")
        assert (await service.fail(wire.FailRequest([failure]))).results[0].error is None
        assert other.state is State.QUEUED
        (again,) = await claim(service)
        assert (again.call_id, again.delivery, again.prefix) == (other.id, 2, None)
    async with running(tmp_path) as service:
        (again,) = await claim(service)
        assert (again.call_id, again.prefix) == (other.id, None)


async def test_a_worker_that_cannot_continue_what_was_read_fails_the_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "a", [10]))
        await read_all(service, call)
        failure = wire.Failure(lease.lease_id, "cannot_continue", "no prefill here")
        await service.fail(wire.FailRequest([failure]))
        with pytest.raises(CallFailed, match="no prefill here"):
            await call.answer()


async def test_spans_survive_a_restart_as_the_prefix(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await send(service, span(lease, 0, "a", [10], version=7))
    async with running(tmp_path) as service:
        (again,) = await claim(service)
        assert again.prefix is not None
        assert (again.prefix.content, again.prefix.token_ids) == ("a", [10])
        assert service.session(again.session_id).first_sampled_version == 7  # pyright: ignore[reportArgumentType]


async def test_a_rule_made_after_an_agent_has_read_edits_its_answer_not_even_after_a_restart(
    tmp_path: Path,
) -> None:
    rule: Any = {"do": "replace_text", "find": "a", "put": "X"}
    edit = msgspec.json.decode(
        msgspec.json.encode({"on": "response", "rules": [rule]}), type=Interceptor
    )
    async with running(tmp_path) as service:
        session = await open_session(service)
        read, unread = await ask(service, session, HI), await ask(service, session, user("two"))
        one, two = await claim(service, 2)
        await send(service, span(one, 0, "a", [10]), span(two, 0, "a", [10]))
        await read_all(service, read)
        await service.set_interceptor("late", edit)
    async with running(tmp_path) as service:
        for lease in await claim(service, 2):
            await complete(service, whole(lease, "ab", [10, 11]))
        said = {
            call.call_id: [choice.message.content for choice in call.choices]
            for call in service.trajectory(session.id).calls
        }
    assert said == {read.id: ["ab"], unread.id: ["Xb"]}


async def test_sending_a_span_again_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        first = span(lease, 0, "a", [10])
        assert codes(await send(service, first, first)) == [None, None]
        assert call.spans_after(Seen()) == [Delta(content="a")]
        assert codes(await send(service, span(lease, 0, "x", [10]))) == ["lease_lost"]
        assert codes(await send(service, span(lease, 2, "c", [12]))) == ["invalid_request"]
    async with running(tmp_path) as service:  # nor does it by the next delivery
        (lease,) = await claim(service)
        assert codes(await send(service, span(lease, 0, "a", [10]))) == [None]
        assert codes(await send(service, span(lease, 0, "x", [10]))) == ["lease_lost"]
    assert (tmp_path / "journal.log").read_bytes().count(b'"t":"partial"') == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_ids": [1, 2], "logprobs": [-0.5]},
        {"token_ids": [1]},
        {"logprobs": [-0.5]},
        {"token_ids": [-1], "logprobs": [-0.5]},
        {"token_ids": [1], "logprobs": [float("nan")]},
        {"index": 1},
        {"index": -1},
        {"content": "\ud800"},
        {"prompt_token_ids": []},
    ],
)
async def test_a_span_that_cannot_be_right_is_refused_and_harms_nothing(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        fields: dict[str, Any] = {"index": 0, "content": "a", **wrong}
        bad = Partial(lease_id=lease.lease_id, **fields)
        assert codes(await send(service, bad)) == ["invalid_request"]
        assert call.said is None
        assert (await complete(service, completion(lease)))[0].error is None


async def test_spans_have_ids_always_or_never_and_one_choice(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        await service.submit(session, incoming(user("many"), n=2))
        one, many = await claim(service, 2)
        assert codes(await send(service, span(one, 0, "a", None))) == [None]
        assert codes(await send(service, span(one, 1, "b", [11]))) == ["invalid_request"]
        assert codes(await send(service, span(many, 0, "a", [1]))) == ["invalid_request"]


# --- through the wire ---


def finished(lease: Lease, text: str) -> Completion:
    ids = [ord(letter) for letter in text]
    choice = Choice(AssistantMessage(content=text), token_ids=ids, logprobs=[-1.0] * len(ids))
    return Completion(lease.lease_id, [choice], prompt_token_ids=[1])


async def spell(voice: Voice, text: str) -> None:
    for letter in text:
        await voice.say(letter, token_ids=[ord(letter)], logprobs=[-1.0])


async def test_the_sdk_reads_letters_while_they_are_sampled(tmp_path: Path) -> None:
    read_one = asyncio.Event()

    async def policy(lease: Lease, voice: Voice) -> Completion:
        await spell(voice, "h")
        await read_one.wait()  # the agent has the first letter before the second is sampled
        await spell(voice, "ell")
        return finished(lease, "hello")

    async with running_service(tmp_path) as service:
        session = await new_session(service)
        working = asyncio.ensure_future(
            serve_streaming(policy, url=service.control_url, key=service.keys.trainer_key)
        )
        async with agent(session.base_url) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[USER], stream=True, stream_options={"include_usage": True}
            )
            said: list[str] = []
            finish: list[str | None] = []
            async for chunk in stream:
                for choice in chunk.choices:
                    said.append(choice.delta.content or "")
                    finish.append(choice.finish_reason)
                if "".join(said) == "h":
                    read_one.set()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        (call,) = service.service.trajectory(session.session_id).calls  # pyright: ignore[reportArgumentType]
    assert "".join(said) == "hello"
    assert len([text for text in said if text]) >= 3
    assert [reason for reason in finish if reason] == ["stop"]
    assert call.state == "delivered"


async def test_a_stream_goes_on_with_another_worker_after_the_first_died(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as desk:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            asking = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER], stream=True)
            )
            (dying,) = (await desk.claim("one", lease_seconds=0.3)).leases
            await spell(Voice(dying, desk), "ab")
            stream = await asking
            (lease,) = (await desk.claim("two", wait_seconds=10.0)).leases
            assert lease.prefix is not None
            assert lease.prefix.content == "ab"
            await spell(Voice(lease, desk), "c")
            with pytest.raises(LeaseLost):
                await spell(Voice(dying, desk), "x")
            (result,) = await desk.complete([finished(lease, "abcd")])
            assert result.error is None
            text = [c.choices[0].delta.content or "" async for c in stream if c.choices]
    assert "".join(text) == "abcd"


async def test_a_stream_says_each_word_once_though_tokens_without_words_were_dropped(
    tmp_path: Path,
) -> None:
    """Tokens that show nothing yet bind nobody, and the next worker's are counted anew."""
    async with running_service(tmp_path, keepalive_seconds=15.0) as service:
        session = await new_session(service)
        async with trainer_of(service) as desk, agent(session.base_url) as client:
            asking = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER], stream=True)
            )
            (dying,) = (await desk.claim("one")).leases
            await Voice(dying, desk).say("", token_ids=[1], logprobs=[-1.0])
            stream = await asking
            await desk.fail([wire.Failure(dying.lease_id, "cannot_continue")])
            (lease,) = (await desk.claim("two", wait_seconds=10.0)).leases
            assert lease.prefix is None
            said: list[str] = []
            voice = Voice(lease, desk)
            await spell(voice, "a")
            async for chunk in stream:
                said.append(chunk.choices[0].delta.content or "")
                if said[-1] == "a":  # it came at once, not with the next keep-alive
                    await spell(voice, "b")
                    await desk.complete([finished(lease, "abc")])
    assert "".join(said) == "abc"


async def test_a_stream_that_cannot_be_continued_ends_with_the_dialects_error(
    tmp_path: Path,
) -> None:
    async def knows_no_prefix(leases: list[Lease]) -> list[Completion]:
        return [finished(lease, "fresh") for lease in leases]

    async with running_service(tmp_path) as service, trainer_of(service) as desk:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            asking = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER], stream=True)
            )
            (dying,) = (await desk.claim("one", lease_seconds=0.3)).leases
            await spell(Voice(dying, desk), "ab")
            stream = await asking
            working = asyncio.ensure_future(
                serve(knows_no_prefix, url=service.control_url, key=service.keys.trainer_key)
            )
            with pytest.raises(openai.APIError, match="cannot go on"):
                _ = [chunk async for chunk in stream]
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_every_dialect_says_the_whole_once(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as desk:
        session = await new_session(service)
        async with raw_agent(service, session.key) as client:
            asking = asyncio.ensure_future(
                client.post(path, json={"model": "m", "stream": True, **body})
            )
            (lease,) = (await desk.claim("one")).leases
            await spell(Voice(lease, desk), "ab")
            await desk.complete([finished(lease, "abcd")])
            text = (await asking).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    deltas = [
        event.get("delta") if isinstance(event.get("delta"), str) else event["delta"].get("text")
        for event in events
        if "delta" in event
    ] or [choice["text"] for event in events for choice in event["choices"]]
    assert "".join(delta for delta in deltas if delta) == "abcd"
