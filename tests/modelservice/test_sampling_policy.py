"""The policy on an engine of token ids: what it samples is what is stored, turn after turn."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from rock.errors import UpstreamError
from rock.modelservice.policies.hosted import Retries
from rock.modelservice.policies.sampling import CompletionsEngine, Sampled, SamplingPolicy
from rock.modelservice.render import TokenRenderer
from rock.modelservice.wire import CanonicalRequest
from tests.modelservice.render.leases import TOOLS, chat_of, lease, result, runs, user

ANSWER = (
    'Look.\n<tool_call>\n{"name": "run", "arguments": {"command" :"ls"}}\n</tool_call><|im_end|>'
)


class SaysTheSame:
    """An engine that always says one thing, and remembers what it was asked."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.seen: list[list[int]] = []

    async def sample(self, ids: Sequence[int], request: CanonicalRequest) -> list[Sampled]:
        self.seen.append(list(ids))
        return [Sampled(self.ids, [-0.5] * len(self.ids), policy_version=3)] * request.n


async def test_the_engine_s_ids_are_completed_and_go_on_in_the_next_prompt() -> None:
    renderer = TokenRenderer(chat_of("chatml"))
    engine = SaysTheSame(renderer.chat.encode(ANSWER))
    policy = SamplingPolicy(engine, renderer, "hermes")
    (first,) = await policy([lease([user("hi")], tools=TOOLS, n=2)])
    assert first.prompt_token_ids == engine.seen[0]
    assert first.policy_version == 3
    assert [choice.token_ids for choice in first.choices] == [engine.ids, engine.ids]
    message = first.choices[0].message
    assert message.content == "Look."
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.arguments == '{"command" :"ls"}'
    assert first.choices[0].finish_reason == "tool_calls"
    sequence = [*engine.seen[0], *engine.ids]
    after = [user("hi"), runs('{"command":"ls"}', "Look."), result("out")]
    await policy([lease(after, after=sequence, covers=2, tools=TOOLS)])
    assert engine.seen[1][: len(sequence)] == sequence


async def test_reasoning_that_the_prompt_opened_is_reasoning() -> None:
    renderer = TokenRenderer(chat_of("chatml"))
    engine = SaysTheSame(renderer.chat.encode("hm\n</think>\n\nTwo.<|im_end|>"))
    (done,) = await SamplingPolicy(engine, renderer, "hermes")([lease([user("say <think>")])])
    assert done.choices[0].message.reasoning_content is None
    opened = renderer.chat.templates["default"] + "{{ '<think>\\n' if add_generation_prompt }}"
    chat = chat_of("chatml")
    changed = TokenRenderer(
        type(chat)(chat.tokenizer, {"default": opened}, chat.names, chat.specials, chat.today, True)
    )
    (done,) = await SamplingPolicy(engine, changed, "hermes")([lease([user("hi")])])
    assert done.choices[0].message.reasoning_content == "hm"


@asynccontextmanager
async def completions_server(
    choices: list[dict[str, Any]], seen: list[dict[str, Any]]
) -> AsyncGenerator[str]:
    """A server that answers `/v1/completions` as inference engines do."""

    async def complete(request: web.Request) -> web.Response:
        seen.append(await request.json())
        body = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
        return web.json_response({**body, "choices": choices})

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def choice(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "text": "x", "finish_reason": "length", **fields}


async def test_an_inference_server_is_asked_for_ids_by_ids() -> None:
    seen: list[dict[str, Any]] = []
    logprobs = {"token_logprobs": [-0.5, -1.0], "tokens": ["a", "b"], "top_logprobs": None}
    answers = [choice(token_ids=[7, 8], logprobs=logprobs)]
    request = CanonicalRequest(model="agent's", messages=[], temperature=0.5, max_tokens=2)
    async with (
        completions_server(answers, seen) as url,
        CompletionsEngine("m", base_url=url) as engine,
    ):
        assert await engine.sample([1, 2], request) == [Sampled([7, 8], [-0.5, -1.0], True)]
    assert seen[0]["prompt"] == [1, 2]
    assert (seen[0]["temperature"], seen[0]["max_tokens"], seen[0]["n"]) == (0.5, 2, 1)
    assert seen[0]["return_token_ids"] is True


async def test_a_server_without_ids_is_refused() -> None:
    request = CanonicalRequest(model="m", messages=[])
    retries = Retries(attempts=1)
    async with (
        completions_server([choice()], []) as url,
        CompletionsEngine("m", base_url=url, retries=retries) as engine,
    ):
        with pytest.raises(UpstreamError, match="return_token_ids"):
            await engine.sample([1], request)
