"""What no answer should be, from engines and from policies in Python: refused, and never journalled."""

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.modelservice.client.speaking import Voice
from rock.modelservice.planes.plane import Reply
from rock.modelservice.policies.openai import OpenAIPolicy
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    ToolCall,
    ToolFunction,
    Usage,
    VersionSpan,
)
from rock.modelservice.wire.partial import ToolCallDelta
from rock.testing import ScriptedPolicy
from rock.testing.fake_engine import chunk, completion_reply, fake_openai_server, stream_reply
from rock.testing.service import running_service
from tests.modelservice.live import HELLO, new_session, raw_agent
from tests.modelservice.test_openai_backend import QUICK, calls_of

NOT_WHAT_THEY_SHOULD_BE: list[dict[str, Any]] = [
    {"reasoning_content": {"a": 1}},
    {"content": 7},
    {"tool_calls": [{"id": 7, "function": {"name": "f", "arguments": "{}"}}]},
    {"tool_calls": [{"id": "c", "function": {"name": 5, "arguments": "{}"}}]},
    {"tool_calls": [{"id": "c", "function": {"name": None, "arguments": "{}"}}]},
    {"tool_calls": "x"},
]


def whole(message: dict[str, Any], **more: Any) -> Any:
    """A chat completion with this in its message, and `more` beside its choices."""
    body = json.loads(completion_reply("hello").body)
    body["choices"][0]["message"] |= message
    return Reply(200, json.dumps({**body, **more}).encode())


def hosted(url: str) -> OpenAIPolicy:
    return OpenAIPolicy("m", base_url=url, api_key="k", retries=QUICK)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engines_nonsense_fails_its_call_and_the_service_starts_again(
    tmp_path: Path, stream: bool
) -> None:
    script: list[Any] = [whole(message) for message in NOT_WHAT_THEY_SHOULD_BE]
    if stream:
        script = [
            stream_reply(chunk(message), chunk({}, "stop"), "[DONE]")
            for message in NOT_WHAT_THEY_SHOULD_BE
        ]
    async with (
        fake_openai_server([*script, "well"]) as server,
        running_service(
            tmp_path,
            policies={"m": hosted(server.url)},
            default_backend="m",
            stream_grace_seconds=5.0,
        ) as service,
    ):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            for message in script:
                reply = await http.post("/v1/chat/completions", json={**HELLO, "stream": stream})
                assert reply.status_code == 502, (message, reply.text)
                assert reply.json()["error"]["code"] == "upstream_error"
            reply = await http.post("/v1/chat/completions", json=HELLO)
            assert reply.json()["choices"][0]["message"]["content"] == "well"
        before = calls_of(service, session.session_id)
    async with running_service(tmp_path) as service:
        after = calls_of(service, session.session_id)
    assert [call.state for call in after] == ["failed"] * len(script) + ["delivered"]
    assert after == before


async def test_what_engines_write_otherwise_is_kept(tmp_path: Path) -> None:
    calls = [{"id": "c", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}]
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    streamed = [{"index": 0, **calls[0]}]
    script: list[Any] = [
        whole({"tool_calls": calls}),
        whole({"content": parts}),
        stream_reply(chunk({"content": parts}), chunk({"tool_calls": streamed}), chunk({}, "stop")),
    ]
    async with (
        fake_openai_server(script) as server,
        running_service(
            tmp_path,
            policies={"m": hosted(server.url)},
            default_backend="m",
        ) as service,
    ):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            for stream in (False, False, True):
                await http.post("/v1/chat/completions", json={**HELLO, "stream": stream})
        called, said, both = [
            call.choices[0].message for call in calls_of(service, session.session_id)
        ]
    function = ToolFunction("f", '{"a":[1,"é"]}')
    assert called.tool_calls == [ToolCall(function, "c")] == both.tool_calls
    assert said.content == "hello" == both.content


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "many", "completion_tokens": 3},
        {"prompt_tokens": 7.5, "completion_tokens": 3},
        {"prompt_tokens": -7, "completion_tokens": 3},
        {"prompt_tokens": 2**63, "completion_tokens": 2**63},
        {"prompt_tokens": True, "completion_tokens": 3},
        [7, 3],
    ],
)
async def test_usage_that_no_count_is_means_unknown(usage: Any, tmp_path: Path) -> None:
    async with (
        fake_openai_server([whole({}, usage=usage)]) as server,
        running_service(
            tmp_path, policies={"m": hosted(server.url)}, default_backend="m"
        ) as service,
    ):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            reply = await http.post("/v1/chat/completions", json=HELLO)
        (call,) = calls_of(service, session.session_id)
    assert reply.json()["choices"][0]["message"]["content"] == "hello"
    assert "usage" not in reply.json()
    assert call.usage is None


