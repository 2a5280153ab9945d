"""A model that refuses, cuts off, hangs and forgets: every episode still ends, and is told apart."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from rock.modelservice.planes.plane import EventStream
from rock.rollout.inputs.runfile import load_run_file
from rock.rollout.records.ledger import replay
from rock.rollout.records.outcome import TABLE
from rock.rollout.records.record import decode
from rock.rollout.records.rundir import read_records
from rock.rollout.records.trajectory import read_trajectory
from rock.rollout.run import run
from rock.testing.fake_engine import FakeAnswer, chunk, fake_openai_server, frames_of
from tests.rollout.live import GRADER, new_provider, write_tasks

pytestmark = [pytest.mark.userns, pytest.mark.timeout(300)]

AGENT = """
async def agent(seat):
    client = seat.client.with_options(max_retries=8, timeout=20)
    stream = seat.task.task_id.startswith("streamed")
    messages = [{"role": "user", "content": seat.instruction}]
    for turn in range(3):
        reply = await client.chat.completions.create(
            model=seat.model, messages=messages, stream=stream
        )
        if stream:
            text = ""
            async for event in reply:
                text += event.choices[0].delta.content or "" if event.choices else ""
        else:
            text = reply.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"{turn}"}]
    await seat.run(f"printf %s '{text}' > answer.txt")
"""
STORM = {"do": "429", "every": 3}
"""An agent waits for five seconds after each of these, as it is told to."""
WEATHER = [
    {"do": "500", "every": 4},
    {"do": "cut", "probability": 0.1},
    {"do": "abort", "probability": 0.1},
    {"do": "latency", "probability": 0.3, "seconds": 0.05},
]


async def _half_open() -> AsyncGenerator[bytes, None]:
    """Part of an answer, and then nothing, on a connection that stays open."""
    async for frame in frames_of([chunk({"role": "assistant", "content": "4"})]):
        yield frame
    await asyncio.Event().wait()


def half_open() -> EventStream:
    return EventStream(_half_open())


@pytest.mark.parametrize(
    ("tasks", "episodes", "weather"),
    [
        pytest.param(2, 1, WEATHER, id="short"),
        pytest.param(10, 4, [STORM, *WEATHER], id="long", marks=pytest.mark.soak),
    ],
)
async def test_through_storms_cuts_and_half_open_streams_every_episode_is_accounted_for(
    tmp_path: Path, tasks: int, episodes: int, weather: list[dict[str, Any]]
) -> None:
    names = [f"{('streamed', 'whole')[number % 2]}-{number}" for number in range(tasks)]
    write_tasks(tmp_path, *names)
    (tmp_path / "agent.py").write_text(AGENT)
    script: list[FakeAnswer] = [*["42"] * 5, half_open, half_open, *["42"] * 40, half_open, "42"]
    async with fake_openai_server(script) as engine, new_provider() as provider:
        backend = {"use": "engine:m", "api_base": engine.url, "timeout_seconds": 0.5, "seed": 5}
        described = {"backends": {"stormy": {**backend, "faults": weather}}}
        (tmp_path / "backends.yaml").write_text(json.dumps(described))
        (tmp_path / "run.yaml").write_text(
            json.dumps(
                {
                    "tasks": "tasks.jsonl",
                    "agent": {"python": "agent.py:agent", "timeout_seconds": 60},
                    "grader": GRADER,
                    "model": "stormy",
                    "service": {"backends_file": "backends.yaml"},
                    "episodes_per_task": episodes,
                    "limits": {"call_deadline_seconds": 15},
                    "infra": {"max_attempts": 20, "backoff_seconds": 0.01},
                    "consume_timeout_seconds": 0,
                }
            )
        )
        config = load_run_file(tmp_path / "run.yaml")
        result = await run(config, directory=tmp_path / "run", provider=provider)
    assert (result.exit_code, result.failure) == (0, None)
    assert result.report.total.solved == tasks * episodes
    state = replay((tmp_path / "run/ledger.jsonl").read_bytes(), source="ledger")[0]
    attempts = [
        decode(path.read_bytes())
        for path in sorted((tmp_path / "run").glob("episodes/*/*/attempt-*/record.json"))
    ]
    started = sum(e.attempts for group in state.groups.values() for e in group.episodes)
    assert len(attempts) == started
    assert {group.status for group in state.groups.values()} == {"published"}
    final = {(record.episode_id, record.attempt) for record in read_records(tmp_path / "run")}
    for record in attempts:
        if (record.episode_id, record.attempt) in final:
            assert record.usage.turns >= 3
        else:
            assert TABLE[record.outcome.cls].cause == "infra", record.outcome
            assert record.outcome.reward is None
    ends = Counter(
        call.state
        for path in (tmp_path / "run").glob("episodes/*/*/attempt-*")
        if (trajectory := read_trajectory(path)) is not None
        for call in trajectory.calls
    )
    assert ends["failed"] >= 1, "the weather was fine"
