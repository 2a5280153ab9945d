"""The built-in policies against a local server that fails like a hosted model."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rock import process
from rock.config import inherited_environment
from rock.errors import BadRequest, ContextLengthExceeded, UpstreamError, UpstreamUnauthorized
from rock.modelservice.planes.plane import Reply
from rock.modelservice.policies.hosted import Retries
from rock.modelservice.policies.litellm import LitellmPolicy
from rock.modelservice.policies.openai import OpenAIPolicy
from rock.modelservice.policies.scripted import END_OF_MESSAGE, ScriptedPolicy, tool_call
from rock.modelservice.wire import CanonicalRequest, Completion, Lease, Parent, Usage
from rock.testing.fake_engine import error_reply, fake_openai_server

QUICK = Retries(attempts=4, total_seconds=20.0, first_wait_seconds=0.01)
Make = Callable[[str], Any]


def lease(*messages: dict[str, Any], parent: Parent | None = None, **fields: Any) -> Lease:
    raw = [Raw(msgspec.json.encode(m)) for m in messages or ({"role": "user", "content": "hi"},)]
    return Lease(
        lease_id="l1",
        call_id="c1",
        session_id="s1",
        delivery=1,
        expires_in_seconds=60.0,
        request=CanonicalRequest(model="asked", messages=raw, **fields),
        parent=parent,
    )


def litellm(url: str) -> LitellmPolicy:
    return LitellmPolicy("openai/unpriced-model", api_base=url, api_key="k", retries=QUICK)


def openai(url: str) -> OpenAIPolicy:
    return OpenAIPolicy("unpriced-model", base_url=url, api_key="k", retries=QUICK)


async def ask(policy: LitellmPolicy | OpenAIPolicy, asked: Lease) -> Completion:
    async with policy:
        [completion] = await policy([asked])
    return completion


both = pytest.mark.parametrize("make", [litellm, openai])


@both
async def test_busy_and_broken_servers_are_tried_again(make: Make) -> None:
    busy = error_reply(429, "slow down", headers={"Retry-After": "0.3"})
    broken = Reply(502, b"<html>bad gateway</html>", content_type="text/html")
    async with fake_openai_server([busy, error_reply(500, "oops"), broken, "hello"]) as server:
        started = time.monotonic()
        completion = await ask(make(server.url), lease(temperature=0.5, max_tokens=9))
        waited = time.monotonic() - started
    assert completion.lease_id == "l1"
    assert completion.choices[0].message.content == "hello"
    assert completion.usage == Usage(prompt_tokens=7, completion_tokens=3, cost_usd=None)
    assert len(server.requests) == 4
    assert waited >= 0.3
    sent = server.requests[-1]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("unpriced-model", 0.5, 9)
    assert sent["messages"] == [{"role": "user", "content": "hi"}]


@both
async def test_a_refused_key_is_not_tried_again_and_says_so(make: Make) -> None:
    async with fake_openai_server([error_reply(401, "Incorrect API key provided")]) as server:
        with pytest.raises(UpstreamUnauthorized, match="Incorrect API key provided"):
            await ask(make(server.url), lease())
    assert len(server.requests) == 1


@both
async def test_a_server_that_stays_broken_ends_the_call_after_the_bound(make: Make) -> None:
    async with fake_openai_server([error_reply(503, "overloaded")]) as server:
        with pytest.raises(UpstreamError, match="overloaded"):
            await ask(make(server.url), lease())
    assert len(server.requests) == 4


@both
async def test_a_request_that_the_model_refuses_keeps_its_meaning(make: Make) -> None:
    full = "This model's maximum context length is 10 tokens. However, you sent more."
    for message, expected in ((full, ContextLengthExceeded), ("no such tool", BadRequest)):
        async with fake_openai_server([error_reply(400, message)]) as server:
            with pytest.raises(expected, match=message[:20]):
                await ask(make(server.url), lease())
        assert len(server.requests) == 1


async def test_no_connection_is_an_upstream_error() -> None:
    with pytest.raises(UpstreamError, match="unpriced-model"):
        await ask(openai("http://127.0.0.1:9/v1"), lease())


async def test_a_key_that_is_missing_is_not_waited_for() -> None:
    code = (
        "import asyncio\n"
        "from rock.errors import UpstreamUnauthorized\n"
        "from rock.modelservice.policies.litellm import LitellmPolicy\n"
        "from tests.modelservice.test_policies import ask, lease\n"
        "try: asyncio.run(ask(LitellmPolicy('openai/unpriced-model'), lease()))\n"
        "except UpstreamUnauthorized as exc: print(exc.message)\n"
    )
    environment = {
        name: value for name, value in inherited_environment().items() if "OPENAI" not in name
    }
    child = await process.start([sys.executable, "-c", code], env=environment, stdout=process.PIPE)
    # By default failures that may pass are tried again for five minutes.
    out, _ = await asyncio.wait_for(child.communicate(), timeout=40)
    assert b"there is no key for the model's provider" in out


async def test_a_priced_model_has_a_cost() -> None:
    async with fake_openai_server(["hello"]) as server:
        policy = LitellmPolicy("gpt-4o-mini", api_base=server.url, api_key="k", retries=QUICK)
        completion = await ask(policy, lease())
    assert completion.usage is not None
    assert completion.usage.cost_usd is not None
    assert 0 < completion.usage.cost_usd < 0.01


async def test_without_litellm_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['litellm'] = None\n"
        "from rock.errors import ConfigError\n"
        "from rock.modelservice.backends.config import policies_of\n"
        "try: policies_of(['litellm:m'])\n"
        "except ConfigError as exc: print(exc.message)\n"
    )
    child = await process.start(
        [sys.executable, "-c", code], env=inherited_environment(), stdout=process.PIPE
    )
    out, _ = await child.communicate()
    assert b"rock-rollout[litellm]" in out


async def test_a_script_is_read_by_turn() -> None:
    policy = ScriptedPolicy(["one", tool_call("bash", command="ls")])
    user, said = {"role": "user", "content": "x"}, {"role": "assistant", "content": "one"}
    [first] = await policy([lease(user)])
    [second] = await policy([lease(user, said, user)])
    assert first.choices[0].message.content == "one"
    calls = second.choices[0].message.tool_calls or []
    assert calls[0].function.arguments == '{"command":"ls"}'
    assert second.choices[0].finish_reason == "tool_calls"


async def test_scripted_tokens_extend_the_parents_exactly() -> None:
    user = {"role": "user", "content": "x"}
    echo: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    policy = ScriptedPolicy(lambda _: "ok")
    parent = Parent(call_id="c0", choice=0, messages=2, token_ids=[9, 9, END_OF_MESSAGE])
    [completion] = await policy([lease(user, echo, user, parent=parent)])
    new = [*b'{"role":"user","content":"x"}', END_OF_MESSAGE]
    assert completion.prompt_token_ids == [9, 9, END_OF_MESSAGE, *new]
    [choice] = completion.choices
    ids = choice.token_ids or []
    assert ids == [*b'{"content":"ok"}', END_OF_MESSAGE]
    assert len(choice.logprobs or []) == len(ids)
