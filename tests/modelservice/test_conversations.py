"""Random conversations through the whole service: branches, edits, retries, compactions, side jobs,
n choices, bad tokens, re-rendered prompts. Whatever happens, each sampled token of each trainable
answer is owned by exactly one row, every row up to an answer is what the engine saw, side jobs have
rows of their own, and a restart exports the same."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rock.modelservice import wire
from rock.modelservice.service.completions import MIN_KEPT
from rock.modelservice.service.service import ModelService, Session
from tests.modelservice.fixtures import claim, complete, incoming, open_session, running, user

History = list[dict[str, Any]]
HEAD = [900] * MIN_KEPT
"""What every prompt that is rendered anew begins with, long enough to be stored once."""


class Agent:
    """Draws what to ask next, and keeps what it was told."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.histories: list[History] = []
        self.said = 0

    def next_history(self) -> History:
        kinds = ["new", "go on", "again", "edit", "compact"] if self.histories else ["new"]
        kind = self.draw(st.sampled_from(kinds))
        self.said += 1
        if kind == "new":
            return [{"role": "system", "content": "s"}, dict(user(f"u{self.said}"))]
        history = list(self.draw(st.sampled_from(self.histories)))
        if kind == "go on":
            return [*history, dict(user(f"u{self.said}"))]
        if kind == "compact":
            return [history[0], dict(user(f"So far: {history[-1]['content']} u{self.said}"))]
        if kind == "edit":
            place = self.draw(st.integers(0, len(history) - 1))
            return [*history[:place], dict(user(f"edited{self.said}")), *history[place + 1 :]]
        return history[:-1] if len(history) > 2 else history

    def hear(self, asked: History, choice: wire.Choice) -> None:
        """Echo the answer the way some client would."""
        content: Any = choice.message.content or ""
        spelling = self.draw(st.sampled_from(["same", "spaces", "blocks"]))
        if spelling == "spaces":
            content = f"\n {content} "
        elif spelling == "blocks":
            content = [{"type": "text", "text": content}]
        self.histories.append([*asked, {"role": "assistant", "content": content}])


class Worker:
    """Samples ids that were never sampled before, and goes on from the parent or renders anew."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.next_id = 1000
        self.sampled: dict[str, list[list[int]]] = {}
        """Call -> ids per choice, for trainable answers."""
        self.saw: dict[int, list[int]] = {}
        """First sampled id of an answer -> the engine's whole sequence at its end."""

    def fresh(self, count: int) -> list[int]:
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def completion(self, lease: wire.Lease) -> wire.Completion:
        parent = lease.parent
        if parent is not None and parent.token_ids and self.draw(st.booleans()):
            new = len(lease.request.messages) - parent.messages
            prompt = [*parent.token_ids, *range(1, new + 1)]
        else:
            prompt = [*HEAD, *range(1, len(lease.request.messages) + 1)]
        good = self.draw(st.integers(0, 5)) > 0
        ids = [self.fresh(self.draw(st.integers(1, 3))) for _ in range(lease.request.n)]
        text = st.sampled_from(["a", "b"])  # so that equal answers occur
        choices = [
            wire.Choice(
                wire.AssistantMessage(content=self.draw(text)),
                token_ids=one,
                logprobs=[-1.0] * len(one) if good else None,
            )
            for one in ids
        ]
        if good:
            self.sampled[lease.call_id] = ids
            self.saw |= {one[0]: [*prompt, *one] for one in ids}
        return wire.Completion(lease.lease_id, choices, prompt_token_ids=prompt, policy_version=1)


async def turn(service: ModelService, session: Session, agent: Agent, worker: Worker) -> None:
    asked = agent.next_history()
    n = agent.draw(st.integers(1, 2))
    retry = agent.draw(st.integers(0, 1))
    kind = agent.draw(st.sampled_from([None, None, None, "title", "compaction", "subagent"]))
    request = replace(incoming(*asked, n=n, retry=retry), kind=kind)
    call = await service.submit(session, request)
    for lease in await claim(service, 9):
        (result,) = await complete(service, worker.completion(lease))
        assert result.error is None
    answer = await call.answer()
    service.sent(call)
    for choice in answer.choices:
        agent.hear(asked, wire.Choice(choice.message))


def owned(trajectory: wire.Trajectory) -> dict[str, list[int]]:
    """Call -> the sampled ids that the rows' masks own, in order."""
    found: dict[str, list[int]] = {}
    for row in trajectory.rows:
        assert len(row.token_ids) == len(row.mask) == len(row.logprobs)
        assert [span.start for span in row.spans] == [0, *(span.end for span in row.spans[:-1])]
        assert row.spans[-1].end == len(row.token_ids)
        for span in row.spans:
            mask = row.mask[span.start : span.end]
            assert mask == [1 if span.kind == "sampled" else 0] * len(mask)
            if span.kind == "sampled":
                ids = row.token_ids[span.start : span.end]
                found.setdefault(span.call_id, []).extend(ids)
    return found


def check_against_the_engine(trajectory: wire.Trajectory, worker: Worker) -> None:
    calls = {call.call_id: call for call in trajectory.calls}
    for row in trajectory.rows:
        for span in row.spans:
            assert calls[span.call_id].chain_class == row.chain_class
            if span.kind == "sampled":
                assert row.token_ids[: span.end] == worker.saw[row.token_ids[span.start]]


async def converse(folder: Path, data: st.DataObject) -> None:
    agent, worker = Agent(data), Worker(data)
    async with running(folder) as service:
        session = await open_session(service)
        for _ in range(data.draw(st.integers(1, 12))):
            await turn(service, session, agent, worker)
        before = service.trajectory(session.id)
    expected = {
        call: [id for ids in choices for id in ids] for call, choices in worker.sampled.items()
    }
    assert {call: sorted(ids) for call, ids in owned(before).items()} == expected
    check_against_the_engine(before, worker)
    async with running(folder) as service:
        assert wire.encode(service.trajectory(session.id)) == wire.encode(before)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_sampled_token_is_owned_by_exactly_one_row(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(prefix="rock-test-") as folder:
        asyncio.run(converse(Path(folder), data))
