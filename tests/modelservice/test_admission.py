"""Who is served next, by whom, and who is told to come back: over HTTP, with real workers."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from rock.modelservice import wire
from rock.modelservice.client.worker import serve
from rock.modelservice.engine.queue import MAX_PASSES, CallQueue, Ticket
from rock.modelservice.hosting.server import Running
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    SessionLimits,
    SessionSpec,
)
from rock.testing.service import running_service
from rock.types import CallId, SessionId, WorkerId
from tests.modelservice.live import (
    HELLO,
    agent,
    eventually,
    last_text,
    new_session,
    raw_agent,
    trainer_of,
)


async def queued(service: Running) -> int:
    return service.service.stats().queued


async def asked_one_by_one(
    service: Running, sessions: Sequence[SessionSpec], order: Sequence[int]
) -> tuple[list[asyncio.Task[httpx.Response]], list[httpx.AsyncClient]]:
    """Open the sessions and let the agent of `sessions[i]` ask for each i in `order`, in order."""
    clients = [raw_agent(service, (await new_session(service, spec)).key) for spec in sessions]
    tasks: list[asyncio.Task[httpx.Response]] = []
    for number, index in enumerate(order):
        body = {**HELLO, "messages": [{"role": "user", "content": f"{index}:{number}"}]}
        tasks.append(asyncio.ensure_future(clients[index].post("/v1/chat/completions", json=body)))
        await eventually(lambda wanted=number + 1: has_queued(service, wanted))
    return tasks, clients


async def has_queued(service: Running, wanted: int) -> bool:
    return await queued(service) == wanted


PRIORITIES = [SessionSpec(labels={"priority": priority}) for priority in ("1", "9", "x")]


@pytest.mark.parametrize(
    ("order", "served"),
    [
        ("round_robin", [2, 0, 1, 2, 0, 1]),
        ("fifo", [2, 2, 0, 0, 1, 1]),
        ("oldest_session", [0, 0, 1, 1, 2, 2]),
        ("priority", [1, 1, 0, 0, 2, 2]),
    ],
)
async def test_the_order_that_was_set_is_the_order_in_which_workers_get_calls(
    tmp_path: Path, order: str, served: list[int]
) -> None:
    async with running_service(tmp_path, order=order) as service, trainer_of(service) as trainer:
        tasks, clients = await asked_one_by_one(service, PRIORITIES, [2, 2, 0, 0, 1, 1])
        got: list[int] = []
        for _ in served:
            [lease] = (await trainer.claim("w", wait_seconds=5)).leases
            got.append(int(last_text(lease).partition('"content":"')[2][0]))
            await trainer.complete([said(lease)])
        assert got == served
        assert {(await task).status_code for task in tasks} == {200}
        for client in clients:
            await client.aclose()


def said(lease: Lease, text: str = "ok") -> Completion:
    return Completion(lease.lease_id, [Choice(AssistantMessage(content=text))])


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({"max_queued": 1}, SessionLimits()),
        ({"max_parked": 1}, SessionLimits()),
        ({}, SessionLimits(max_parked=1)),
    ],
)
async def test_one_call_too_many_is_told_when_to_come_back(
    tmp_path: Path, settings: dict[str, Any], limits: SessionLimits
) -> None:
    async with running_service(tmp_path, **settings) as service, trainer_of(service) as trainer:
        session = await new_session(service, SessionSpec(limits=limits))
        async with raw_agent(service, session.key) as http:
            first = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
            await eventually(lambda: has_queued(service, 1))
            other = {**HELLO, "messages": [{"role": "user", "content": "another"}]}
            for path, body in (
                ("/v1/chat/completions", other),
                ("/v1/chat/completions", {**other, "stream": True}),
                ("/v1/messages", {**other, "max_tokens": 5}),
                ("/v1/responses", {"model": "m", "input": "another"}),
                ("/v1/completions", {"model": "m", "prompt": "another"}),
            ):
                refused = await http.post(path, json=body)
                assert refused.status_code == 429, path
                assert 1 <= int(refused.headers["Retry-After"]) <= 30
            [lease] = (await trainer.claim("w", wait_seconds=5)).leases
            await trainer.complete([said(lease)])
            assert (await first).status_code == 200


async def test_connections_that_wait_for_one_call_are_bounded_too(tmp_path: Path) -> None:
    async with running_service(tmp_path, max_parked=3) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        headers = {"Idempotency-Key": "same"}
        async with raw_agent(service, session.key) as http:

            def post() -> asyncio.Task[httpx.Response]:
                return asyncio.ensure_future(
                    http.post("/v1/chat/completions", json=HELLO, headers=headers)
                )

            waiting = [post() for _ in range(3)]
            await eventually(lambda: are_connected(service, 3))
            refused = await post()
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
            [lease] = (await trainer.claim("w", wait_seconds=5)).leases
            await trainer.complete([said(lease)])
            assert [(await task).status_code for task in waiting] == [200] * 3
            assert (
                service.service.session_info(service.service.session(session_id(session)).id).calls
                == 1
            )
            await eventually(lambda: are_connected(service, 0))


def session_id(created: wire.SessionCreated) -> SessionId:
    return SessionId(created.session_id)


async def are_connected(service: Running, count: int) -> bool:
    return service.service.connections == count


# --- affinity ---


def ticket(name: str, session: str, affinity: str | None = None) -> Ticket:
    made = Ticket(CallId(name), SessionId(session))
    made.affinity = None if affinity is None else WorkerId(affinity)
    return made


def claimed(queue: CallQueue, worker: str) -> str | None:
    held = queue.claim(WorkerId(worker), now=0.0, lease_seconds=10.0)
    return None if held is None else held.ticket.id


def test_a_worker_gets_the_sessions_whose_prefix_it_has_before_those_of_others() -> None:
    queue = CallQueue()
    for name, affinity in (("a", "x"), ("b", "y"), ("c", None), ("d", "y")):
        queue.add(ticket(name, name, affinity))
    assert [claimed(queue, "y") for _ in range(5)] == ["b", "d", "c", "a", None]


def test_a_session_without_a_prefix_anywhere_keeps_its_turn() -> None:
    queue = CallQueue()
    for name, affinity in (("new", None), ("mine", "x")):
        queue.add(ticket(name, name, affinity))
    assert [claimed(queue, "x"), claimed(queue, "x")] == ["new", "mine"]


def test_a_session_is_passed_over_only_so_often_for_the_sake_of_a_prefix() -> None:
    queue = CallQueue()
    queue.add(ticket("theirs", "theirs", "gone"))
    for number in range(MAX_PASSES + 3):
        queue.add(ticket(f"m{number}", f"m{number}", "x"))
    got = [claimed(queue, "x") for _ in range(MAX_PASSES + 1)]
    assert got.index("theirs") == MAX_PASSES


@pytest.mark.parametrize("order", ["fifo", "oldest_session", "priority"])
def test_strict_orders_do_not_bend_to_prefixes(order: str) -> None:
    queue = CallQueue(order=order)  # pyright: ignore[reportArgumentType]
    for name, affinity in (("a", "x"), ("b", "y")):
        queue.add(ticket(name, name, affinity))
    assert [claimed(queue, "y"), claimed(queue, "y")] == ["a", "b"]


SESSIONS, TURNS = 12, 8


async def play(client: AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "0"}]
    for turn in range(TURNS):
        reply = await client.chat.completions.create(model="m", messages=messages)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
        said = str(reply.choices[0].message.content)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        messages += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": str(turn)},
        ]


async def test_sessions_stay_with_the_worker_that_has_their_prefix(tmp_path: Path) -> None:
    served: dict[str, list[str]] = defaultdict(list)
    async with running_service(tmp_path) as service:
        workers = [
            asyncio.ensure_future(recorded_worker(service, name, served)) for name in ("x", "y")
        ]
        await eventually(lambda: workers_wait(service, 2))
        keys = [(await new_session(service)).key for _ in range(SESSIONS)]
        clients = [agent(f"{service.agent_url}/v1", key) for key in keys]
        await asyncio.gather(*(play(client) for client in clients))
        for client in clients:
            await client.close()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    steps = [
        before == after for names in served.values() for before, after in itertools.pairwise(names)
    ]
    assert len(steps) == SESSIONS * (TURNS - 1)
    # By chance it would be half of them.
    assert sum(steps) / len(steps) >= 0.75, served
    by_worker = Counter(name for names in served.values() for name in names)
    assert min(by_worker["x"], by_worker["y"]) >= SESSIONS * TURNS // 8, by_worker


async def recorded_worker(service: Running, name: str, served: dict[str, list[str]]) -> None:
    async def policy(leases: list[Lease]) -> list[Completion]:
        for lease in leases:
            served[lease.session_id].append(name)
        return [said(lease, f"{name}{lease.call_id}") for lease in leases]

    await serve(
        policy,
        url=service.control_url,
        key=service.keys.trainer_key,
        worker_id=name,
        concurrency=SESSIONS // 2,
    )


async def workers_wait(service: Running, count: int) -> bool:
    return service.service.stats().waiting_workers == count


async def test_no_worker_idles_for_the_sake_of_a_prefix(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            for worker in ("x", "y"):
                claim = asyncio.ensure_future(trainer.claim(worker, wait_seconds=10))
                await eventually(lambda: workers_wait(service, 1))
                asked = asyncio.ensure_future(
                    client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": f"for {worker}"}]
                    )
                )
                # The prefix is x's the second time, but only y is there.
                [lease] = (await claim).leases
                await trainer.complete([said(lease)])
                await asked


async def test_a_new_call_wakes_the_waiting_worker_that_has_its_prefix(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            woken: list[str] = []
            for turn in range(4):
                claims: dict[str, asyncio.Task[wire.ClaimReply]] = {}
                for worker in ("y", "x") if turn else ("x",):  # y has always waited longer
                    claims[worker] = asyncio.ensure_future(trainer.claim(worker, wait_seconds=10))
                    count = len(claims)
                    await eventually(lambda count=count: workers_wait(service, count))
                body = {**HELLO, "messages": [{"role": "user", "content": f"{turn}"}]}
                asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
                done, left = await asyncio.wait(
                    claims.values(), return_when=asyncio.FIRST_COMPLETED
                )
                [task] = done
                woken += [name for name, claim in claims.items() if claim is task]
                [lease] = task.result().leases
                await trainer.complete([said(lease)])
                await asked
                for claim in left:
                    claim.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                await eventually(lambda: workers_wait(service, 0))
        assert woken == ["x"] * 4
