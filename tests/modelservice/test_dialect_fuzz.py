"""No input makes a dialect raise anything but a RockError, and what it takes it can also answer."""

import copy
import json
import random
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rock.errors import RockError
from rock.modelservice.dialects import BY_NAME
from rock.modelservice.dialects.auxiliary import classify
from rock.modelservice.dialects.base import Dialect, Exchange, History, Parsed
from rock.modelservice.dialects.counting import estimate_tokens
from rock.modelservice.wire import AssistantMessage, CanonicalRequest
from tests.modelservice.golden import answer, call

TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBO"}
GOLDEN: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "t", "content": "ok"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": TOOL}}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 5,
        "n": 1,
        "stop": ["x"],
        "logprobs": True,
        "response_format": {"type": "json_object"},
    },
    "completions": {
        "model": "m",
        "prompt": ["def f("],
        "max_tokens": 5,
        "n": 2,
        "best_of": 2,
        "logprobs": 1,
        "echo": False,
        "stop": "x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "seed": 1,
        "suffix": "s",
    },
    "anthropic": {
        "model": "m",
        "max_tokens": 5,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: a"},
            {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, None]}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "is_error": True,
                        "content": [
                            {"type": "text", "text": "no"},
                            {"type": "image", "source": IMAGE},
                            {"type": "tool_reference", "tool_name": "x"},
                        ],
                    },
                    {
                        "type": "document",
                        "title": "t",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                    },
                ],
            },
        ],
        "tools": [
            {"name": "f", "input_schema": TOOL, "strict": True},
            {"type": "text_editor_20250728", "name": "edit"},
        ],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": TOOL}},
        "metadata": {"user_id": "u"},
        "stop_sequences": ["x"],
        "top_k": 4,
        "stream": True,
    },
    "responses": {
        "model": "m",
        "instructions": "s",
        "previous_response_id": "resp_c1",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "custom_tool_call", "call_id": "2", "name": "c", "input": "x"},
            {"type": "local_shell_call", "call_id": "3", "action": {"type": "exec"}},
            {"type": "apply_patch_call", "call_id": "4", "operation": {"type": "delete_file"}},
            {"type": "function_call_output", "call_id": "1", "output": "ok"},
            {
                "type": "custom_tool_call_output",
                "call_id": "2",
                "output": [{"type": "input_image", "image_url": "data:,"}],
            },
            {"type": "local_shell_call_output", "id": "3", "output": "ok"},
            {"type": "apply_patch_call_output", "call_id": "4", "status": "failed"},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": TOOL, "strict": False},
            {"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "d"}]},
            {
                "type": "custom",
                "name": "c",
                "format": {"type": "grammar", "syntax": "lark", "definition": "x"},
            },
            {"type": "local_shell"},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": TOOL}},
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 5,
        "stream": True,
    },
}
JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    10**400,
    1e308,
    "",
    "\x00",
    "é\U0001f600",
    "text",
    "type",
    "x" * 3000,
    [],
    [[]],
    [None],
    {},
    {"type": "text"},
    {"type": None},
    {"": {"": {}}},
]
ANSWERS = [
    answer(None, calls=[call(f"t{i}", name, arguments)])
    for i, (name, arguments) in enumerate(
        [
            ("f", '{"a": 1}'),
            ("c", '{"input":"x"}'),
            ("c", "raw"),
            ("n__d", "{}"),
            ("local_shell", '{"command":["ls"]}'),
            ("edit", "{"),
            ("f", "[" * 5000),
        ]
    )
] + [answer("hello", reasoning="hm"), answer("", finish="length", usage=None)]


class OneCall:
    """A session that has answered the call `c1`."""

    def exchange(self, call_id: str) -> Exchange | None:
        asked = CanonicalRequest(
            model="m", messages=[msgspec.Raw(b'{"role":"user","content":"q"}')]
        )
        return Exchange(asked, AssistantMessage(content="a")) if call_id == "c1" else None


HISTORY: History = OneCall()


def survives(dialect: Dialect, body: bytes, answers: int = 1) -> bool:
    """Whether the body was taken; raises if anything but a RockError comes out."""
    try:
        parsed = dialect.parse(body, {}, HISTORY)
    except RockError as exc:
        refusal = exc
    else:
        answered(parsed, answers)
        return True
    reply = dialect.error(refusal)
    assert 400 <= reply.status < 500
    assert refusal.message
    msgspec.json.decode(reply.body)
    return False


