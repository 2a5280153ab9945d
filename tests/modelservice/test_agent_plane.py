"""The agent plane through real sockets, mostly with the real openai SDK."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rock.errors import ContextLengthExceeded, UpstreamUnauthorized
from rock.modelservice.dialects.sse import Decoder
from rock.modelservice.hosting.server import Running
from rock.modelservice.planes.attach import Attachment
from rock.modelservice.planes.listening import bind, url_of
from rock.modelservice.wire import AssistantMessage, Pins, SessionLimits, SessionSpec
from rock.testing import ScriptedPolicy, tool_call
from rock.testing.service import running_service
from tests.modelservice.live import (
    HELLO,
    admin_of,
    agent,
    answering,
    eventually,
    new_session,
    raw_agent,
    trainer_of,
)

USER: Any = {"role": "user", "content": "hi"}
TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


async def test_the_sdk_gets_its_answer_by_either_addressing(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda lease: f"turn {len(lease.request.messages)}")
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        in_path = agent(session.base_url, "whatever")
        as_key = agent(f"{service.agent_url}/v1", session.key)
        for client in (in_path, as_key):
            async with client:
                reply = await client.chat.completions.create(model="m", messages=[USER])
                assert reply.choices[0].message.content == "turn 1"
                assert reply.choices[0].finish_reason == "stop"
                assert reply.usage is not None
                assert reply.usage.total_tokens == (
                    reply.usage.prompt_tokens + reply.usage.completion_tokens
                )
    assert {lease.session_id for lease in policy.seen} == {session.session_id}


async def test_the_anthropic_way_to_send_a_key_works(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "ok")
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with raw_agent(service) as http:
            reply = await http.post(
                "/v1/chat/completions", json=HELLO, headers={"x-api-key": session.key}
            )
            assert reply.status_code == 200


async def test_a_streamed_reply_has_text_tools_and_usage(tmp_path: Path) -> None:
    call = tool_call("bash", command="ls")
    call.content = "let me look"
    async with running_service(tmp_path) as service, answering(service, ScriptedPolicy([call])):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            stream = await client.chat.completions.create(
                model="m",
                messages=[USER],
                tools=[TOOL],
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            async with client.chat.completions.stream(model="m", messages=[USER]) as helper:
                whole = await helper.get_final_completion()
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == "let me look"
    assert choices[-1].finish_reason == "tool_calls"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0
    [tool] = whole.choices[0].message.tool_calls or []
    assert tool.function.name == "bash"
    assert tool.function.arguments == '{"command":"ls"}'
    assert tool.id


async def test_several_choices_and_parallel_tool_calls_arrive_apart(tmp_path: Path) -> None:
    two = AssistantMessage(
        tool_calls=[
            *(tool_call("bash", command="a").tool_calls or ()),
            *(tool_call("bash", command="b").tool_calls or ()),
        ]
    )
    async with running_service(tmp_path) as service, answering(service, ScriptedPolicy([two])):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER], n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    ids = [call.id for choice in reply.choices for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 6


async def test_errors_are_the_sdks_own_classes(tmp_path: Path) -> None:
    async with running_service(tmp_path, max_parked=1) as service:
        session = await new_session(service)
        async with agent(f"{service.agent_url}/v1", "sk-nobody") as stranger:
            with pytest.raises(openai.AuthenticationError) as denied:
                await stranger.chat.completions.create(model="m", messages=[USER])
        assert denied.value.code == "invalid_api_key"
        async with agent(session.base_url) as client:
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model="m", input="x")
            with pytest.raises(openai.BadRequestError) as bad:
                await client.chat.completions.create(model="m", messages=[USER], n=1000)
            assert bad.value.param == "n"
            waiting = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER])
            )
            await eventually(lambda: queued_is(service, 1))
            with pytest.raises(openai.RateLimitError) as full:
                await client.chat.completions.create(model="m", messages=[USER])
            assert 1 <= int(full.value.response.headers["Retry-After"]) <= 30
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def queued_is(service: Running, count: int) -> bool:
    return service.service.stats().queued == count


async def test_what_a_worker_refuses_reaches_the_agent_with_its_meaning(tmp_path: Path) -> None:
    policy = ScriptedPolicy(
        lambda lease: {
            "long": ContextLengthExceeded("This model's maximum context length is 5 tokens."),
            "key": UpstreamUnauthorized("the provider refused the key: no such key"),
            "bug": ValueError("boom"),
        }[lease.request.model]
    )
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            with pytest.raises(openai.BadRequestError, match="maximum context length") as long:
                await client.chat.completions.create(model="long", messages=[USER])
            assert long.value.code == "context_length_exceeded"
            with pytest.raises(openai.AuthenticationError, match="refused the key"):
                await client.chat.completions.create(model="key", messages=[USER])
            with pytest.raises(openai.InternalServerError, match="ValueError: boom"):
                await client.chat.completions.create(model="bug", messages=[USER])
            with pytest.raises(openai.BadRequestError, match="maximum context length"):
                await client.chat.completions.create(model="long", messages=[USER], stream=True)


async def test_paths_methods_and_sizes_are_checked_in_openais_shape(tmp_path: Path) -> None:
    async with running_service(tmp_path, max_body_bytes=2000) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            wrong = [
                (await http.get("/v1/nothing"), 404, "not_found"),
                (await http.get("/elsewhere"), 404, "not_found"),
                (await http.get("/v1/chat/completions"), 405, "invalid_request"),
                (await http.post("/v1/models"), 405, "invalid_request"),
                (
                    await http.post("/v1/chat/completions", content=b"x" * 3000),
                    413,
                    "payload_too_large",
                ),
                (
                    await http.post("/v1/chat/completions", content=pieces(b"x" * 1500, 3)),
                    413,
                    "payload_too_large",
                ),
                (await http.post("/v1/chat/completions", content=b"{"), 400, "invalid_request"),
            ]
            models = (await http.get("/v1/models")).json()
            one = (await http.get("/v1/models/org%2Fname")).json()
    for reply, status, code in wrong:
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (status, code)
        assert set(error) == {"message", "type", "param", "code"}
        assert session.key not in reply.text
    assert wrong[2][0].headers["Allow"] == "POST"
    assert models["data"][0]["object"] == "model"
    assert one["id"] == "org/name"


async def pieces(chunk: bytes, count: int):
    for _ in range(count):
        yield chunk


async def test_a_closed_session_answers_410(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, admin_of(service) as admin:
        session = await admin.create_session()
        async with raw_agent(service, session.key) as http:
            waiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=HELLO))
            await eventually(lambda: queued_is(service, 1))
            await admin.close_session(session.session_id)
            replies = [await waiting, await http.post("/v1/chat/completions", json=HELLO)]
        assert [reply.status_code for reply in replies] == [410, 410]
        assert replies[0].json()["error"]["code"] == "session_closed"


async def test_the_planes_do_not_take_each_others_keys(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        keys = service.keys
        async with httpx.AsyncClient() as http:

            async def status(url: str, key: str | None) -> int:
                headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                return (await http.get(url, headers=headers)).status_code

            stats = f"{service.control_url}/trainer/v1/stats"
            health = f"{service.control_url}/admin/v1/health"
            models = f"{service.agent_url}/v1/models"
            assert [
                await status(stats, keys.trainer_key),
                await status(stats, keys.admin_key),
                await status(stats, session.key),
                await status(stats, None),
                await status(health, keys.admin_key),
                await status(health, keys.trainer_key),
                await status(health, session.key),
            ] == [200, 200, 401, 401, 200, 403, 401]
            assert [
                await status(models, session.key),
                await status(models, keys.admin_key),
                await status(models, keys.trainer_key),
                await status(models, None),
                await status(f"{service.control_url}/v1/models", session.key),
                await status(f"{service.agent_url}/trainer/v1/stats", keys.trainer_key),
            ] == [200, 401, 401, 401, 401, 401]


async def test_keepalive_events_reach_a_stream_while_nobody_answers(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"stream_grace_seconds": 0.05, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        body = {**HELLO, "stream": True}
        async with (
            raw_agent(service, session.key) as http,
            http.stream("POST", "/v1/chat/completions", json=body) as reply,
        ):
            assert reply.status_code == 200
            assert reply.headers["content-type"] == "text/event-stream"
            decoder, events = Decoder(), list[str]()
            pieces_of_reply = reply.aiter_bytes()
            while len(events) < 3:
                events += [event.data for event in decoder.feed(await anext(pieces_of_reply))]
            leases = (await trainer.claim("w", wait_seconds=5)).leases
            await trainer.complete(await ScriptedPolicy(["late"])(leases))
            async for chunk in pieces_of_reply:
                events += [event.data for event in decoder.feed(chunk)]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[:3] == [{}, {}, {}]
    assert "late" in [delta.get("content") for delta in deltas]
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_failure_after_the_first_byte_is_an_error_event(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"stream_grace_seconds": 0.01, "keepalive_seconds": 0.05}
    async with running_service(tmp_path, **settings) as service:
        session = await new_session(
            service, SessionSpec(limits=SessionLimits(call_deadline_seconds=1.5))
        )
        async with agent(session.base_url) as client:
            stream = await client.chat.completions.create(model="m", messages=[USER], stream=True)
            with pytest.raises(openai.APIError) as failed:
                async for _ in stream:
                    pass
    assert failed.value.code == "deadline_exceeded"


async def test_an_agent_that_leaves_is_noticed_and_its_call_withdrawn(tmp_path: Path) -> None:
    async with running_service(tmp_path, cancel_grace_seconds=0.05) as service:
        session = await new_session(service)
        for stream in (False, True):
            async with raw_agent(service, session.key) as http:
                body = {**HELLO, "stream": stream, "seed": int(stream)}
                waiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=body))
                await eventually(lambda: queued_is(service, 1))
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await eventually(lambda: queued_is(service, 0))
        assert service.service.stats().cancelled == 2


async def test_a_bound_listener_needs_no_key_and_takes_no_other_sessions(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "ok")
    async with running_service(tmp_path) as service, answering(service, policy):
        mine, other = await new_session(service), await new_session(service)
        with bind("127.0.0.1", 0) as listener:
            listener.listen()
            inside = url_of(listener)
            async with Attachment(service.attach_path, listener, mine.session_id) as attachment:
                async with httpx.AsyncClient(base_url=inside) as http:

                    async def ask(prefix: str, headers: dict[str, str]) -> int:
                        path = f"{prefix}/v1/chat/completions"
                        return (await http.post(path, json=HELLO, headers=headers)).status_code

                    assert await ask("", {}) == 200
                    assert await ask("", {"Authorization": "Bearer sk-made-up"}) == 200
                    assert await ask(f"/s/{mine.key}", {"Authorization": "Bearer x"}) == 200
                    assert await ask("", {"Authorization": f"Bearer {other.key}"}) == 403
                    assert await ask(f"/s/{other.key}", {}) == 403
                async with admin_of(service) as admin:
                    await admin.close_session(mine.session_id)
                await attachment.ended()
                async with admin_of(service) as admin:
                    info = await admin.session(mine.session_id)
    assert (info.state, info.answered) == ("closed", 3)
    assert {lease.session_id for lease in policy.seen} == {mine.session_id}


async def test_pins_override_what_the_agent_asks(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "ok")
    async with running_service(tmp_path) as service, answering(service, policy):
        spec = SessionSpec(pins=Pins(model="pinned", temperature=1.0))
        session = await new_session(service, spec)
        async with agent(session.base_url) as client:
            await client.chat.completions.create(model="m", messages=[USER], temperature=0)
            models = await client.models.list()
    [lease] = policy.seen
    assert (lease.request.model, lease.request.temperature) == ("pinned", 1.0)
    assert [model.id for model in models.data] == ["pinned"]


async def test_a_backend_answers_sessions_that_name_it_and_no_others(tmp_path: Path) -> None:
    scripted = ScriptedPolicy(lambda _: "from inside")
    async with running_service(tmp_path, policies={"scripted": scripted}) as service:
        inside = await new_session(service, SessionSpec(backend="scripted"))
        async with agent(inside.base_url) as client:
            reply = await client.chat.completions.create(model="m", messages=[USER])
        assert reply.choices[0].message.content == "from inside"
        outside = await new_session(service)
        async with agent(outside.base_url) as client, trainer_of(service) as trainer:
            waiting = asyncio.ensure_future(
                client.chat.completions.create(model="m", messages=[USER])
            )
            leases = (await trainer.claim("w", wait_seconds=5)).leases
            await trainer.complete(await ScriptedPolicy(["from outside"])(leases))
            assert (await waiting).choices[0].message.content == "from outside"
    assert len(scripted.seen) == 1


async def test_an_http_client_may_hang_up_before_its_request_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        host, port = service.agent_url.removeprefix("http://").split(":")
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {session.key}"
            "\r\nContent-Length: 100\r\n\r\n{"
        )
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            await asyncio.get_running_loop().run_in_executor(
                None, connection.sendall, head.encode()
            )
        async with raw_agent(service, session.key) as http:
            assert (await http.get("/v1/models")).status_code == 200
        assert service.service.stats().queued == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_calls_that_wait_have_no_task_each(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        body = json.dumps(HELLO).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nx-api-key: {session.key}\r\n"
        tasks = len(asyncio.all_tasks())
        writers: list[asyncio.StreamWriter] = []
        host, _, port = service.agent_url.removeprefix("http://").rpartition(":")
        readers: list[asyncio.StreamReader] = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            readers.append(reader)
            writers.append(writer)

        async def all_wait() -> bool:
            return service.service.stats().queued == 20

        await eventually(all_wait)
        assert len(asyncio.all_tasks()) == tasks
        async with answering(service, ScriptedPolicy(lambda _: "late")):
            for reader in readers:
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        for writer in writers:
            writer.close()
