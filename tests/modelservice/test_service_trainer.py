"""The trainer's side of the service: leases, fencing, batches, pauses, staleness, tokens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rock.errors import BadRequest, CallFailed, ContextLengthExceeded, SessionClosed
from rock.modelservice import wire
from rock.modelservice.states import State
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import (
    answered,
    ask,
    assistant,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    until,
    user,
)

HI = user("hi")


def codes(results: list[wire.ItemResult]) -> list[tuple[int, str] | None]:
    return [result.error and (result.error.status, result.error.code) for result in results]


async def test_a_waiting_worker_is_woken_by_a_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        waiting = asyncio.create_task(
            service.claim(wire.ClaimRequest(worker_id="w", wait_seconds=30.0))
        )
        await until(lambda: service.stats().waiting_workers == 1)
        call = await ask(service, session, HI)
        async with asyncio.timeout(5):
            assert [lease.call_id for lease in (await waiting).leases] == [call.id]


async def test_each_of_many_waiting_workers_gets_one_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        request = wire.ClaimRequest(worker_id="w", wait_seconds=30.0)
        workers = [asyncio.create_task(service.claim(request)) for _ in range(8)]
        await until(lambda: service.stats().waiting_workers == 8)
        workers.pop(0).cancel()  # a worker that hangs up must not take a wake-up with it
        calls = [await ask(service, session, user(str(n))) for n in range(7)]
        async with asyncio.timeout(5):
            replies = await asyncio.gather(*workers)
        claimed = [lease.call_id for reply in replies for lease in reply.leases]
        assert sorted(claimed) == sorted(call.id for call in calls)


async def test_a_long_poll_ends_empty_in_time(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        request = wire.ClaimRequest(worker_id="w", wait_seconds=0.01)
        async with asyncio.timeout(5):
            assert (await service.claim(request)).leases == []
        assert service.stats().waiting_workers == 0


async def test_a_lease_tells_the_worker_what_to_do(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, labels={"task": "t"})
        await ask(service, session, HI, tools=[{"type": "function", "x": 1.50}], seed=7)
        (lease,) = await claim(service, lease_seconds=30.0)
        assert (lease.session_id, lease.delivery, lease.expires_in_seconds) == (session.id, 1, 30.0)
        assert lease.labels == {"task": "t"}
        assert lease.parent is None
        assert [bytes(m) for m in lease.request.messages] == [b'{"role": "user", "content": "hi"}']
        assert [bytes(t) for t in lease.request.tools or []] == [b'{"type": "function", "x": 1.5}']
        assert lease.request.seed == 7


async def test_a_lease_names_the_parent_and_its_tokens(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first = await answered(service, session, HI, text="hello")
        await ask(service, session, HI, assistant("hello"), user("more"))
        (lease,) = await claim(service)
        assert lease.parent == wire.Parent(first.id, 0, 2, [1, 2, 3, 10, 11])


async def test_bad_items_do_not_spoil_a_batch(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        calls = [await ask(service, session, user(str(n))) for n in range(3)]
        (late,) = await claim(service, lease_seconds=1.0)
        clock.advance(1.0)
        service.tick()
        good, _, other = await claim(service, 3)
        assert good.call_id == late.call_id
        unknown = wire.Completion("nope.1", completion(good).choices)
        results = await complete(
            service, completion(late), unknown, completion(good), completion(other)
        )
        assert codes(results) == [(409, "lease_lost"), (404, "not_found"), None, None]
        assert sum(call.state is State.ANSWERED for call in calls) == 2


async def test_a_late_worker_cannot_overwrite_the_answer(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        (late,) = await claim(service, lease_seconds=1.0)
        clock.advance(1.0)
        service.tick()
        (new,) = await claim(service)
        assert (new.delivery, new.call_id) == (2, late.call_id)
        assert codes(await complete(service, completion(new, "right"))) == [None]
        assert codes(await complete(service, completion(late, "late"))) == [(409, "lease_lost")]
        assert (await call.answer()).choices[0].message.content == "right"
        assert service.stats().redelivered == 1


async def test_completing_twice_is_accepted_once_more_and_stored_once(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        (lease,) = await claim(service)
        twice = await complete(service, completion(lease), completion(lease))
        assert codes(twice) == [None, None]
        assert codes(await complete(service, completion(lease))) == [None]
        assert codes(await complete(service, completion(lease, "other"))) == [(409, "lease_lost")]
        assert service.session_info(session.id).answered == 1
    assert (tmp_path / "journal.log").read_bytes().count(b'"t":"answered"') == 1


async def test_an_answer_is_on_disk_before_the_agent_sees_it(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        assert b'"t":"queued"' in (tmp_path / "journal.log").read_bytes()
        (lease,) = await claim(service)
        completing = asyncio.create_task(complete(service, completion(lease, "now")))
        await call.answer()
        assert b'"content":"now"' in (tmp_path / "journal.log").read_bytes()
        await completing


async def test_a_call_is_on_disk_before_it_can_be_claimed(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        asking = asyncio.create_task(ask(service, session, HI))
        leases: list[wire.Lease] = []
        while not leases:
            written = b'"t":"queued"' in (tmp_path / "journal.log").read_bytes()
            leases = await claim(service)
            assert written or not leases
            await asyncio.sleep(0)
        await asking


async def test_a_failed_call_gives_the_agent_the_error_the_worker_named(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        long, odd = await ask(service, session, HI), await ask(service, session, user("x"))
        one, two = await claim(service, 2)
        reply = await service.fail(
            wire.FailRequest(
                [
                    wire.Failure(one.lease_id, "context_length_exceeded", "too long"),
                    wire.Failure(two.lease_id, "made_up", "odd"),
                    wire.Failure("nope.1"),
                ]
            )
        )
        assert codes(reply.results) == [None, None, (404, "not_found")]
        with pytest.raises(ContextLengthExceeded, match="too long"):
            await long.answer()
        with pytest.raises(CallFailed, match="odd"):
            await odd.answer()


async def test_a_call_fails_when_too_many_workers_let_it_go(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock, max_deliveries=2) as service:
        call = await ask(service, await open_session(service), HI)
        for _ in range(2):
            await claim(service, lease_seconds=1.0)
            clock.advance(1.0)
            service.tick()
        with pytest.raises(CallFailed, match="2 workers took this call"):
            await call.answer()


async def test_renewed_leases_live_and_released_ones_are_handed_out_first(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        first, _ = await ask(service, session, HI), await ask(service, session, user("two"))
        (lease,) = await claim(service, lease_seconds=10.0)
        clock.advance(9.0)
        assert codes(service.renew(wire.RenewRequest([lease.lease_id], 10.0)).results) == [None]
        clock.advance(9.0)
        service.tick()
        assert first.state is State.LEASED
        release = wire.ReleaseRequest([lease.lease_id, lease.lease_id, "nope.1"])
        assert codes(service.release(release).results) == [
            None,
            (409, "lease_lost"),
            (404, "not_found"),
        ]
        (again,) = await claim(service)
        assert (again.call_id, again.delivery) == (first.id, 2)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"ids": None}, "no token_ids"),
        ({"logprobs": None}, "no logprobs"),
        ({"logprobs": (-0.5,)}, "2 token_ids but 1 logprobs"),
        ({"prompt": None}, "no prompt_token_ids"),
        ({"logprobs": (0.5, -0.5)}, "above 0"),
    ],
)
async def test_an_answer_without_exact_tokens_is_stored_as_untrainable(
    tmp_path: Path, item: dict[str, tuple[float, ...] | None], reason: str
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        (lease,) = await claim(service)
        (result,) = await complete(service, completion(lease, **item))  # pyright: ignore[reportArgumentType]
        assert result.error is None
        assert reason in (result.untrainable or "")
        answer = await call.answer()
        assert answer.choices[0].message.content == "hello"
        assert (answer.choices[0].token_ids, answer.choices[0].logprobs) == (None, None)
        exported = service.trajectory(session.id)
        assert exported.rows == []
        assert exported.untrainable == {result.untrainable: 1}


async def test_an_answer_with_the_wrong_number_of_choices_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        call = await ask(service, session, HI, n=2)
        (lease,) = await claim(service)
        one = wire.Completion(lease.lease_id, completion(lease).choices[:1])
        assert codes(await complete(service, one)) == [(400, "invalid_request")]
        assert call.state is State.LEASED
        assert codes(await complete(service, completion(lease))) == [None]
        assert len((await call.answer()).choices) == 2


async def test_text_that_is_not_unicode_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, HI)
        (lease,) = await claim(service)
        assert codes(await complete(service, completion(lease, "\ud800"))) == [
            (400, "invalid_request")
        ]
        assert codes(await complete(service, completion(lease, "\x00"))) == [None]


async def test_tool_calls_without_an_id_get_one(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        calls = [wire.ToolCall(wire.ToolFunction("f", "{}"), id) for id in ("mine", None, None)]
        choice = wire.Choice(wire.AssistantMessage(tool_calls=calls), "tool_calls")
        await complete(service, wire.Completion(lease.lease_id, [choice]))
        made = (await call.answer()).choices[0].message.tool_calls or []
        ids = [one.id or "" for one in made]
        assert ids[0] == "mine"
        assert all(id.startswith("call_") for id in ids[1:])
        assert len(set(ids)) == 3


# --- policy ---


@pytest.mark.parametrize("mode", ["hold", "drain", "requeue"])
async def test_a_pause_hands_nothing_out_until_it_ends(
    tmp_path: Path, mode: wire.PauseMode
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        first, second = await ask(service, session, HI), await ask(service, session, user("two"))
        (lease,) = await claim(service)
        pausing = asyncio.create_task(service.policy(wire.PolicyUpdate(state="paused", mode=mode)))
        await until(lambda: service.stats().policy.state == "paused")
        if mode == "hold":  # does not wait for the leases that are out
            assert (await pausing).leased == 1
        assert first.state is (State.QUEUED if mode == "requeue" else State.LEASED)
        request = wire.ClaimRequest(worker_id="w", wait_seconds=0.0)
        assert await service.claim(request) == wire.ClaimReply([], "paused")
        late = mode == "requeue"
        assert codes(await complete(service, completion(lease))) == [
            (409, "lease_lost") if late else None
        ]
        async with asyncio.timeout(5):
            assert (await pausing).leased == (1 if mode == "hold" else 0)
        await service.policy(wire.PolicyUpdate(state="running", version=7))
        leases = await claim(service, 9)
        assert [one.call_id for one in leases] == ([first.id] if late else []) + [second.id]


async def test_the_end_of_a_pause_wakes_waiting_workers(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.policy(wire.PolicyUpdate(state="paused"))
        await ask(service, await open_session(service), HI)
        request = wire.ClaimRequest(worker_id="w", wait_seconds=30.0)
        waiting = asyncio.create_task(service.claim(request))
        await until(lambda: service.stats().waiting_workers == 1)
        await service.policy(wire.PolicyUpdate(state="running"))
        async with asyncio.timeout(5):
            assert len((await waiting).leases) == 1


async def test_built_in_workers_have_their_own_lane_and_no_pause(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service, backend="replay"), HI)
        await service.policy(wire.PolicyUpdate(state="paused"))
        request = wire.ClaimRequest(worker_id="w", wait_seconds=0.0)
        assert (await service.claim(request)).leases == []
        reply = await service.claim(request, backend="replay")
        assert (reply.policy_state, reply.leases[0].call_id) == ("running", call.id)


async def test_a_session_sampled_with_old_weights_closes_as_stale(tmp_path: Path) -> None:
    async with running(tmp_path, max_staleness=2) as service:
        session = await open_session(service)
        await answered(service, session, HI, version=5)
        fine = await ask(service, session, user("two"))
        (lease,) = await claim(service, policy_version=7)
        await complete(service, completion(lease, version=7))
        service.sent(fine)
        late, other = await ask(service, session, user("three")), await ask(service, session, HI)
        assert await claim(service, 9, policy_version=8) == []
        for call in (late, other):
            with pytest.raises(SessionClosed, match="stale"):
                await call.answer()
        assert service.session_info(session.id).close_reason == "stale"


async def test_versions_default_to_the_claims_and_the_policys(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await service.policy(wire.PolicyUpdate(version=3))
        for claimed, stamped, expected in [(None, None, 3), (4, None, 4), (4, 5, 5)]:
            call = await ask(service, session, HI)
            (lease,) = await claim(service, policy_version=claimed)
            await complete(service, completion(lease, version=stamped))
            assert (await call.answer()).policy_version == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("worker_id", ""),
        ("max_leases", -1),
        ("lease_seconds", 0.0),
        ("lease_seconds", float("nan")),
        ("wait_seconds", -1.0),
    ],
)
async def test_a_claim_that_makes_no_sense_names_the_field(
    tmp_path: Path, field: str, value: str | float
) -> None:
    async with running(tmp_path) as service:
        request = wire.ClaimRequest(**{"worker_id": "w", field: value})  # pyright: ignore[reportArgumentType]
        with pytest.raises(BadRequest, match=field):
            await service.claim(request)


async def test_stats_count_what_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await answered(service, session, HI)
        await service.submit(session, incoming(user("two")))
        await service.submit(session, incoming(user("three")))
        await claim(service)
        stats = service.stats()
        assert (stats.queued, stats.leased, stats.answered, stats.open_sessions) == (1, 1, 1, 1)