def answered(parsed: Parsed, answers: int) -> None:
    for message in parsed.request.messages:
        assert isinstance(msgspec.json.decode(message, type=dict[str, msgspec.Raw]), dict)
    assert estimate_tokens(parsed.request) >= 1
    classify(parsed.request, {})
    for given_answer in ANSWERS[:answers]:
        msgspec.json.decode(parsed.renderer.reply(given_answer))
        assert b"".join(parsed.renderer.stream("c1").answer(given_answer))


Place = tuple[Any, Any]
"""A container and a key or index in it."""


def places(value: Any) -> list[Place]:
    """Every place below the top, so that deep ones are as likely to be hit as any."""
    keys: list[Any]
    if isinstance(value, dict):
        keys = list(cast("dict[str, Any]", value))
    elif isinstance(value, list):
        keys = list(range(len(cast("list[Any]", value))))
    else:
        return []
    known: list[Place] = []
    for key in keys:
        known += [(value, key), *places(value[key])]
    return known


def mutate(rng: random.Random, body: dict[str, Any]) -> None:
    """Change one place of a JSON value."""
    if not (known := places(body)):
        return
    container, key = rng.choice(known)
    change = rng.random()
    if change < 0.15:
        del container[key]
    elif change < 0.3:
        other, place = rng.choice(known)
        container[key] = copy.deepcopy(other[place])
    elif change < 0.4 and isinstance(container, list):
        cast("list[Any]", container).insert(key, copy.deepcopy(rng.choice(JUNK)))
    elif change < 0.5 and isinstance(container, dict):
        container[rng.choice(["type", "role", "content", "new"])] = copy.deepcopy(rng.choice(JUNK))
    else:
        container[key] = copy.deepcopy(rng.choice(JUNK))


def damaged(rng: random.Random, body: bytes) -> bytes:
    """The same bytes with one run of them changed."""
    start = rng.randrange(len(body))
    end = min(len(body), start + rng.randrange(12))
    patch = rng.choice(
        [b"", b"\xff", b"\\ud800", b'"', b"{", b"[" * 2000, b"NaN", b"1e999", b"null"]
    )
    return body[:start] + patch + body[end:]


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_the_golden_bodies_are_taken_and_answered_in_every_way(name: str) -> None:
    body = msgspec.json.encode(GOLDEN[name])
    assert survives(BY_NAME[name], body, answers=len(ANSWERS))


def fuzz(name: str, seed: int, rounds: int) -> tuple[int, int]:
    """(bodies taken, bodies tried)."""
    rng = random.Random(seed)
    golden = GOLDEN[name]
    taken = 0
    for number in range(rounds):
        changed = copy.deepcopy(golden)
        for _ in range(rng.randint(1, 3)):
            mutate(rng, changed)
        body = json.dumps(changed).encode()
        if number % 4 == 0:
            body = damaged(rng, body)
        try:
            taken += survives(BY_NAME[name], body, answers=rng.randint(1, len(ANSWERS)))
        except BaseException:
            print(f"seed {seed}, input {number}: {body[:2000]!r}")  # noqa: T201 - shown on failure
            raise
    return taken, rounds


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_mutated_bodies_end_in_an_answer_or_a_refusal(name: str) -> None:
    taken, tried = fuzz(name, seed=1, rounds=500)
    assert 0 < taken < tried


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_thousands_of_mutated_bodies_end_in_an_answer_or_a_refusal(name: str) -> None:
    """`make fuzz` sends more of them, through a socket."""
    taken, tried = fuzz(name, seed=2, rounds=3000)
    assert tried == 3000
    assert 0 < taken < tried


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(GOLDEN)), st.binary() | JSON, st.data())
def test_arbitrary_values_end_in_an_answer_or_a_refusal(
    name: str, value: Any, data: st.DataObject
) -> None:
    if isinstance(value, bytes):
        survives(BY_NAME[name], value)
        return
    field = data.draw(st.sampled_from(sorted(GOLDEN[name])))
    body = json.dumps({**GOLDEN[name], field: value}).encode()
    survives(BY_NAME[name], body)
