"""Text that no JSON can hold: refused before anything changes, so that memory and journal agree."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rock.errors import BadRequest
from rock.modelservice import wire
from rock.testing.service import running_service
from rock.types import SessionId
from tests.modelservice.faults.connection import Connection, Heard, chat, post, text_of
from tests.modelservice.fixtures import answered, ask, incoming, open_session, running, user
from tests.modelservice.live import answering, new_session

LONE = "\udcff"
HI = [{"role": "user", "content": "hi"}]


async def echo(leases: list[wire.Lease]) -> list[wire.Completion]:
    choice = wire.Choice(wire.AssistantMessage(content="hello"))
    return [wire.Completion(lease.lease_id, [choice]) for lease in leases]


async def test_text_that_is_no_unicode_leaves_no_trace(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        with pytest.raises(BadRequest, match="Idempotency-Key"):
            await service.submit(session, incoming(user("hi"), key=LONE))
        with pytest.raises(BadRequest, match="not valid Unicode"):
            await service.create_session(wire.SessionSpec(labels={"name": LONE}))
        await answered(service, session, user("hi"))
        assert service.session_info(session.id).calls == 1
        assert service.stats().open_sessions == 1
    async with running(tmp_path) as service:  # the journal is one that can be read
        assert service.session_info(session.id).calls == 1
        await ask(service, service.session(session.id), user("more"))


async def send(url: str, request: bytes) -> Heard:
    connection = await Connection.open(url)
    try:
        async with asyncio.timeout(5):
            return await connection.ask(request)
    finally:
        await connection.close()


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"x-codex-turn-metadata", b"X-Any"])
async def test_a_header_that_is_no_text_is_refused_by_name(tmp_path: Path, name: bytes) -> None:
    async with running_service(tmp_path) as service, answering(service, echo):
        session = await new_session(service)
        good = chat(HI, key=session.key)
        bad = good.replace(b"Host: rock", b"Host: rock\r\n%b: a\xff\xfeb" % name)
        heard = await send(service.agent_url, bad)
        assert heard.status == 400
        assert name.decode() in heard.json()["error"]["message"]
        assert text_of(await send(service.agent_url, good)) == "hello"
    async with running_service(tmp_path) as service:
        assert service.service.session_info(SessionId(session.session_id)).calls == 1


async def test_a_key_that_is_no_text_is_refused_on_both_planes(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        for url, path in (
            (service.agent_url, "/v1/chat/completions"),
            (service.control_url, "/trainer/v1/claim"),
        ):
            request = post(path, b"{}").replace(
                b"Host: rock", b"Authorization: Bearer \xff\r\nHost: x"
            )
            heard = await send(url, request)
            assert heard.status == 400
            assert "Authorization" in heard.json()["error"]["message"]


async def test_what_is_no_http_is_refused_in_the_planes_shape(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        for url in (service.agent_url, service.control_url):
            connection = await Connection.open(url)
            async with asyncio.timeout(5):
                heard = await connection.ask(b"GET /v1/models HTTP/1.1\r\nno colon\r\n\r\n")
                assert heard.status == 400
                assert heard.json()["error"]["code"] == "invalid_request"
                assert await connection.reader.read() == b""
            await connection.close()


async def test_a_policy_whose_error_is_no_unicode_still_fails_its_call(tmp_path: Path) -> None:
    async def broken(leases: list[wire.Lease]) -> list[wire.Completion]:
        raise ValueError(f"no such file: {LONE}")

    async with running_service(tmp_path, policies={"own": broken}) as service:
        session = await new_session(service, wire.SessionSpec(backend="own"))
        heard = await send(service.agent_url, chat(HI, key=session.key))
    assert heard.status == 502
    assert "no such file" in heard.json()["error"]["message"]
