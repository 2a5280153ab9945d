"""Answers whose tokens do not spell their text are untrainable, where worker or session names the
tokenizer; the agent gets them all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rock.errors import BadRequest, ConfigError
from rock.modelservice import wire
from rock.modelservice.policies.sampling import Sampled, SamplingPolicy
from rock.modelservice.render import TokenRenderer
from rock.modelservice.service.spelling import reason_against_text
from tests.modelservice.fixtures import ask, claim, complete, open_session, running, user
from tests.modelservice.render.families import family_directory
from tests.modelservice.render.leases import chat_of

SPELT = '<think>\nWhy\n</think>\n\nLook.\n<tool_call>\n{"name": "run", "arguments": {"any": "thing"}}\n</tool_call>'


def message(content: str | None = "Look.", reasoning: str | None = "Why", tool: str = "run") -> Any:
    call = wire.ToolCall(function=wire.ToolFunction(name=tool, arguments='{"any": "thing"}'))
    return wire.AssistantMessage(content=content, reasoning_content=reasoning, tool_calls=[call])


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral"])
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (message(), None),
        (message(content=None, reasoning=None), None),
        (message(content=" Look.\n"), None),
        (message(content="Look!"), "decoded tokens without the message's content"),
        (message(reasoning="Because"), "decoded tokens without the message's reasoning"),
        (message(tool="walk"), "decoded tokens without the message's tool name"),
    ],
)
def test_the_text_of_a_message_is_looked_for_in_what_its_tokens_spell(
    family: str, said: wire.AssistantMessage, reason: str | None
) -> None:
    chat = chat_of(family)
    assert reason_against_text(chat, chat.encode(SPELT), said) == reason


NESTED: dict[str, Any] = {
    "path": "a\tb/é😀",
    "lines": ["x = 'y'\n  z", "\\\\d"],
    "count": 12,
    "ok": True,
    "half": 0.5,
}


@pytest.mark.parametrize(
    "spelt",
    [
        json.dumps(NESTED),
        json.dumps(NESTED, ensure_ascii=False),
        json.dumps({"name": "run", "arguments": json.dumps(NESTED)}),
        "".join(f"<{key}>\n{value}\n</{key}>" for key, value in NESTED.items() if key != "lines")
        + "\n".join(NESTED["lines"]),
    ],
    ids=["json", "json-unicode", "json-in-json", "tags"],
)
def test_arguments_are_found_in_every_notation_and_another_value_is_not(spelt: str) -> None:
    chat = chat_of("chatml")
    ids = chat.encode(f"run {spelt}")
    lies = [{"count": 13}, {"path": "a/b"}, {"lines": ["x = 'y'\n  z", "w"]}]
    said = [NESTED, *({**NESTED, **lie} for lie in lies)]
    calls = [wire.ToolFunction(name="run", arguments=json.dumps(one)) for one in said]
    messages = [wire.AssistantMessage(tool_calls=[wire.ToolCall(function=one)]) for one in calls]
    reasons = [reason_against_text(chat, ids, one) for one in messages]
    assert reasons == [None] + ["decoded tokens without the message's tool arguments"] * len(lies)


def test_arguments_that_are_no_json_are_looked_for_as_they_are() -> None:
    chat = chat_of("chatml")
    broken = wire.ToolFunction(name="run", arguments='{"any": "thi')
    said = wire.AssistantMessage(tool_calls=[wire.ToolCall(function=broken)])
    assert reason_against_text(chat, chat.encode('run {"any": "thi'), said) is None
    assert reason_against_text(chat, chat.encode('run {"any": "t'), said) is not None


def completion(lease: wire.Lease, text: str, ids: list[int], **more: Any) -> wire.Completion:
    choice = wire.Choice(
        wire.AssistantMessage(content=text), token_ids=ids, logprobs=[-0.5] * len(ids)
    )
    return wire.Completion(lease.lease_id, [choice], prompt_token_ids=[1], policy_version=1, **more)


@pytest.mark.parametrize("who", ["worker", "session", "nobody"])
async def test_a_lie_is_untrainable_and_counted_if_a_tokenizer_is_named(
    tmp_path: Path, who: str
) -> None:
    settings: dict[str, Any] = {"tokenizers": (f"qwen={family_directory('chatml')}",)}
    spec = {"tokenizer": "qwen"} if who == "session" else {}
    named = {"tokenizer": "qwen"} if who == "worker" else {}
    chat = chat_of("chatml")
    untrainable: list[str | None] = []
    async with running(tmp_path, **settings) as service:
        session = await open_session(service, **spec)
        for number, text in enumerate(("Two files.", "No files.")):
            call = await ask(service, session, user(f"hi {number}"))
            (lease,) = await claim(service)
            ids = chat.encode("Two files.<|im_end|>")
            (result,) = await complete(service, completion(lease, text, ids, **named))
            assert result.error is None
            untrainable.append(result.untrainable)
            assert (await call.answer()).choices[0].message.content == text
            service.sent(call)
        expected = None if who == "nobody" else "decoded tokens without the message's content"
        assert untrainable == [None, expected]
        trajectory = service.trajectory(session.id)
        assert trajectory.untrainable == ({expected: 1} if expected else {})
        assert len(trajectory.rows) == (2 if expected is None else 1)
        if expected:
            assert b'"text that the tokens do not spell"' in service.metrics().replace(b"'", b'"')
    async with running(tmp_path, **settings) as service:
        assert service.trajectory(session.id).untrainable == trajectory.untrainable


async def test_a_policy_that_names_its_tokenizer_passes(tmp_path: Path) -> None:
    class Engine:
        async def sample(self, ids: Any, request: Any) -> list[Sampled]:
            answer = renderer.chat.encode(SPELT + "<|im_end|>")
            return [Sampled(answer, [-0.5] * len(answer))]

    renderer = TokenRenderer(chat_of("chatml"))
    policy = SamplingPolicy(Engine(), renderer, "hermes", tokenizer="qwen")
    settings: dict[str, Any] = {"tokenizers": (f"qwen={family_directory('chatml')}",)}
    async with running(tmp_path, **settings) as service:
        session = await open_session(service, tokenizer="qwen")
        await ask(service, session, user("hi"))
        (result,) = await complete(service, *(await policy(await claim(service))))
        assert (result.error, result.untrainable) == (None, None)


async def test_a_tokenizer_that_the_service_does_not_have_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with pytest.raises(BadRequest, match="'qwen' is not one of this service's: none"):
            await open_session(service, tokenizer="qwen")
        session = await open_session(service)
        await ask(service, session, user("hi"))
        (lease,) = await claim(service)
        (result,) = await complete(service, completion(lease, "x", [1], tokenizer="qwen"))
        assert result.error is not None
        assert (result.error.status, result.error.code) == (400, "invalid_request")
        assert "tokenizer" in result.error.message


@pytest.mark.parametrize(
    ("given", "problem"),
    [("qwen", "expected NAME=DIRECTORY"), ("qwen=/nowhere", "no tokenizer.json")],
)
async def test_a_service_does_not_start_without_its_tokenizers(
    tmp_path: Path, given: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        async with running(tmp_path, tokenizers=(given,)):
            pass
