"""Recorded runs as a backend: answers by content, strict and lenient, from trajectories and journals."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from msgspec import Raw

from rock.errors import ConfigError
from rock.modelservice.backends.config import policies_of
from rock.modelservice.backends.recorded import load_recording
from rock.modelservice.client.worker import Policy
from rock.modelservice.hosting.server import Running
from rock.modelservice.policies.recording import Recording
from rock.modelservice.policies.replay import ReplayPolicy
from rock.modelservice.policies.scripted import tool_call, turn_of
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Choice,
    Lease,
    SessionSpec,
    Trajectory,
    TrajectoryCall,
)
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
from tests.modelservice.live import agent, answering, new_session, raw_agent
from tests.modelservice.test_openai_backend import calls_of

TOOLS: Any = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
Object = dict[str, Any]


def said(lease: Lease) -> Any:
    """Two tool turns that depend on the task and on the attempt, then a last word."""
    first = json.loads(bytes(lease.request.messages[0]))["content"]
    turn = turn_of(lease)
    attempt = lease.labels.get("attempt", "")
    if turn < 2:
        return tool_call("bash", command=f"{first} {attempt} {turn}")
    return f"done with {first} {attempt}"


async def play(url: str, task: str, *, output: str = "ok", spelling: str = "exact") -> list[str]:
    """An agent of three turns; what it was told. `spelling` is how it echoes the model."""
    messages: list[Any] = [{"role": "user", "content": task}]
    heard: list[str] = []
    async with agent(url) as client:
        for turn in range(3):
            reply = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            message = reply.choices[0].message
            if not message.tool_calls:
                heard.append(message.content or "")
                break
            (call,) = message.tool_calls
            assert call.type == "function"
            heard.append(call.function.arguments)
            arguments = call.function.arguments
            if spelling == "other":
                arguments = json.dumps(json.loads(arguments), indent=1)
            function = {"name": call.function.name, "arguments": arguments}
            echo = {"id": call.id, "type": "function", "function": function}
            content = None if spelling == "exact" else ""
            messages.append({"role": "assistant", "content": content, "tool_calls": [echo]})
            result = f"{output} {turn}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return heard


async def record(state_dir: Path, tasks: list[str], attempts: int) -> list[Trajectory]:
    """A run of `attempts` per task, all at once."""
    async with (
        running_service(state_dir) as service,
        answering(service, ScriptedPolicy(said, policy_version=3)),
    ):
        names: list[str] = []

        async def one(task: str, attempt: int) -> None:
            session = await new_session(service, SessionSpec(labels={"attempt": str(attempt)}))
            names.append(session.session_id)
            await play(session.base_url, task)

        await asyncio.gather(*(one(task, n) for task in tasks for n in range(attempts)))
        return [service.service.trajectory(name) for name in names]  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def replaying(state_dir: Path, policy: Policy) -> AsyncGenerator[Running, None]:
    async with running_service(
        state_dir, policies={"replay": policy}, default_backend="replay"
    ) as service:
        yield service


async def test_parallel_sessions_get_the_answers_of_their_own_attempt(tmp_path: Path) -> None:
    tasks = ["sort", "search", "sum"]
    recorded = await record(tmp_path / "first", tasks, attempts=3)
    async with replaying(tmp_path / "again", ReplayPolicy(Recording(recorded))) as service:
        sessions = [(task, await new_session(service)) for task in tasks for _ in range(3)]
        heard = await asyncio.gather(
            *(play(session.base_url, task, spelling="other") for task, session in sessions)
        )
        calls = [calls_of(service, session.session_id) for _, session in sessions]
    for task in tasks:
        mine = sorted(
            words for (name, _), words in zip(sessions, heard, strict=True) if name == task
        )
        assert mine == sorted(
            [
                *(
                    json.dumps({"command": f"{task} {n} {t}"}, separators=(",", ":"))
                    for t in (0, 1)
                ),
                f"done with {task} {n}",
            ]
            for n in range(3)
        )
    answered = [call for session in calls for call in session]
    assert [call.untrainable for call in answered] == [None] * 27
    assert {call.policy_version for call in answered} == {3}
    assert {call.branch for call in answered} == {None}


async def test_rows_of_a_replay_are_those_of_the_recording(tmp_path: Path) -> None:
    (recorded,) = await record(tmp_path / "first", ["sort"], attempts=1)
    async with replaying(tmp_path / "again", ReplayPolicy(Recording([recorded]))) as service:
        session = await new_session(service)
        await play(session.base_url, "sort")
        again = service.service.trajectory(session.session_id)  # pyright: ignore[reportArgumentType]
    for before, after in zip(recorded.rows, again.rows, strict=True):
        assert (before.token_ids, before.mask, before.logprobs) == (
            after.token_ids,
            after.mask,
            after.logprobs,
        )


async def test_the_same_question_again_gets_the_next_recorded_answer(tmp_path: Path) -> None:
    numbers = iter("abc")
    policy = ScriptedPolicy(lambda _: next(numbers))
    question: Any = [{"role": "user", "content": "another one"}]
    async with running_service(tmp_path / "first") as service, answering(service, policy):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            for _ in range(3):
                await client.chat.completions.create(model="m", messages=question)
        recorded = service.service.trajectory(session.session_id)  # pyright: ignore[reportArgumentType]
    async with replaying(tmp_path / "again", ReplayPolicy(Recording([recorded]))) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            heard = [
                (await client.chat.completions.create(model="m", messages=question))
                .choices[0]
                .message.content
                for _ in range(4)
            ]
    assert heard == ["a", "b", "c", "c"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "?"}]}, "error"),
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": [{"role": "user", "content": "?"}]},
            "error",
        ),
        ("/v1/responses", {"input": "?"}, "error"),
    ],
)
async def test_strict_refuses_what_was_not_recorded_in_the_dialects_shape(
    path: str, body: Object, field: str, tmp_path: Path
) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=1)
    async with replaying(tmp_path / "again", ReplayPolicy(Recording(recorded))) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            reply = await http.post(path, json={"model": "m", **body})
    assert reply.status_code == 400
    error = reply.json()[field]
    assert error["type"] == "invalid_request_error"
    assert "none of the 3 recorded calls of 1 sessions asks this" in error["message"]
    assert "messages[0] is the first that no recorded call has there" in error["message"]


async def test_strict_says_how_far_a_conversation_is_known(tmp_path: Path) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=1)
    async with replaying(tmp_path / "again", ReplayPolicy(Recording(recorded))) as service:
        session = await new_session(service)
        with pytest.raises(openai.BadRequestError, match=r"messages\[2\] is the first"):
            await play(session.base_url, "sort", output="something else")


async def test_lenient_goes_by_what_the_model_said_and_gives_no_tokens(tmp_path: Path) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=1)
    policy = ReplayPolicy(Recording(recorded), mode="lenient")
    async with replaying(tmp_path / "again", policy) as service:
        session = await new_session(service)
        heard = await play(session.base_url, "sort", output="at another time")
        calls = calls_of(service, session.session_id)
    assert heard[-1] == "done with sort 0"
    assert [call.untrainable is None for call in calls] == [True, False, False]


async def test_lenient_asks_the_fallback_for_what_is_unlike_everything(tmp_path: Path) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=1)
    other = ScriptedPolicy(lambda _: "from the fallback")
    policy = ReplayPolicy(Recording(recorded), mode="lenient", fallback=other)
    async with replaying(tmp_path / "again", policy) as service:
        session = await new_session(service)
        assert await play(session.base_url, "new task") == ["from the fallback"]
        assert (await play(session.base_url, "sort"))[-1] == "done with sort 0"


async def test_lenient_without_fallback_takes_what_was_said_at_that_turn(tmp_path: Path) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=1)
    policy = ReplayPolicy(Recording(recorded), mode="lenient")
    async with replaying(tmp_path / "again", policy) as service:
        session = await new_session(service)
        assert (await play(session.base_url, "new task"))[-1] == "done with sort 0"


async def test_a_journal_is_a_recording_also_after_compaction(tmp_path: Path) -> None:
    await record(tmp_path / "first", ["sort", "sum"], attempts=2)
    before = load_recording(tmp_path / "first")
    assert (before.calls, before.sessions) == (12, 4)
    async with running_service(tmp_path / "first", evict_seconds=0) as service:
        for session in list(service.service._engine.book.sessions):  # pyright: ignore[reportPrivateUsage]
            if session.labels["attempt"] == "0":
                await service.service.close_session(session.id)
        service.service.tick()
        await service.service.compact()
    after = load_recording(tmp_path / "first")
    assert (after.calls, after.sessions) == (12, 4)


async def test_trajectories_in_files_and_folders_are_a_recording(tmp_path: Path) -> None:
    recorded = await record(tmp_path / "first", ["sort"], attempts=2)
    lines = [msgspec.json.encode(one) for one in recorded]
    run = tmp_path / "run" / "episodes" / "sort" / "0"
    run.mkdir(parents=True)
    (run / "trajectory.json").write_bytes(lines[0])
    (tmp_path / "all.jsonl").write_bytes(b"\n".join(lines))
    assert load_recording(tmp_path / "run").calls == 3
    assert load_recording(run / "trajectory.json").calls == 3
    assert load_recording(tmp_path / "all.jsonl").sessions == 2


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"session_id": 1}'])
def test_what_is_no_recording_is_refused_by_name(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}: expected a"):
        load_recording(path)


FILE = """\
backends:
  yesterday: {use: "replay:first", mode: lenient, fallback: engine}
  engine: {use: "openai:m", api_base: "http://127.0.0.1:9/v1", api_key_env: PATH}
  bad-day: {use: "replay:first", seed: 3, faults: [{do: "500", every: 1}]}
