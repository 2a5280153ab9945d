"""A trajectory is stored with each message once, and read back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rock.modelservice import wire
from rock.modelservice.wire.stored import decode, encode
from tests.modelservice.fixtures import claim, complete, incoming, open_session, running, user

TOOLS = [{"type": "function", "function": {"name": "bash"}}]


def call(number: int, *messages: Any, tools: bool = False, **more: Any) -> wire.TrajectoryCall:
    return wire.TrajectoryCall(
        call_id=f"s.{number}",
        state="delivered",
        request=wire.CanonicalRequest(
            model="m",
            messages=[_raw(message) for message in messages],
            tools=[_raw(tool) for tool in TOOLS] if tools else None,
        ),
        choices=[wire.Choice(wire.AssistantMessage(content=f"a{number}"), token_ids=[number])],
        **more,
    )


def _raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def trajectory(*calls: wire.TrajectoryCall) -> wire.Trajectory:
    return wire.Trajectory(session_id="s", labels={"a": "b"}, calls=list(calls), rows=[])


def test_what_was_stored_is_read_back_the_same() -> None:
    history = [user("one"), user("two"), user("one")]
    edited = call(1, *history, tools=True, original=call(0, user("as asked"), tools=True).request)
    before = trajectory(call(0, *history, tools=True), edited, call(2), call(3, user("two")))
    after = decode(encode(before))
    assert wire.encode(after) == wire.encode(before)
    assert after == before


def test_a_message_is_stored_once_however_many_requests_repeat_it() -> None:
    history = [user(f"message {number}") for number in range(40)]
    stored = encode(trajectory(*(call(n, *history[:n], tools=True) for n in range(1, 41))))
    for message in history:
        assert stored.count(f'"{message["content"]}"'.encode()) == 1
    assert stored.count(b'"bash"') == 1


def test_requests_with_the_same_messages_in_another_order_stay_apart() -> None:
    a, b = user("a"), user("b")
    before = trajectory(call(0, a, b), call(1, b, a), call(2, a))
    found = [[bytes(m) for m in c.request.messages] for c in decode(encode(before)).calls]
    assert found == [[bytes(m) for m in c.request.messages] for c in before.calls]


def test_a_trajectory_that_holds_its_requests_whole_can_be_read() -> None:
    before = trajectory(call(0, user("a")), call(1, user("a"), user("b"), tools=True))
    assert decode(wire.encode(before)) == before


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        ("nodes", [[0, 0]], r"\$.nodes\[0\]"),
        ("nodes", [[-1, 7]], r"\$.nodes\[0\]"),
        ("nodes", [[-2, 0]], r"\$.nodes\[0\]"),
        ("nodes", [], "place.leaf"),
        ("tool_lists", [], "place.tools"),
    ],
)
def test_numbers_that_name_nothing_are_refused(where: str, value: Any, named: str) -> None:
    fields = json.loads(encode(trajectory(call(0, user("a"), tools=True))))
    fields[where] = value
    with pytest.raises(msgspec.ValidationError, match=named):
        decode(json.dumps(fields).encode())


async def test_a_session_that_grows_is_stored_in_what_is_new(tmp_path: Path) -> None:
    """Twice the turns: twice the bytes, not four times."""
    sizes: list[int] = []
    async with running(tmp_path) as service:
        session = await open_session(service)
        history: list[dict[str, Any]] = []
        prompt: list[int] = []
        for turn in range(80):
            history.append(dict(user(f"turn {turn} " + "x" * 200)))
            prompt += [turn] * 10
            asked = await service.submit(session, incoming(*history))
            (lease,) = await claim(service)
            said = wire.Choice(
                wire.AssistantMessage(content=f"answer {turn}"), token_ids=[7], logprobs=[-1.0]
            )
            await complete(
                service, wire.Completion(lease.lease_id, [said], prompt_token_ids=list(prompt))
            )
            await asked.answer()
            service.sent(asked)
            history.append({"role": "assistant", "content": f"answer {turn}"})
            prompt.append(7)
            if turn in (39, 79):
                sizes.append(len(encode(service.trajectory(session.id))))
    assert sizes[1] < 2.2 * sizes[0]
