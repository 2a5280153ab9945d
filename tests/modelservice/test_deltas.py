"""Delta claims: history travels once, what a worker lacks it gets, and nothing differs from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rock.modelservice import wire
from rock.modelservice.graph.deltas import LeaseMemory
from rock.modelservice.service.service import ModelService, Session
from tests.modelservice.fixtures import (
    answered,
    ask,
    assistant,
    claim,
    complete,
    completion,
    open_session,
    running,
    user,
)

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
HELLO = [user("hi"), assistant("hello"), user("more")]
SEQUENCE = [1, 2, 3, 10, 11]
"""What the first call of `answered` leaves: its prompt and its answer."""


def texts(messages: Sequence[Raw]) -> list[str]:
    return [msgspec.json.decode(message)["content"] for message in messages]


async def two_turns(service: ModelService, **second: Any) -> tuple[Session, wire.Lease]:
    """A session whose first call is answered by worker `w`, and a delta lease of its second."""
    session = await open_session(service)
    await answered(service, session, user("hi"))
    await ask(service, session, *HELLO)
    (lease,) = await claim(service, delta=True, **second)
    return session, lease


async def test_a_worker_gets_only_what_is_new_after_the_call_it_answered(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        _, lease = await two_turns(service)
        assert texts(lease.request.messages) == ["hello", "more"]
        assert lease.omitted == wire.Omitted(messages=1, token_ids=True)
        assert lease.parent is not None
        assert (lease.parent.messages, lease.parent.token_ids) == (2, None)


async def test_tools_that_are_the_same_are_left_out_and_others_are_not(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, user("hi"), tools=TOOLS)
        await complete(service, completion((await claim(service))[0]))
        service.sent(call)
        await ask(service, session, *HELLO, tools=TOOLS)
        (same,) = await claim(service, delta=True)
        assert same.omitted is not None
        assert (same.omitted.tools, same.request.tools) == (True, None)
        await complete(service, completion(same, "again"))
        await ask(service, session, *HELLO, assistant("again"), user("x"), tools=[*TOOLS, *TOOLS])
        (other,) = await claim(service, delta=True)
        assert other.omitted is not None
        assert not other.omitted.tools
        assert len(other.request.tools or []) == 2


@pytest.mark.parametrize("fields", [{"worker_id": "another", "delta": True}, {"delta": False}])
async def test_another_worker_or_one_that_does_not_ask_gets_the_whole(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await answered(service, session, user("hi"))
        await ask(service, session, *HELLO)
        given: dict[str, Any] = {"worker_id": "w", "wait_seconds": 0.0, **fields}
        request = wire.ClaimRequest(**given)
        (lease,) = (await service.claim(request)).leases
        assert texts(lease.request.messages) == ["hi", "hello", "more"]
        assert lease.omitted is None
        assert lease.parent is not None
        assert lease.parent.token_ids == SEQUENCE


async def test_a_restarted_service_gives_the_whole(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await answered(service, session, user("hi"))
        await ask(service, session, *HELLO)
    async with running(tmp_path) as service:
        (lease,) = await claim(service, delta=True)
        assert lease.omitted is None
        assert texts(lease.request.messages) == ["hi", "hello", "more"]


async def test_a_lease_can_be_had_whole_while_it_is_out(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        _, lease = await two_turns(service)
        asked = wire.LeasesRequest(lease_ids=[lease.lease_id, "nobody.0.1-1"])
        (whole,) = service.leases(asked).leases
        assert texts(whole.request.messages) == ["hi", "hello", "more"]
        assert whole.parent is not None
        assert whole.parent.token_ids == SEQUENCE
        assert whole.expires_in_seconds == lease.expires_in_seconds
        await complete(service, completion(lease))
        assert service.leases(asked).leases == []


async def test_a_prompt_may_name_only_its_end(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session, lease = await two_turns(service)
        item = completion(lease, "world", prompt=[4, 5], ids=[12])
        (result,) = await complete(service, msgspec.structs.replace(item, continues_parent=True))
        assert (result.error, result.untrainable) == (None, "1 token_ids but 2 logprobs")
        await ask(service, session, *HELLO[:2], user("else"))
        (lease,) = await claim(service, delta=True)
        good = completion(lease, "world", prompt=[4, 5])
        (result,) = await complete(service, msgspec.structs.replace(good, continues_parent=True))
        assert (result.error, result.untrainable) == (None, None)
        exported = service.trajectory(session.id)
        assert exported.rows[0].token_ids == [*SEQUENCE, 4, 5, 10, 11]
        assert exported.rows[0].mask == [0, 0, 0, 1, 1, 0, 0, 1, 1]
        usage = exported.calls[2].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (7, 2)


async def test_rows_are_the_same_whichever_way_the_prompt_was_given(tmp_path: Path) -> None:
    rows: list[list[wire.TokenRow]] = []
    for shortened in (False, True):
        async with running(tmp_path / str(shortened)) as service:
            session, lease = await two_turns(service)
            prompt = [4, 5] if shortened else [*SEQUENCE, 4, 5]
            item = completion(lease, "world", prompt=prompt)
            await complete(service, msgspec.structs.replace(item, continues_parent=shortened))
            rows.append(service.trajectory(session.id).rows)
        async with running(tmp_path / str(shortened)) as service:
            again = service.trajectory(session.id).rows
            assert [row.token_ids for row in again] == [row.token_ids for row in rows[-1]]
    assert [row.token_ids for row in rows[0]] == [row.token_ids for row in rows[1]]
    assert [row.mask for row in rows[0]] == [row.mask for row in rows[1]]


async def test_an_end_of_nothing_is_refused_and_the_lease_stays(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, user("hi"))
        (lease,) = await claim(service)
        wrong = msgspec.structs.replace(completion(lease), continues_parent=True)
        (result,) = await complete(service, wrong)
        assert result.error is not None
        assert result.error.code == "invalid_request"
        assert "continues_parent" in result.error.message
        (result,) = await complete(service, completion(lease))
        assert result.error is None


async def test_a_memory_makes_leases_whole_and_completions_short(tmp_path: Path) -> None:
    memory = LeaseMemory()
    async with running(tmp_path) as service:
        session = await open_session(service)
        said: list[Any] = []
        sent: list[int | None] = []
        prompt: list[int] = []
        for turn in range(4):
            said.append(user(f"turn {turn}"))
            await ask(service, session, *said, tools=TOOLS)
            (lease,) = await claim(service, delta=True)
            lease = memory.restore(lease)
            assert lease is not None
            assert texts(lease.request.messages) == [message["content"] for message in said]
            assert len(lease.request.tools or []) == 1
            known = None if lease.parent is None else lease.parent.token_ids
            assert known == (prompt or None)
            item = completion(lease, f"answer {turn}", prompt=[*prompt, 100 + turn])
            short = memory.shorten(item)
            sent.append(len(short.prompt_token_ids or []))
            (result,) = await complete(service, short)
            assert (result.error, result.untrainable) == (None, None)
            memory.answered(item, trainable=True)
            prompt = [*prompt, 100 + turn, 10, 11]
            said.append(assistant(f"answer {turn}"))
        assert sent == [1, 1, 1, 1]
        assert len(memory) == 1
        (row,) = service.trajectory(session.id).rows
        assert row.token_ids == prompt


async def test_a_prompt_that_was_tokenised_anew_is_sent_whole(tmp_path: Path) -> None:
    memory = LeaseMemory()
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, user("hi"))
        lease = memory.restore((await claim(service, delta=True))[0])
        assert lease is not None
        await complete(service, memory.shorten(completion(lease)))
        memory.answered(completion(lease), trainable=True)
        await ask(service, session, *HELLO)
        lease = memory.restore((await claim(service, delta=True))[0])
        assert lease is not None
        item = completion(lease, prompt=[1, 2, 4, 10, 11, 5])
        assert memory.shorten(item) is item


async def test_a_memory_that_lost_the_parent_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        _, lease = await two_turns(service)
        assert LeaseMemory().restore(lease) is None


async def test_a_memory_keeps_to_its_bound(tmp_path: Path) -> None:
    memory = LeaseMemory(max_bytes=20_000)
    async with running(tmp_path) as service:
        session = await open_session(service)
        for number in range(20):
            await ask(service, session, user(f"{number} " + "x" * 2000))
            (lease,) = await claim(service, delta=True)
            assert memory.restore(lease) is not None
            await complete(service, completion(lease))
        assert 1 < len(memory) < 8
        assert memory.size_bytes <= 20_000
