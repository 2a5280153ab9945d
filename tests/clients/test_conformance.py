"""Every client, unmodified, does a small task through ModelService, and its trajectory is exact."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from rock.modelservice.wire import Trajectory
from tests.clients.recipes import recipes
from tests.clients.stage import Seen, script_for, stage
from tests.clients.tap import Sent

LIVE = (
    "openai-stream",
    "codex",
    "claude-code",
    "anthropic-stream",
    "litellm-stream",
    "openai-agents-stream",
    "pydantic-ai-stream",
    "langgraph-stream",
    "qwen-code",
    "opencode",
    "aider",
)
"""Those that stream."""
TEXT_FIELDS = ("content", "text", "output", "thinking", "summary", "reasoning_content")
pytestmark = [pytest.mark.clients, pytest.mark.userns, pytest.mark.timeout(300)]


@pytest.mark.parametrize("recipe", recipes())
async def test_client_does_the_task_and_its_trajectory_is_exact(
    recipe: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform(recipe)

    assert seen.result.ok, seen.output
    assert seen.written == seen.nonce, seen.output
    turns = len(script_for(recipe))
    assert len(seen.leases) == turns
    # aider is shown files before it asks; the others tell what their tool printed.
    told = seen.leases[0] if recipe == "aider" else seen.leases[1]
    last = told.request.messages[-3 if recipe == "aider" else -1]
    assert seen.nonce.encode() in bytes(last)
    check_exact(recipe, seen.trajectory, turns)
    check_journal_has_what_was_sent(seen)


@pytest.mark.parametrize("recipe", LIVE)
async def test_client_reads_an_answer_in_pieces_as_it_reads_a_whole_one(
    recipe: str, tmp_path: Path
) -> None:
    async with stage(tmp_path, stream_grace_seconds=0) as theatre:
        seen = await theatre.perform(recipe, live=True)

    assert seen.result.ok, seen.output
    assert seen.written == seen.nonce, seen.output
    turns = len(script_for(recipe))
    assert len(seen.leases) == turns
    assert all(lease.streams for lease in seen.leases)
    check_exact(recipe, seen.trajectory, turns)
    check_journal_has_what_was_sent(seen)


def check_exact(recipe: str, trajectory: Trajectory, turns: int) -> None:
    if recipe == "aider":
        check_a_chain_each(trajectory, turns)
    else:
        check_one_chain(trajectory, turns)


def check_a_chain_each(trajectory: Trajectory, turns: int) -> None:
    """What the client shows with each request is in none before; every sampled token is in one row."""
    calls = trajectory.calls
    assert [call.state for call in calls] == ["delivered"] * turns
    assert [call.kind for call in calls] == [None] * turns
    assert [call.branch for call in calls] == [None, *["edit"] * (turns - 1)]
    assert trajectory.untrainable == {}
    owned = [
        [i for i, m in zip(row.token_ids, row.mask, strict=True) if m] for row in trajectory.rows
    ]
    assert owned == [list(call.choices[0].token_ids or []) for call in calls]


def check_one_chain(trajectory: Trajectory, turns: int) -> None:
    """Each call goes on from the one before it; every sampled token is in one row, once."""
    calls = trajectory.calls
    assert [call.state for call in calls] == ["delivered"] * turns
    assert [call.kind for call in calls] == [None] * turns
    assert [call.branch for call in calls] == [None] * turns
    assert [call.parent for call in calls] == [None, *(call.call_id for call in calls[:-1])]
    assert trajectory.untrainable == {}
    (row,) = trajectory.rows
    sampled = [i for call in calls for choice in call.choices for i in choice.token_ids or []]
    assert [i for i, m in zip(row.token_ids, row.mask, strict=True) if m] == sampled


def check_journal_has_what_was_sent(seen: Seen) -> None:
    assert len(seen.tap.sent) == len(seen.trajectory.calls)
    for sent, call in zip(seen.tap.sent, seen.trajectory.calls, strict=True):
        body: dict[str, Any] = json.loads(sent.body)
        kept = [msgspec.json.decode(message) for message in call.request.messages]
        assert call.request.model == body["model"]
        if "/chat/completions" in sent.path:
            assert kept == body["messages"]
            tools = [msgspec.json.decode(tool) for tool in call.request.tools or []]
            assert tools == body.get("tools", [])
        else:
            texts = set(leaves(kept))
            assert [text for text in said_in(sent) if text not in texts] == []


def said_in(sent: Sent) -> Iterator[str]:
    """Every text of a conversation in another form than chat: what people, tools and model said."""
    body: dict[str, Any] = json.loads(sent.body)
    for name in ("instructions", "system", "input", "messages"):
        for text in leaves(body.get(name)):
            if not text.startswith("x-anthropic-billing-header:"):
                yield text.removeprefix("<think>\n").removesuffix("\n</think>")


def leaves(value: Any) -> Iterator[str]:
    """All texts in content, wherever it stands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from leaves(item)
    elif isinstance(value, dict):
        for name in TEXT_FIELDS:
            yield from leaves(cast("dict[str, Any]", value).get(name))
