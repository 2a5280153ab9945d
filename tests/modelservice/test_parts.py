"""What a worker says about its tokens (which message, which part of an answer) is checked, kept and
found in the rows again, span by span."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rock.modelservice import wire
from rock.modelservice.policies.sampling import Sampled, SamplingPolicy
from rock.modelservice.render import ChatTokenizer, TokenRenderer
from rock.modelservice.service.service import ModelService, Session
from rock.modelservice.wire import MessageTokens, Part
from tests.modelservice.fixtures import (
    ask,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    user,
)
from tests.modelservice.render.leases import TOOLS, chat_of

CALLS = (
    "<think>\nWhy\n</think>\n\nLook.\n"
    '<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "run", "arguments": {"command": "pwd"}}\n</tool_call><|im_end|>'
)


class Says:
    """An engine that says one text after the other."""

    def __init__(self, chat: ChatTokenizer, *texts: str) -> None:
        self._answers = [chat.encode(text) for text in texts]

    async def sample(self, ids: Sequence[int], request: wire.CanonicalRequest) -> list[Sampled]:
        answer = self._answers.pop(0)
        return [Sampled(answer, [-0.5] * len(answer), policy_version=1)]


async def turn(
    service: ModelService, session: Session, policy: SamplingPolicy, *messages: Any
) -> wire.AssistantMessage:
    call = await service.submit(session, incoming(*messages, tools=TOOLS))
    (result,) = await complete(service, *(await policy(await claim(service))))
    assert (result.error, result.untrainable) == (None, None)
    answer = await call.answer()
    service.sent(call)
    return answer.choices[0].message


def spelled(chat: ChatTokenizer, row: wire.TokenRow) -> list[tuple[str, Any, Any, str]]:
    """Kind, message, part (of a call with its number) and text of each span of a row."""
    return [
        (
            span.kind,
            span.message,
            (span.part, *span.tool_calls) if span.tool_calls else span.part,
            chat.decode(row.token_ids[span.start : span.end]),
        )
        for span in row.spans
    ]


async def test_a_row_says_what_each_of_its_tokens_is(tmp_path: Path) -> None:
    chat = chat_of("chatml")
    policy = SamplingPolicy(Says(chat, CALLS, "Done.<|im_end|>"), TokenRenderer(chat), "hermes")
    async with running(tmp_path) as service:
        session = await open_session(service)
        said = await turn(service, session, policy, user("What is there?"))
        assert said.tool_calls is not None
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"result {number}"}
            for number, call in enumerate(said.tool_calls)
        ]
        # The client writes the arguments anew and drops the reasoning.
        calls = [
            {"id": call.id, "type": "function", "function": {"name": "run", "arguments": "{}"}}
            for call in said.tool_calls
        ]
        echo = {"role": "assistant", "content": "Look.", "tool_calls": calls}
        await turn(service, session, policy, user("What is there?"), echo, *results)
        (row,) = service.trajectory(session.id).rows
    found = spelled(chat, row)
    assert [(kind, message, part) for kind, message, part, _ in found] == [
        ("prompt", 0, None),  # with the template's system message and tools
        ("prompt", 1, None),  # what opens the answer
        ("sampled", 1, "markup"),
        ("sampled", 1, "reasoning"),
        ("sampled", 1, "markup"),
        ("sampled", 1, "content"),
        ("sampled", 1, "markup"),
        ("sampled", 1, ("tool_call", 0)),
        ("sampled", 1, "markup"),
        ("sampled", 1, ("tool_call", 1)),
        ("sampled", 1, "markup"),
        ("prompt", 1, None),  # the line break after it
        ("prompt", 2, None),
        ("prompt", 3, None),
        ("prompt", 4, None),
        ("sampled", 4, "content"),
        ("sampled", 4, "markup"),
    ]
    texts = [text for *_, text in found]
    assert texts[0].endswith("<|im_start|>user\nWhat is there?<|im_end|>\n")
    assert texts[5].strip() == "Look."
    assert '"pwd"' in texts[9]
    assert "result 0" in texts[12]
    assert "result 1" in texts[13]
    assert "".join(texts) == chat.decode(row.token_ids)
    async with running(tmp_path) as service:
        assert service.trajectory(session.id).rows == [row]


async def test_a_row_that_begins_with_others_answers_names_their_messages(tmp_path: Path) -> None:
    """A second call that goes on from the same answer has all before it masked, and still told apart."""
    chat = chat_of("chatml")
    texts = ["One.<|im_end|>", "Two.<|im_end|>", "Three.<|im_end|>"]
    policy = SamplingPolicy(Says(chat, *texts), TokenRenderer(chat), "hermes")
    async with running(tmp_path) as service:
        session = await open_session(service)
        history = [user("hi"), {"role": "assistant", "content": "One."}]
        await turn(service, session, policy, user("hi"))
        await turn(service, session, policy, *history, user("left"))
        await turn(service, session, policy, *history, user("right"))
        _, forked = service.trajectory(session.id).rows
    found = spelled(chat, forked)
    assert [(kind, message) for kind, message, *_ in found] == [
        ("prompt", 0),
        ("prompt", 1),
        ("prompt", 2),
        ("prompt", 3),
        ("sampled", 3),
        ("sampled", 3),
    ]
    assert found[1][3] == "<|im_start|>assistant\nOne.<|im_end|>\n"
    assert "right" in found[2][3]


@pytest.mark.parametrize(
    ("parts", "prompt_parts", "reason"),
    [
        ([Part(tokens=1, kind="content")], None, "parts cover 1 of 2 token_ids"),
        ([Part(tokens=3, kind="content")], None, "parts cover 3 of 2 token_ids"),
        (
            [Part(tokens=0, kind="markup"), Part(tokens=2, kind="content")],
            None,
            "parts cover 2 of 2 token_ids",
        ),
        (
            [Part(tokens=2, kind="tool_call", tool_calls=[0])],
            None,
            "parts name tool calls [0] of 0",
        ),
        ([Part(tokens=2, kind="tool_call")], None, "parts name tool calls where there are none"),
        (
            None,
            [MessageTokens(tokens=4)],
            "prompt_parts cover 4 of 3 prompt_token_ids",
        ),
        (
            None,
            [MessageTokens(tokens=1, message=1), MessageTokens(tokens=1, message=0)],
            "prompt_parts name messages [1, 0] of 1",
        ),
        (None, [MessageTokens(tokens=1, message=2)], "prompt_parts name messages [2] of 1"),
    ],
)
async def test_what_does_not_add_up_is_untrainable_and_counted(
    tmp_path: Path,
    parts: list[Part] | None,
    prompt_parts: list[MessageTokens] | None,
    reason: str,
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, user("hi"))
        (lease,) = await claim(service)
        done = completion(lease)
        done.choices[0].parts = parts
        done.prompt_parts = prompt_parts
        (result,) = await complete(service, done)
        assert result.untrainable == reason
        trajectory = service.trajectory(session.id)
        assert (trajectory.untrainable, trajectory.rows) == ({reason: 1}, [])


async def test_parts_and_versions_are_cut_where_either_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        await ask(service, session, user("hi"))
        (lease,) = await claim(service)
        done = completion(lease, ids=[10, 11, 12, 13], logprobs=[-1.0] * 4)
        done.choices[0].parts = [Part(tokens=1, kind="reasoning"), Part(tokens=3, kind="content")]
        done.choices[0].version_spans = [wire.VersionSpan(2, 1), wire.VersionSpan(2, 2)]
        done.prompt_parts = [MessageTokens(tokens=2, message=0)]
        await complete(service, done)
        (row,) = service.trajectory(session.id).rows
    assert [
        (span.start, span.end, span.message, span.part, span.policy_version) for span in row.spans
    ] == [
        (0, 1, None, None, None),
        (1, 3, 0, None, None),
        (3, 4, 1, "reasoning", 1),
        (4, 5, 1, "content", 1),
        (5, 7, 1, "content", 2),
    ]
