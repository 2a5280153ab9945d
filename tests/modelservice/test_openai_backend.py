"""The openai and engine backends against a local server: what is sent, what is streamed, which tokens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam

from rock.errors import ConfigError
from rock.modelservice.client.worker import Policy
from rock.modelservice.hosting.server import Running
from rock.modelservice.policies.hosted import Retries
from rock.modelservice.policies.openai import OpenAIPolicy
from rock.modelservice.policies.scripted import tool_call
from rock.modelservice.wire import (
    AssistantMessage,
    SessionSpec,
    TrajectoryCall,
    Usage,
    VersionSpan,
)
from rock.testing.fake_engine import (
    FakeOpenAI,
    TokensGiven,
    chunk,
    error_reply,
    fake_openai_server,
    stream_reply,
)
from rock.testing.service import running_service
from tests.modelservice.golden import decoded
from tests.modelservice.live import agent, new_session, raw_agent

QUICK = Retries(attempts=3, total_seconds=20.0, first_wait_seconds=0.01)
BASH: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object"}},
}
THINKING = AssistantMessage(
    content="let me look",
    reasoning_content="first the files",
    tool_calls=tool_call("bash", command="ls -l").tool_calls,
)


def hosted(server: FakeOpenAI) -> OpenAIPolicy:
    return OpenAIPolicy("m", base_url=server.url, api_key="k", retries=QUICK)


def engine(server: FakeOpenAI) -> OpenAIPolicy:
    return OpenAIPolicy("m", base_url=server.url, api_key="k", tokens="required", retries=QUICK)


@asynccontextmanager
async def served(tmp_path: Path, policy: Policy) -> AsyncGenerator[Running, None]:
    async with running_service(
        tmp_path, policies={"m": policy}, default_backend="m", stream_grace_seconds=0.1
    ) as service:
        yield service


def calls_of(service: Running, session_id: str) -> list[TrajectoryCall]:
    return service.service.trajectory(session_id).calls  # pyright: ignore[reportArgumentType]


async def test_what_the_agent_wrote_reaches_the_engine_byte_for_byte(tmp_path: Path) -> None:
    messages = b'[{"content":  "h\\u00e9llo",\n "role":"user", "cache_control": {"a" :1.0}}]'
    tools = b'[{ "type": "function", "function": {"name":"f", "parameters": {"z":1,"a":2e0}} }]'
    body = b'{"model": "x", "messages": %b, "tools": %b, "min_p": 0.10}' % (messages, tools)
    async with fake_openai_server(["hello"]) as server, served(tmp_path, hosted(server)) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            reply = await http.post("/v1/chat/completions", content=body)
    assert reply.status_code == 200
    (sent,) = server.bodies
    for piece in (messages[1:-1], tools[1:-1], b'"min_p":0.10'):
        assert piece in sent
    assert server.requests[0]["model"] == "m"


async def test_what_only_a_dialect_knows_stays_here(tmp_path: Path) -> None:
    body = {
        "model": "x",
        "max_tokens": 5,
        "top_k": 4,
        "metadata": {"user_id": "u"},
        "messages": [{"role": "user", "content": "hi"}],
    }
    async with fake_openai_server(["hello"]) as server, served(tmp_path, hosted(server)) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            await http.post("/v1/messages", json=body)
            await http.post("/v1/responses", json={"model": "x", "input": "hi", "store": False})
    assert server.requests[0].keys() == {"model", "messages", "max_tokens", "top_k"}
    assert server.requests[1].keys() == {"model", "messages"}


@pytest.mark.parametrize("prompt", ["def f(", [1, 2, 3]])
async def test_a_prompt_goes_to_completions(prompt: Any, tmp_path: Path) -> None:
    async with fake_openai_server(["x):"]) as server, served(tmp_path, engine(server)) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            reply = await client.completions.create(model="x", prompt=prompt, max_tokens=5)
        (call,) = calls_of(service, session.session_id)
    assert reply.choices[0].text == "x):"
    assert server.paths[-1] == "/v1/completions"
    assert server.requests[-1]["prompt"] == prompt
    assert server.requests[-1]["max_tokens"] == 5
    assert call.untrainable is None
    assert call.choices[0].token_ids == list(b"x):")


async def test_tokens_of_an_engine_are_trainable(tmp_path: Path) -> None:
    async with fake_openai_server(["hello"]) as server, served(tmp_path, engine(server)) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            await client.chat.completions.create(
                model="x", messages=[{"role": "user", "content": "hi"}]
            )
        trajectory = service.service.trajectory(session.session_id)  # pyright: ignore[reportArgumentType]
    (call,), (row,) = trajectory.calls, trajectory.rows
    assert server.requests[-1]["return_token_ids"] is True
    assert call.untrainable is None
    ids = call.choices[0].token_ids or []
    assert sum(row.mask) == len(ids) > 0
    assert call.usage == Usage(prompt_tokens=row.mask.count(0), completion_tokens=len(ids))


@pytest.mark.parametrize(
    ("script", "tokens", "reason"),
    [
        pytest.param(["hello"], "never", "returns no token_ids: it, or a router", id="stripped"),
        pytest.param(
            [error_reply(400, "unknown field return_token_ids")],
            "always",
            "unknown field return_token_ids",
            id="refused",
        ),
    ],
)
async def test_an_engine_without_tokens_is_refused_at_the_start(
    script: list[Any], tokens: TokensGiven, reason: str
) -> None:
    async with fake_openai_server(script, tokens=tokens) as server:
        with pytest.raises(ConfigError, match=f"tokens are required, but .*{reason}"):
            async with engine(server):
                pass


async def test_an_engine_that_cannot_be_reached_is_refused_at_the_start() -> None:
    policy = OpenAIPolicy(
        "m", base_url="http://127.0.0.1:9/v1", api_key="k", tokens="required", retries=QUICK
    )
    with pytest.raises(ConfigError, match=r"tokens are required, but .*Connection error"):
        async with policy:
            pass


async def test_an_engine_that_does_not_answer_is_refused_at_the_start() -> None:
    async with fake_openai_server([error_reply(503, "loading", headers={"Retry-After": "9"})]) as s:
        policy = OpenAIPolicy(
            "m", base_url=s.url, api_key="k", tokens="required", probe_seconds=0.3
        )
        with pytest.raises(ConfigError, match=r"it gave no answer within 0\.3 s"):
            async with policy:
                pass


async def test_an_engine_that_loses_tokens_when_it_streams_is_asked_for_whole_answers(
    tmp_path: Path,
) -> None:
    async with (
        fake_openai_server(["hello there"], tokens="whole") as server,
        served(tmp_path, engine(server)) as service,
    ):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            stream = await client.chat.completions.create(
                model="x", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            said = [c.choices[0].delta.content or "" async for c in stream if c.choices]
        (call,) = calls_of(service, session.session_id)
    assert "".join(said) == "hello there"
    assert "stream" not in server.requests[-1]
    assert call.untrainable is None


@pytest.mark.parametrize("make", [hosted, engine])
async def test_what_an_engine_streams_is_read_as_it_comes_and_kept_whole(
    make: Any, tmp_path: Path
) -> None:
    async with fake_openai_server([THINKING]) as server, served(tmp_path, make(server)) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            stream = await client.responses.create(model="x", input="hi", stream=True)
            events = [event async for event in stream]
        (call,) = calls_of(service, session.session_id)
    final = events[-1]
    assert final.type == "response.completed"
    assert final.response.output_text == "let me look"
    assert final.response.usage is not None
    assert server.requests[-1]["stream_options"] == {"include_usage": True}
    message = call.choices[0].message
    assert (message.reasoning_content, message.content) == ("first the files", "let me look")
    assert [c.function.arguments for c in message.tool_calls or ()] == ['{"command":"ls -l"}']
    assert call.usage is not None
    assert final.response.usage.output_tokens == call.usage.completion_tokens
    if make is hosted:
        assert call.usage == Usage(prompt_tokens=7, completion_tokens=3)
    else:
        sampled = 'first the fileslet me look{"command":"ls -l"}'
        assert call.untrainable is None
        assert call.choices[0].token_ids == list(sampled.encode())
        assert call.choices[0].version_spans in (None, [VersionSpan(len(sampled), None)])


async def test_an_agent_that_does_not_stream_costs_no_spans(tmp_path: Path) -> None:
    async with fake_openai_server(["hello"]) as server, served(tmp_path, hosted(server)) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            await client.chat.completions.create(
                model="x", messages=[{"role": "user", "content": "hi"}]
            )
    assert "stream" not in server.requests[0]
    assert b'"t":"partial"' not in (tmp_path / "journal.log").read_bytes()


async def read_stream(client: openai.AsyncOpenAI, said: list[str]) -> None:
    async for part in await client.chat.completions.create(
        model="x", messages=[{"role": "user", "content": "hi"}], stream=True
    ):
        said += [choice.delta.content or "" for choice in part.choices]


async def test_a_stream_is_tried_again_until_its_first_chunk_and_not_after(tmp_path: Path) -> None:
    broken = stream_reply(chunk({"content": "half "}), cut=True)
    script = [error_reply(503, "busy"), stream_reply(cut=True), broken, "never asked"]
    async with fake_openai_server(script) as server, served(tmp_path, hosted(server)) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            said: list[str] = []
            with pytest.raises(openai.APIError, match="/v1/ m"):
                await read_stream(client, said)
        (call,) = calls_of(service, session.session_id)
    assert "".join(said) == "half "
    assert len(server.requests) == 3
    assert (call.state, call.error_code) == ("failed", "upstream_error")


async def test_a_stream_that_ends_without_a_reason_is_a_failure(tmp_path: Path) -> None:
    short = stream_reply(chunk({"content": "half"}), "[DONE]")
    async with fake_openai_server([short]) as server, served(tmp_path, hosted(server)) as service:
        session = await new_session(service)
        body = {"model": "x", "max_tokens": 5, "stream": True}
        async with raw_agent(service, session.key) as http:
            reply = await http.post(
                "/v1/messages", json={**body, "messages": [{"role": "user", "content": "hi"}]}
            )
    name, data = decoded(reply.content)[-1]
    assert name == "error"
    assert "broke off before its answer was finished" in data["error"]["message"]


async def test_sessions_choose_their_backend_or_get_the_default(tmp_path: Path) -> None:
    async with (
        fake_openai_server(["one"]) as first,
        fake_openai_server(["two"]) as second,
        running_service(
            tmp_path,
            policies={"a": hosted(first), "b": hosted(second)},
            default_backend="a",
        ) as service,
    ):
        said: list[str | None] = []
        for spec in (SessionSpec(), SessionSpec(backend="b"), SessionSpec(backend="a")):
            session = await new_session(service, spec)
            async with agent(session.base_url) as client:
                reply = await client.chat.completions.create(
                    model="x", messages=[{"role": "user", "content": "hi"}]
                )
            said.append(reply.choices[0].message.content)
    assert said == ["one", "two", "one"]


async def test_a_default_backend_that_does_not_exist_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="default_backend: expected one of queue, got 'b'"):
        async with running_service(tmp_path, default_backend="b"):
            pass


async def test_many_streams_at_once_each_get_their_own_words(tmp_path: Path) -> None:
    async with (
        fake_openai_server([THINKING]) as server,
        served(tmp_path, hosted(server)) as service,
    ):
        session = await new_session(service)
        async with agent(session.base_url) as client:

            async def ask(number: int) -> str:
                async with client.chat.completions.stream(
                    model="x", messages=[{"role": "user", "content": f"{number}"}], tools=[BASH]
                ) as stream:
                    final = await stream.get_final_completion()
                return final.choices[0].message.content or ""

            answers = await asyncio.gather(*(ask(number) for number in range(20)))
    assert answers == ["let me look"] * 20
