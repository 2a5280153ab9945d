"""Tool calls said in pieces: in order, with ids that stay, binding like text, over restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rock.errors import CallFailed
from rock.modelservice.graph.answer import Delta
from rock.modelservice.service.service import ModelService, Seen
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    ToolCall,
    ToolFunction,
)
from rock.modelservice.wire.partial import Partial, PartialRequest, ToolCallDelta
from rock.testing.clock import FakeClock
from tests.modelservice.fixtures import ask, claim, complete, open_session, running, user

HI = user("hi")


async def send(
    service: ModelService, lease: Lease, index: int, *deltas: ToolCallDelta
) -> str | None:
    """The error's message, or None."""
    partial = Partial(lease.lease_id, index, tool_calls=list(deltas))
    (result,) = (await service.partial(PartialRequest(partials=[partial]))).results
    return None if result.error is None else f"{result.error.code}: {result.error.message}"


def whole(lease: Lease, *calls: tuple[str, str], ids: tuple[str | None, ...] = ()) -> Completion:
    made = [
        ToolCall(ToolFunction(name, arguments), ids[number] if ids else None)
        for number, (name, arguments) in enumerate(calls)
    ]
    return Completion(lease.lease_id, [Choice(AssistantMessage(tool_calls=made), "tool_calls")])


@pytest.mark.parametrize(
    ("before", "deltas", "complaint"),
    [
        ([], [ToolCallDelta(0, "{}")], "expected call 0 with its name, got call 0"),
        ([], [ToolCallDelta(-1, "{}")], "expected call 0 with its name, got call -1"),
        ([], [ToolCallDelta(1, "{}", "f")], "expected call 0 with its name, got call 1"),
        ([ToolCallDelta(0, "", "f")], [ToolCallDelta(0, "", "f")], "known already"),
        ([ToolCallDelta(0, "", "f")], [ToolCallDelta(0, "", None, "x")], "known already"),
        ([ToolCallDelta(0, "", "f")], [ToolCallDelta(2, "", "g")], "expected more of call 0, or"),
        (
            [ToolCallDelta(0, "", "f"), ToolCallDelta(1, "", "g")],
            [ToolCallDelta(0, "x")],
            "expected more of call 1, or call 2 with its name, got call 0",
        ),
        ([], [ToolCallDelta(0, "\ud800", "f")], "not valid Unicode"),
    ],
)
async def test_a_delta_out_of_order_is_refused_and_leaves_the_call_as_it_was(
    before: list[ToolCallDelta], deltas: list[ToolCallDelta], complaint: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        for number, delta in enumerate(before):
            assert await send(service, lease, number, delta) is None
        said = await send(service, lease, len(before), *deltas)
        assert said is not None
        assert said.startswith("invalid_request: ")
        assert complaint in said
        assert len(call.said or ()) == len(before)


async def test_ids_are_minted_once_also_for_a_span_that_is_sent_again(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        first = [ToolCallDelta(0, '{"a"', "f"), ToolCallDelta(0, ": 1}"), ToolCallDelta(1, "", "g")]
        assert await send(service, lease, 0, *first) is None
        shown = call.spans_after(Seen())
        assert await send(service, lease, 0, *first) is None
        assert call.spans_after(Seen()) == shown
        other = await send(service, lease, 0, ToolCallDelta(0, "{}", "f"))
        assert other is not None
        assert other.startswith("lease_lost")
        (result,) = await complete(service, whole(lease, ("f", '{"a": 1}'), ("g", "{}")))
        assert result.error is None
        message = (await call.answer()).choices[0].message
    ids = [delta.id for delta in shown[0].calls if delta.name]
    assert [made.id for made in message.tool_calls or ()] == ids
    assert len(set(ids)) == 2


async def test_the_next_delivery_carries_the_calls_and_a_restart_keeps_them(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        session = await open_session(service)
        call = await ask(service, session, HI)
        (lease,) = await claim(service)
        assert await send(service, lease, 0, ToolCallDelta(0, '{"a"', "f", "mine")) is None
        expected = [ToolCall(ToolFunction("f", '{"a"'), "mine")]
        assert call.spans_after(Seen()) == [Delta(calls=(ToolCallDelta(0, '{"a"', "f", "mine"),))]
    async with running(tmp_path, clock) as service:
        (lease,) = await claim(service)
        assert lease.prefix is not None
        assert (lease.prefix.spans, lease.prefix.tool_calls) == (1, expected)
        assert await send(service, lease, 1, ToolCallDelta(0, ": 1}")) is None
        done = whole(lease, ("f", '{"a": 1}'), ids=("mine",))
        assert (await complete(service, done))[0].error is None


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ({"calls": []}, "it has 0 of the 1 tool calls"),
        ({"calls": [("g", '{"a": 1}')]}, "tool call 0 is another one"),
        ({"calls": [("f", '{"a": 1}')], "ids": ("yours",)}, "tool call 0 is another one"),
        ({"calls": [("f", '{"b": 1}')]}, "the arguments of tool call 0 are not those"),
    ],
)
async def test_an_answer_that_does_not_begin_with_the_calls_shown_fails_the_call(
    completion: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        assert await send(service, lease, 0, ToolCallDelta(0, '{"a"', "f", "mine")) is None
        await service.bind(call)  # an agent's connection has read it
        done = whole(lease, *completion["calls"], ids=completion.get("ids", ()))
        (result,) = await complete(service, done)
        assert result.error is not None
        assert reason in result.error.message
        with pytest.raises(CallFailed, match=reason):
            await call.answer()