def odd_completions(lease_id: str) -> list[Completion]:
    good = AssistantMessage(content="x")
    number: Any = 7
    return [
        Completion(lease_id, [Choice(AssistantMessage(content=number), "stop")]),
        Completion(lease_id, [Choice(good, number)]),
        Completion(lease_id, number),
        Completion(lease_id, [Choice(good, "stop", token_ids=[number, "8"], logprobs=[-1, -1])]),  # pyright: ignore[reportArgumentType]
        Completion(lease_id, [Choice(good, "stop", version_spans=[VersionSpan(1, 2**63)])]),
        Completion(lease_id, [Choice(good, "stop")], prompt_token_ids=number),
        Completion(lease_id, [Choice(good, "stop")], usage=Usage(1.5, 2)),  # pyright: ignore[reportArgumentType]
        Completion(lease_id, [Choice(good, "stop")], usage=Usage(1, 2, cached_tokens=-1)),
        Completion(lease_id, [Choice(good, "stop")], usage=Usage(2**63, 2)),
        Completion(lease_id, [Choice(good, "stop")], usage=Usage(1, 2, cost_usd=float("nan"))),
        Completion(lease_id, [Choice(good, "stop")], policy_version=2**64),
        Completion(lease_id, [Choice(AssistantMessage(content="\ud800"), "stop")]),
    ]


async def test_a_python_policys_nonsense_fails_its_call_and_the_service_starts_again(
    tmp_path: Path,
) -> None:
    count = len(odd_completions(""))
    asked: list[str] = []

    async def policy(leases: list[Lease]) -> list[Completion]:
        asked.extend(lease.lease_id for lease in leases)
        return [odd_completions(lease.lease_id)[len(asked) - 1] for lease in leases]

    async with running_service(tmp_path, policies={"p": policy}, default_backend="p") as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            for number in range(count):
                reply = await http.post("/v1/chat/completions", json=HELLO)
                assert reply.status_code == 502, (number, reply.text)
                assert "the completion was refused" in reply.json()["error"]["message"]
    async with running_service(tmp_path) as service:
        after = calls_of(service, session.session_id)
    assert [call.state for call in after] == ["failed"] * count


class OddSpeaker(ScriptedPolicy):
    """Says one span that is none."""

    def __init__(self, **span: Any) -> None:
        super().__init__(["x"])
        self._span = span

    async def speak(self, lease: Lease, voice: Voice) -> Completion:
        await voice.say(**self._span)
        return (await self([lease]))[0]