"""


async def test_a_file_describes_backends_beside_it(tmp_path: Path) -> None:
    await record(tmp_path / "first", ["sort"], attempts=1)
    file = tmp_path / "backends.yaml"
    file.write_text(FILE)
    made = policies_of(["engine:x"], api_base="http://127.0.0.1:9/v1", file=file)
    assert made.keys() == {"yesterday", "engine", "bad-day", "engine:x"}
    async with running_service(
        tmp_path / "again",
        policies={name: made[name] for name in ("yesterday", "bad-day")},
        default_backend="yesterday",
    ) as service:
        good = await new_session(service)
        bad = await new_session(service, SessionSpec(backend="bad-day"))
        assert (await play(good.base_url, "sort"))[-1] == "done with sort 0"
        with pytest.raises(openai.InternalServerError, match="fault injection"):
            await play(bad.base_url, "sort")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("backends: {a: {use: gpt}}", "backend 'a': expected one of litellm:….* got 'gpt'"),
        ("backends: {a: {use: 'openai:'}}", "backend 'a': expected one of litellm:"),
        ("backends: {queue: {use: 'openai:m'}}", "backends.queue: is the trainer's"),
        ("backends: {a b: {use: 'openai:m'}}", "should match pattern"),
        ("backends: {a: {use: 'openai:m', modle: x}}", "backends.a.modle: there is no such field"),
        ("backends: {a: {use: 'replay:nowhere'}}", "nowhere: expected a run directory"),
        (
            "backends: {a: {use: 'openai:m', api_key_env: NOT_SET_AT_ALL}}",
            "NOT_SET_AT_ALL is not set",
        ),
        (
            "backends: {a: {use: 'openai:m', api_base: 'http://x', api_key_env: PATH, "
            "faults: [{do: cut}]}}",
            "fault cut: expected one of probability and every",
        ),
        ("backends: [", "backends.yaml:1: not YAML"),
        (
            "backends:\n  a: {use: 'openai:m'}\n  a: {use: 'openai:n'}",
            "backends.yaml:3: .*'a' is given twice",
        ),
        (
            "backends:\n  a: {use: 'openai:m', use: 'openai:n'}",
            "backends.yaml:2: .*'use' is given twice",
        ),
        ("a: &a [*a]", "a value holds itself"),
    ],
)
def test_a_file_with_a_mistake_is_refused_by_field(
    text: str, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / "backends.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        policies_of(file=file)


async def test_a_fallback_must_be_another_backend_of_the_file(tmp_path: Path) -> None:
    await record(tmp_path / "first", ["sort"], attempts=1)
    file = tmp_path / "backends.yaml"
    for fields in ("mode: lenient, fallback: nobody", "mode: lenient, fallback: a", "fallback: b"):
        file.write_text(
            f"backends: {{a: {{use: 'replay:first', {fields}}}, b: {{use: 'litellm:m'}}}}"
        )
        with pytest.raises(ConfigError, match="backend 'a': fallback: expected"):
            policies_of(file=file)


async def test_a_question_is_its_messages_its_tools_and_its_n(tmp_path: Path) -> None:
    hello: Any = [{"role": "user", "content": "hi"}]
    other: Any = [{"type": "function", "function": {"name": "other", "parameters": {}}}]
    asked: list[Object] = [{}, {"tools": TOOLS}, {"tools": other}, {"n": 2}, {"n": 3}]
    counted: list[Lease] = []

    def number(lease: Lease) -> str:
        counted.append(lease)
        return f"answer {len(counted)}"

    async with (
        running_service(tmp_path / "first") as service,
        answering(service, ScriptedPolicy(number)),
    ):
        session = await new_session(service)
        async with agent(session.base_url) as client:
            create: Any = client.chat.completions.create
            recorded: list[Any] = [
                await create(model="m", messages=hello, **more) for more in asked[:-1]
            ]
        trajectory = service.service.trajectory(session.session_id)  # pyright: ignore[reportArgumentType]
    policy = ReplayPolicy(Recording([trajectory]))
    async with running_service(
        tmp_path / "second", policies={"r": policy}, default_backend="r"
    ) as service:
        session = await new_session(service)
        async with agent(session.base_url) as client:
            create: Any = client.chat.completions.create
            for more, before in reversed(list(zip(asked, recorded, strict=False))):
                again: Any = await create(model="m", messages=hello, **more)
                heard = [choice.message.content for choice in again.choices]
                assert heard == [choice.message.content for choice in before.choices]
            with pytest.raises(openai.BadRequestError, match="its tools or n are not"):
                await create(model="m", messages=hello, **asked[-1])


async def test_a_call_that_is_handed_out_again_gets_the_answer_it_had() -> None:
    request = CanonicalRequest(model="m", messages=[Raw(b'{"role":"user","content":"hi"}')])
    calls = [
        TrajectoryCall(
            call_id=f"s.{number}",
            state="delivered",
            request=request,
            choices=[Choice(AssistantMessage(content=f"answer {number}"), "stop")],
        )
        for number in range(3)
    ]
    policy = ReplayPolicy(Recording([Trajectory(session_id="s", labels={}, calls=calls, rows=[])]))

    async def ask(call_id: str, delivery: int) -> str | None:
        lease = Lease(f"{call_id}-{delivery}", call_id, "new", delivery, 60.0, request)
        [completion] = await policy([lease])
        assert completion.lease_id == lease.lease_id
        return completion.choices[0].message.content

    asked = [("n.0", 1), ("n.0", 2), ("n.1", 1), ("n.0", 3), ("n.2", 1), ("n.1", 2)]
    heard = [await ask(call_id, delivery) for call_id, delivery in asked]
    assert heard == [f"answer {number}" for number in (0, 0, 1, 0, 2, 1)]
