"""Usage and token counts are what an engine counted, or unknown, or called an estimate."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rock.modelservice.client.speaking import Voice
from rock.modelservice.render import TokenRenderer
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Choice,
    Completion,
    Lease,
    SessionSpec,
)
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.golden import decoded
from tests.modelservice.live import answering, new_session, raw_agent
from tests.modelservice.render.families import family_directory
from tests.modelservice.test_live_deltas import speaking

MESSAGES: Any = [{"role": "user", "content": "What is in the folder? " * 20}]
TOOLS: Any = [{"name": "run", "input_schema": {"type": "object"}}]
HEADER = "X-Rock-Token-Count"


async def counted(http: httpx.AsyncClient, **fields: Any) -> tuple[int, str]:
    body = {"model": "m", "messages": MESSAGES, **fields}
    reply = await http.post("/v1/messages/count_tokens", json=body)
    assert reply.status_code == 200
    return reply.json()["input_tokens"], reply.headers[HEADER]


async def test_a_count_is_an_estimate_until_an_engine_has_counted_the_same(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, answering(service, ScriptedPolicy(["hello"])):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            _, before = await counted(http, tools=TOOLS)
            asked = {"model": "m", "max_tokens": 5, "messages": MESSAGES, "tools": TOOLS}
            message = (await http.post("/v1/messages", json=asked)).json()
            after = await counted(http, tools=TOOLS)
            _, other = await counted(http)
    assert before == "estimate"
    assert after == (message["usage"]["input_tokens"], "exact")
    assert other == "estimate"


async def test_counts_of_two_dialects_agree_on_the_same_messages(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, answering(service, ScriptedPolicy(["hello"])):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            first = await http.post("/v1/responses", json={"model": "m", "input": "hi"})
            again = await http.post(
                "/v1/responses/input_tokens", json={"model": "m", "input": "hi"}
            )
            later = await http.post(
                "/v1/responses/input_tokens",
                json={"model": "m", "input": "more", "previous_response_id": first.json()["id"]},
            )
    assert again.json()["input_tokens"] == first.json()["usage"]["input_tokens"]
    assert again.headers[HEADER] == "exact"
    assert later.headers[HEADER] == "estimate"
    assert later.json()["input_tokens"] > 0


@pytest.mark.parametrize("spec", [SessionSpec(), SessionSpec(tokenizer="m")])
async def test_a_service_with_the_tokenizer_counts_exactly(
    spec: SessionSpec, tmp_path: Path
) -> None:
    directory = family_directory("chatml")
    async with running_service(tmp_path, tokenizers=f"m={directory}") as service:
        session = await new_session(service, spec)
        async with raw_agent(service, session.key) as http:
            tokens, label = await counted(http)
            image = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
            picture: Any = [{"role": "user", "content": [{"type": "image", "source": image}]}]
            _, of_a_picture = await counted(http, messages=picture)
    raw = [msgspec.Raw(msgspec.json.encode(message)) for message in MESSAGES]
    lease = Lease("", "", "", 1, 1.0, CanonicalRequest(model="m", messages=raw))
    assert (tokens, label) == (len(TokenRenderer.load(directory).prompt(lease).ids), "exact")
    assert of_a_picture == "estimate"


async def streamed_prompt(lease: Lease, voice: Voice) -> Completion:
    ids, logprobs = [10, 11], [-1.0, -1.0]
    await voice.say("hel", token_ids=[10], logprobs=[-1.0], prompt_token_ids=[1, 2, 3, 4])
    choice = Choice(AssistantMessage(content="hello"), token_ids=ids, logprobs=logprobs)
    return Completion(lease.lease_id, [choice], prompt_token_ids=[1, 2, 3, 4])


async def test_a_messages_stream_opens_and_ends_with_true_counts(tmp_path: Path) -> None:
    async with (
        running_service(tmp_path, stream_grace_seconds=0.05) as service,
        speaking(service, streamed_prompt),
    ):
        session = await new_session(service)
        body = {"model": "m", "max_tokens": 5, "messages": MESSAGES, "stream": True}
        async with raw_agent(service, session.key) as http:
            events = dict(decoded((await http.post("/v1/messages", json=body)).content))
    assert events["message_start"]["message"]["usage"]["input_tokens"] == 4
    assert events["message_delta"]["usage"] == {"input_tokens": 4, "output_tokens": 2}


async def untold(leases: list[Lease]) -> list[Completion]:
    return [
        Completion(lease.lease_id, [Choice(AssistantMessage(content="hello"))]) for lease in leases
    ]


async def test_usage_that_nobody_counted_is_unknown_in_every_dialect(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, answering(service, untold):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            chat = await http.post(
                "/v1/chat/completions", json={"model": "m", "messages": MESSAGES}
            )
            text = await http.post("/v1/completions", json={"model": "m", "prompt": "hi"})
            responses = await http.post("/v1/responses", json={"model": "m", "input": "hi"})
            messages = await http.post(
                "/v1/messages", json={"model": "m", "max_tokens": 5, "messages": MESSAGES}
            )
        (call, *_) = service.service.trajectory(session.session_id).calls  # pyright: ignore[reportArgumentType]
    assert "usage" not in chat.json()
    assert "usage" not in text.json()
    assert responses.json()["usage"] is None
    assert messages.json()["usage"] == {}
    assert call.usage is None
