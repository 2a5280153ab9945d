"""Auxiliary calls are told from steps of the task by the marks of published clients."""

import json
from pathlib import Path
from typing import Any

import pytest

from rock.modelservice.dialects import BY_NAME
from rock.modelservice.dialects.auxiliary import classify
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.golden import parsed
from tests.modelservice.live import admin_of, agent, answering, new_session

COMPACT = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary."


def kind_of(dialect: str, body: dict[str, Any], **headers: str) -> str | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return classify(parsed(BY_NAME[dialect], {"model": "m", **body}), named)


def chat(system: str, user: str = "fix the bug") -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": user}]}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (chat("You are a title generator. You output ONLY a thread title."), "title"),
        (chat("You are an anchored context summarization assistant for coding"), "compaction"),
        (chat("You are a context summarization assistant. Your task is"), "compaction"),
        (
            chat("You are the component that summarizes internal chat history into a structure"),
            "compaction",
        ),
        (
            chat(
                "You are an expert software engineer that generates concise, one-line Git commit messages"
            ),
            "commit_message",
        ),
        (chat("You are an agent.", "You are a title generator? What is that?"), None),
        (chat("You are a helpful assistant."), None),
    ],
)
def test_chat_clients_mark_their_system_prompts(body: dict[str, Any], kind: str | None) -> None:
    assert kind_of("chat", body) == kind


def test_codex_says_it_in_a_header_or_in_its_last_item() -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": COMPACT}]}]}
    assert kind_of("responses", body) == "compaction"
    turn = {"input": "go on"}
    said = json.dumps({"request_kind": "compaction"})
    assert kind_of("responses", turn, x_codex_turn_metadata=said) == "compaction"
    said = json.dumps({"request_kind": "turn"})
    assert kind_of("responses", turn, x_codex_turn_metadata=said) is None
    said = json.dumps({"request_kind": "memories"})
    assert kind_of("responses", turn, x_codex_turn_metadata=said) == "other"
    assert kind_of("responses", turn, x_codex_turn_metadata="not json") is None


def test_claudes_sub_agents_have_a_header_and_its_compaction_a_first_line() -> None:
    turn = {"max_tokens": 9, "messages": [{"role": "user", "content": "go on"}]}
    assert kind_of("anthropic", turn) is None
    assert kind_of("anthropic", turn, x_claude_code_agent_id="a1") == "subagent"
    text = [
        {"type": "text", "text": "<system-reminder>x</system-reminder>"},
        {"type": "text", "text": "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."},
    ]
    assert kind_of("anthropic", {"messages": [{"role": "user", "content": text}]}) == "compaction"


def test_claudes_probe_and_title_calls_are_known() -> None:
    probe = {"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
    assert kind_of("anthropic", probe) == "probe"
    assert kind_of("anthropic", {**probe, "max_tokens": 100}) is None
    title = "Analyze if this message indicates a new conversation topic. If it does, extract"
    system = [{"type": "text", "text": "You are Claude Code."}, {"type": "text", "text": title}]
    assert kind_of("anthropic", {"system": system, **probe, "max_tokens": 100}) == "title"


def test_a_user_who_quotes_a_mark_is_not_taken_for_the_program() -> None:
    assert kind_of("chat", chat("You are an agent.", f"What does this do: {COMPACT}")) is None


def test_a_raw_prompt_is_an_ordinary_call() -> None:
    assert kind_of("completions", {"prompt": COMPACT}) is None


async def test_the_label_is_seen_by_the_worker_and_in_the_trajectory(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda _: "a title")
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client, admin_of(service) as admin:
            for system in ("You are a title generator.", "You are an agent."):
                messages: Any = chat(system)["messages"]
                await client.chat.completions.create(model="m", messages=messages)
            exported = await admin.trajectory(session.session_id)
    assert [lease.kind for lease in policy.seen] == ["title", None]
    assert [call.kind for call in exported.calls] == ["title", None]


CLAUDE_STEP = {"x-claude-code-session-id": "c1"}
CODEX_STEP = {"x-codex-turn-metadata": json.dumps({"request_kind": "turn"})}


@pytest.mark.parametrize(
    ("headers", "text", "sampled"),
    [
        pytest.param(CLAUDE_STEP, "fix it", 1, id="claude-code"),
        pytest.param(CODEX_STEP, "fix it", 1, id="codex"),
        pytest.param({**CLAUDE_STEP, "x-claude-code-agent-id": "a1"}, "fix it", 2, id="sub-agent"),
        pytest.param(CODEX_STEP, COMPACT, 2, id="compaction"),
        pytest.param({}, "fix it", 2, id="anybody"),
    ],
)
async def test_step_that_is_asked_again_is_a_retry_where_its_program_never_asks_twice(
    headers: dict[str, str], text: str, sampled: int, tmp_path: Path
) -> None:
    policy = ScriptedPolicy(["one"])
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            replies = [
                await client.chat.completions.create(
                    model="m",
                    messages=[{"role": "user", "content": text}],
                    extra_headers=headers,
                )
                for _ in range(2)
            ]
    assert len(policy.seen) == sampled
    assert len({reply.id for reply in replies}) == sampled
