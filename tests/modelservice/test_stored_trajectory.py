"""A trajectory is stored with each message once, and read back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rock.modelservice import wire
from rock.modelservice.graph.stored import decode, encode
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


ROW = {"chain": "c/0", "token_ids": [1], "mask": [1], "logprobs": [-1.0], "spans": []}


def test_rows_that_say_something_of_their_beginning_are_stored_whole() -> None:
    """A log-probability where nothing was sampled is wrong, and must be found by whoever checks."""
    ids = list(range(40))
    first = wire.TokenRow("c/0", ids, [0] * 40, [0.0] * 40, [])
    wrong = wire.TokenRow("d/0", ids, [0] * 40, [0.0, -0.5] + [0.0] * 38, [])
    short = wire.TokenRow("e/0", ids, [0] * 20, [0.0] * 30, [])
    huge = wire.TokenRow("f/0", [2**40, *ids], [0] * 41, [0.0] * 41, [])
    before = wire.Trajectory(session_id="s", labels={}, calls=[], rows=[first, wrong, short, huge])
    assert decode(encode(before)) == before
    assert b"-0.5" in encode(before)
    assert b"begins_as" not in encode(before).split(b'"e/0"')[0]


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
        ("rows", [{**ROW, "begins_as": {"row": 0, "tokens": 1}}], r"\$.rows\[0\]"),
        ("rows", [ROW, {**ROW, "begins_as": {"row": 0, "tokens": 2}}], r"\$.rows\[1\]"),
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


async def grown(folder: Path, turns: int, *, anew: bool) -> tuple[int, wire.Trajectory]:
    """Bytes of the journal, and the trajectory, of a session whose worker goes on from exact tokens, or
    tokenises each last answer anew."""
    async with running(folder) as service:
        session = await open_session(service)
        history: list[dict[str, Any]] = []
        prompt: list[int] = []
        for turn in range(turns):
            history.append(dict(user(f"turn {turn}")))
            prompt += [1000 + turn] * 50
            asked = await service.submit(session, incoming(*history))
            (lease,) = await claim(service)
            said = wire.Choice(
                wire.AssistantMessage(content=f"answer {turn}"),
                token_ids=[7, 9],
                logprobs=[-1.0] * 2,
            )
            await complete(
                service, wire.Completion(lease.lease_id, [said], prompt_token_ids=list(prompt))
            )
            await asked.answer()
            service.sent(asked)
            history.append({"role": "assistant", "content": f"answer {turn}"})
            prompt += [7, 8 if anew else 9]
        trajectory = service.trajectory(session.id)
    async with running(folder) as service:
        assert service.trajectory(session.id) == trajectory
    return (folder / "journal.log").stat().st_size, trajectory


async def test_prompts_that_are_tokenised_anew_are_stored_from_where_they_part(
    tmp_path: Path,
) -> None:
    exact, linear = await grown(tmp_path / "exact", 60, anew=False)
    anew, forked = await grown(tmp_path / "anew", 60, anew=True)
    assert (len(linear.rows), len(forked.rows)) == (1, 60)
    assert {row.branch for row in forked.rows} == {None, "retokenised"}
    assert anew < 1.5 * exact
    assert decode(encode(forked)) == forked
    assert all(len(row.spans) > 3 for row in forked.rows[3:])
    # 60 rows of up to 3,000 tokens: written out, some 60 times what is new.
    assert len(encode(forked)) < 3 * len(encode(linear))


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