@pytest.mark.parametrize(
    "span",
    [
        {"content": 7},
        {"content": "\ud800"},
        {"content": "x", "token_ids": ["1"], "logprobs": [-1.0]},
        {"content": "x", "policy_version": 2**63},
        {"tool_calls": [ToolCallDelta(0, {"a": 1}, "f")]},  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_python_policys_odd_span_is_refused(span: Any, tmp_path: Path) -> None:
    policy = OddSpeaker(**span)
    async with running_service(tmp_path, policies={"p": policy}, default_backend="p") as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            reply = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
            assert "error" in reply.text
    async with running_service(tmp_path) as service:
        (call,) = calls_of(service, session.session_id)
    assert call.state == "failed"


def worded(text: str) -> dict[str, Any]:
    """What an engine gives with a chunk that says `text`."""
    content = [{"token": "?", "logprob": -0.5} for _ in text.encode()]
    return {"token_ids": list(text.encode()), "logprobs": {"content": content}}


def counted(count: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": count}
    return {**chunk({}), "choices": [], "usage": usage}


FIRST = {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2, 3]}
BARE = "the engine streamed a part without token_ids"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        pytest.param(
            [chunk({"content": "one "}, **worded("one ")), chunk({"content": "two"}), counted(4)],
            BARE,
            id="at the end",
        ),
        pytest.param(
            [chunk({"content": "one "}), chunk({"content": "two"}, **worded("two")), counted(3)],
            BARE,
            id="at the beginning",
        ),
        pytest.param(
            [
                chunk({"content": "on"}, **worded("on")),
                chunk({"content": "e t"}),
                chunk({"content": "wo"}, **worded("wo")),
            ],
            BARE,
            id="in the middle, uncounted",
        ),
        pytest.param(
            [chunk({"content": "one two"}, **worded("one")), counted(7)],
            "the engine counted 7 tokens and gave 3 ids",
            id="in silence",
        ),
        pytest.param(
            [
                chunk({"content": "one two"}, **worded("one")),
                chunk({"content": ""}, **worded(" two")),
                counted(7),
            ],
            None,
            id="late, but all",
        ),
    ],
)
async def test_ids_that_an_engine_loses_midway_make_the_answer_untrainable(
    events: list[Any], reason: str | None, tmp_path: Path
) -> None:
    lossy = stream_reply(FIRST, *events, chunk({}, "stop"), "[DONE]")
    async with fake_openai_server(["probe", "probe", lossy]) as server:
        policy = OpenAIPolicy(
            "m", base_url=server.url, api_key="k", tokens="required", retries=QUICK
        )
        async with running_service(
            tmp_path, policies={"m": policy}, default_backend="m", stream_grace_seconds=0.05
        ) as service:
            session = await new_session(service)
            async with raw_agent(service, session.key) as http:
                reply = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
            (call,) = calls_of(service, session.session_id)
    assert "[DONE]" in reply.text
    assert call.choices[0].message.content == "one two"
    assert (call.state, call.untrainable) == ("delivered", reason)
    assert (call.choices[0].token_ids is None) is (reason is not None)


async def test_ids_that_an_engine_loses_in_a_whole_answer_make_it_untrainable(
    tmp_path: Path,
) -> None:
    body = json.loads(completion_reply("hello").body)
    body["choices"][0] |= worded("hel")
    usage = {"prompt_tokens": 1, "completion_tokens": 5}
    lossy = Reply(200, json.dumps({**body, "prompt_token_ids": [1], "usage": usage}).encode())
    async with fake_openai_server(["probe", "probe", lossy]) as server:
        policy = OpenAIPolicy(
            "m", base_url=server.url, api_key="k", tokens="required", retries=QUICK
        )
        async with running_service(
            tmp_path, policies={"m": policy}, default_backend="m"
        ) as service:
            session = await new_session(service)
            async with raw_agent(service, session.key) as http:
                await http.post("/v1/chat/completions", json=HELLO)
            (call,) = calls_of(service, session.session_id)
    assert call.untrainable == "the engine counted 5 tokens and gave 3 ids"


async def test_an_engine_whose_ids_are_fewer_than_it_counts_is_refused_at_the_start() -> None:
    body = json.loads(completion_reply("hello").body)
    body["choices"][0] |= worded("hel")
    usage = {"prompt_tokens": 1, "completion_tokens": 5}
    lossy = Reply(200, json.dumps({**body, "prompt_token_ids": [1], "usage": usage}).encode())
    async with fake_openai_server([lossy]) as server:
        policy = OpenAIPolicy(
            "m", base_url=server.url, api_key="k", tokens="required", retries=QUICK
        )
        with pytest.raises(ConfigError, match="counted 5 tokens and gave 3 ids"):
            async with policy:
                pass


async def test_half_a_character_in_an_engines_stream_is_the_engines_fault(tmp_path: Path) -> None:
    halves = stream_reply(chunk({"content": "\ud83c"}), chunk({}, "stop"), "[DONE]")
    async with (
        fake_openai_server([halves]) as server,
        running_service(
            tmp_path, policies={"m": hosted(server.url)}, default_backend="m"
        ) as service,
    ):
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            reply = await http.post("/v1/chat/completions", json={**HELLO, "stream": True})
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "upstream_error"
