"""Memory of a service: what is let go needs no collector, and what has cycles is found in the end."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rock.errors import JournalError
from rock.modelservice import wire
from rock.modelservice.hosting.collector import Collector
from rock.modelservice.service.service import ModelService, Session
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from tests.modelservice.fixtures import (
    ask,
    assistant,
    claim,
    complete,
    completion,
    open_session,
    running,
    until,
    user,
)
from tests.modelservice.live import HELLO, admin_of, new_session, raw_agent, trainer_of

OURS = "rock.modelservice."
CALLS = {"Answer", "Call", "CallTokens", "Conversation", "Held", "MessageGraph"}
CONNECTIONS = {
    "AgentRequest",
    "CallStream",
    "Connection",
    "Incoming",
    "Parked",
    "Reply",
    "Request",
    "RequestReader",
    "_PlainReply",
}


@contextmanager
def no_collector() -> Generator[Callable[[], Counter[str]], None, None]:
    """Calls give how many objects there are of each class of the service that were not there before."""
    gc.collect()
    before = _ours()
    gc.disable()
    try:
        yield lambda: _ours() - before
    finally:
        gc.enable()


def _ours() -> Counter[str]:
    kinds: list[Any] = [type(one) for one in gc.get_objects()]
    return Counter(one.__qualname__ for one in kinds if _module(one).startswith(OURS))


def _module(kind: Any) -> str:
    name = kind.__module__  # of some classes in C a descriptor
    return name if isinstance(name, str) else ""


async def _talk(service: ModelService, session: Session) -> None:
    said = [user("hi")]
    for turn in range(4):
        call = await ask(service, session, *said)
        (lease,) = await claim(service)
        await complete(service, completion(lease, f"answer {turn}"))
        service.sent(call)
        said += [assistant(f"answer {turn}"), user(f"and {turn}")]
    service.agent_left(await ask(service, session, user("never mind")))
    await claim(service)
    await ask(service, session, user("still waiting"))


async def test_a_session_that_was_closed_leaves_memory_without_the_collector(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        with no_collector() as made:
            session = await open_session(service)
            await _talk(service, session)
            assert CALLS - made().keys() == set()
            await service.close_session(session.id)
            del session
            clock.advance(service.config.evict_seconds + 1)
            service.tick()
            assert {kind: count for kind, count in made().items() if kind in CALLS} == {}


async def test_calls_that_failed_leave_memory_without_the_collector(
    tmp_path: Path,
) -> None:
    async with (
        running_service(tmp_path, evict_seconds=0, stream_grace_seconds=0) as service,
        trainer_of(service) as trainer,
        admin_of(service) as admin,
        raw_agent(service) as agent,
    ):
        with no_collector() as made:
            session = await admin.create_session()
            url = f"/s/{session.key}/v1/chat/completions"
            for body in (HELLO, {**HELLO, "stream": True}):
                asked = asyncio.create_task(agent.post(url, json=body))
                (lease,) = (await trainer.claim("w", wait_seconds=5)).leases
                if "stream" in body:
                    await until(lambda: made()["CallStream"] > 0)
                await trainer.fail([wire.Failure(lease.lease_id, message="no")])
                assert "no" in (await asked).text
            await admin.close_session(session.session_id)
            await until(lambda: not made().keys() & (CALLS | {"CallStream"}))


async def test_what_was_asked_of_a_failed_journal_leaves_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        journal = service._engine.journal  # pyright: ignore[reportPrivateUsage] - what remembered who asked
        session = await open_session(service)
        await journal.close()
        with no_collector() as made:
            for _ in range(3):
                with pytest.raises(JournalError, match="closed"):
                    await ask(service, session, user("hi"))
                with pytest.raises(JournalError, match="closed"):
                    await journal.barrier()
            assert made()["Incoming"] == 0


async def test_connections_leave_memory_without_the_collector(tmp_path: Path) -> None:
    body = json.dumps(HELLO).encode()
    requests = (
        b"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer %b\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer %%b\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body),
        b"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer %b\r\nContent-Length: 99\r\n\r\n{",
        b"no HTTP at all %b\r\n\r\n",
    )
    async with running_service(tmp_path, cancel_grace_seconds=0) as service:
        session = await new_session(service)
        port = int(service.agent_url.rpartition(":")[2])
        with no_collector() as made:
            for request in requests:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request % session.key.encode())
                await writer.drain()
                if b"chat" not in request:
                    assert (await reader.readline()).startswith(b"HTTP/1.1 ")
                else:
                    await until(lambda: made()["Connection"] > 0)
                writer.close()
                await writer.wait_closed()
            await until(lambda: not made().keys() & CONNECTIONS)


class _Knot:
    """Garbage that only a collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_looked_at_young_is_left_alone_until_everything_is_looked_at() -> None:
    with Collector(young_objects=100, least=1000) as collector:
        knot = _Knot()
        gone = weakref.ref(knot)
        kept = [[number] for number in range(1000)]  # looked at several times over
        del knot
        gc.collect()
        assert gone() is not None
        assert collector.collect() > 0
        assert gone() is None
        assert len(kept) == 1000


def test_what_can_be_in_no_cycle_brings_no_look_at_everything() -> None:
    with Collector(young_objects=1000, least=gc.get_freeze_count()) as collector:
        objects = len(gc.get_objects()) + gc.get_freeze_count()
        kept = [(number,) for number in range(5 * objects)]
        assert not collector.due(quiet=True)
        assert not collector.due(quiet=False)
        assert kept


def test_everything_is_looked_at_when_there_is_twice_as_much_and_nobody_waits() -> None:
    with Collector(young_objects=1000, least=gc.get_freeze_count()) as collector:
        assert not collector.due(quiet=True)
        objects = len(gc.get_objects()) + gc.get_freeze_count()
        kept = [[number] for number in range(objects + 10_000)]
        assert (collector.due(quiet=True), collector.due(quiet=False)) == (True, False)
        kept += [[number] for number in range(2 * objects + 20_000)]
        assert collector.due(quiet=False)
        collector.collect()
        assert not collector.due(quiet=True)
        assert kept


async def test_a_moment_in_which_nobody_waits_is_not_taken_for_quiet() -> None:
    asked = 0

    def quiet_but_for_each_third() -> bool:
        nonlocal asked
        asked += 1
        return asked % 3 != 0

    least = gc.get_freeze_count()
    with Collector(young_objects=1000, least=least, pause_seconds=0.001) as collector:
        kept = [[n] for n in range(len(gc.get_objects()) + gc.get_freeze_count() + 10_000)]
        assert collector.due(quiet=True)
        watching = asyncio.ensure_future(collector.watch(quiet_but_for_each_third))
        await until(lambda: asked > 30)
        assert collector.due(quiet=True)  # nothing was looked at
        watching.cancel()
        watching = asyncio.ensure_future(collector.watch(lambda: True))
        await until(lambda: not collector.due(quiet=True))
        watching.cancel()
        assert kept


def test_the_process_collects_as_before_when_its_service_has_ended() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    with Collector():
        assert gc.get_threshold() != before[0]
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), list(gc.callbacks)) == before
    assert gc.get_freeze_count() == 0
