"""Peers that go silent: bodies that never come, readers that stop, connections that are half open."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.hosting.server import Running
from rock.modelservice.states import State
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from rock.types import SessionId
from tests.modelservice.faults.connection import Connection, chat, post, text_of
from tests.modelservice.live import HELLO, answering, eventually, new_session, raw_agent, trainer_of
from tests.needs import TCP_REPAIR

LARGE = "all of a large answer " * 1_000_000
HI = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def impatient_service(folder: Path) -> AsyncGenerator[Running, None]:
    async with running_service(
        folder,
        body_seconds=0.5,
        peer_timeout_seconds=1.0,
        cancel_grace_seconds=0.2,
        stream_grace_seconds=0.1,
        keepalive_seconds=0.2,
    ) as service:
        yield service


async def large_answers(leases: list[Lease]) -> list[Completion]:
    choice = Choice(message=AssistantMessage(content=LARGE))
    return [Completion(lease_id=lease.lease_id, choices=[choice]) for lease in leases]


def address_of(service: Running) -> tuple[str, int]:
    host, _, port = service.agent_url.removeprefix("http://").partition(":")
    return host, int(port)


def count_of(service: Running, session_id: str, state: State) -> Callable[[], Awaitable[bool]]:
    async def one_is_there() -> bool:
        return service.service.session(SessionId(session_id)).counts[state] == 1

    return one_is_there


@pytest.mark.parametrize("sent", [b"", b'{"model": "m", "mess'])
async def test_a_body_that_does_not_come_is_refused_in_time(tmp_path: Path, sent: bytes) -> None:
    async with impatient_service(tmp_path) as service:
        session = await new_session(service)
        keys = (session.key, service.keys.admin_key)
        urls = (service.agent_url, service.control_url)
        paths = ("/v1/chat/completions", "/admin/v1/sessions")
        for url, path, key in zip(urls, paths, keys, strict=True):
            slow = await Connection.open(url)
            whole = post(path, b"x" * 1000, {"Authorization": f"Bearer {key}"})
            slow.send(whole[:-1000] + sent)
            async with asyncio.timeout(5):
                heard = await slow.hear()
            assert heard.status == 408
            assert heard.json()["error"]["code"] == "request_timeout"
            await slow.close()


async def test_bodies_that_trickle_in_hold_nobody_up(tmp_path: Path) -> None:
    async with (
        impatient_service(tmp_path) as service,
        answering(service, ScriptedPolicy(lambda _: "hello")),
    ):
        session = await new_session(service)
        head = post("/v1/chat/completions", b"x" * 9999, {"Authorization": f"Bearer {session.key}"})
        trickles = [await Connection.open(service.agent_url) for _ in range(200)]
        for trickle in trickles:
            trickle.send(head[:-9990])
        async with raw_agent(service, session.key) as http, asyncio.timeout(5):
            assert (await http.post("/v1/chat/completions", json=HELLO)).status_code == 200
        for trickle in trickles:
            trickle.abort()
            await trickle.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_stops_is_given_up_and_its_retry_gets_the_answer(
    tmp_path: Path, stream: bool
) -> None:
    async with impatient_service(tmp_path) as service:
        session = await new_session(service)
        # A small window: the kernel's buffers do not swallow the answer.
        narrow = socket.socket()
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        narrow.connect(address_of(service))
        with narrow:
            narrow.sendall(chat(HI, key=session.key, stream=stream))
            async with answering(service, large_answers):
                await eventually(count_of(service, session.session_id, State.UNDELIVERED))
        again = await Connection.open(service.agent_url)
        async with asyncio.timeout(10):
            heard = await again.ask(chat(HI, key=session.key, stream=stream))
        assert text_of(heard) == LARGE
        assert service.service.session(SessionId(session.session_id)).calls == 1
        await again.close()


async def test_a_slow_reader_that_goes_on_gets_its_answer(tmp_path: Path) -> None:
    async with (
        impatient_service(tmp_path) as service,
        answering(service, large_answers),
    ):
        session = await new_session(service)
        slow = await Connection.open(service.agent_url)
        slow.send(chat(HI, key=session.key))
        await slow.reader.readuntil(b"\r\n\r\n")
        body = b""
        # Longer than the bound in all, never silent for as long as it.
        while not body.endswith(b"}"):
            piece = await slow.reader.read(1 << 20)
            assert piece
            body += piece
            await asyncio.sleep(0.08)
        assert json.loads(body)["choices"][0]["message"]["content"] == LARGE
        await slow.close()


@pytest.mark.netadmin
async def test_an_agent_that_vanished_without_a_word_is_noticed(tmp_path: Path) -> None:
    async with impatient_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        vanishing = socket.create_connection(address_of(service))
        vanishing.sendall(chat(HI, key=session.key))
        [lease] = (await trainer.claim("w", wait_seconds=10)).leases
        vanish(vanishing)
        await eventually(count_of(service, session.session_id, State.CANCELLED))
        assert await lost(trainer, lease.lease_id)


def vanish(connection: socket.socket) -> None:
    """Close without FIN or RST, as a machine that lost its power does."""
    connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    connection.close()


async def lost(trainer: TrainerClient, lease_id: str) -> bool:
    [result] = await trainer.renew([lease_id])
    return result.error is not None and result.error.code == "lease_lost"


async def test_a_worker_that_vanished_loses_its_leases_to_the_next(tmp_path: Path) -> None:
    async with impatient_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        agent = await Connection.open(service.agent_url)
        agent.send(chat(HI, key=session.key))
        body = json.dumps({"worker_id": "gone", "lease_seconds": 0.5, "wait_seconds": 10}).encode()
        gone = await Connection.open(service.control_url)
        bearer = {"Authorization": f"Bearer {service.keys.trainer_key}"}
        heard = await gone.ask(post("/trainer/v1/claim", body, bearer))
        [first] = heard.json()["leases"]
        [second] = (await trainer.claim("next", wait_seconds=10)).leases
        assert (second.call_id, second.delivery) == (first["call_id"], 2)
        await trainer.complete(await ScriptedPolicy(["from the next"])([second]))
        assert text_of(await agent.hear()) == "from the next"
        await agent.close()
        await gone.close()
