"""What is trained is what was sampled: a real model's log-probabilities, recomputed from the journal.

A small transformer samples over HTTP; its client writes tool arguments anew and drops reasoning;
ModelService is killed in the middle. The rows that a fresh service reads from the journal go to a
fresh process, which computes the log-probabilities of their tokens in one pass. `make test-torch`
makes the environment with torch.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.wire import SessionCreated, Span, TokenRow, Trajectory, encode
from tests.modelservice.live import admin_of, agent, new_session
from tests.modelservice.render.families import write_family

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-torch" / "bin" / "python"
TOLERANCE = 1e-4
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "run",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **more}


@asynccontextmanager
async def worker(service: ServiceProcess, tokenizer: Path, log: Path) -> AsyncGenerator[None]:
    """The trainer's process, until the end of the block."""
    argv = ["-m", "tests.e2e.tiny_model.worker", service.control_url, str(tokenizer), str(log)]
    with log.with_suffix(".err").open("wb") as errors:
        running = await asyncio.create_subprocess_exec(
            PYTHON,
            *argv,
            cwd=ROOT,
            env=environment(ROCK_TEST_KEY=service.keys.trainer_key),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        yield
    finally:
        running.terminate()
        await asyncio.wait_for(running.wait(), 20)


class Client:
    """An agent that echoes answers as some clients do: arguments written anew, reasoning dropped."""

    def __init__(self, client: AsyncOpenAI, system: str, task: str) -> None:
        self._client = client
        self.messages: list[Any] = [
            {"role": "system", "content": system},
            {"role": "user", "content": task},
        ]

    async def turn(self) -> bool:
        """Ask once and run the tool; whether the model called one."""
        reply = await self._client.chat.completions.create(
            model="policy", messages=self.messages, tools=TOOLS, temperature=1.0
        )
        message = reply.choices[0].message
        calls: list[Any] = [call.model_dump() for call in message.tool_calls or ()]
        for call in calls:
            arguments = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"))
        echo: dict[str, Any] = {"role": "assistant", "content": message.content or None}
        self.messages.append(echo | ({"tool_calls": calls} if calls else {}))
        for call in calls:
            said = json.loads(call["function"]["arguments"])["command"]
            out = {"role": "tool", "tool_call_id": call["id"], "content": f"{said}: not found"}
            self.messages.append(out)
        return bool(calls)


async def converse(service: ServiceProcess, session: SessionCreated) -> None:
    """A main agent and, between its turns, a helper; the service is killed on the way."""
    async with agent(session.base_url, max_retries=3) as client:
        main = Client(client, "You work in a sandbox.", "What is in the folder?")
        helper = Client(client, "You are a helper.", "Find the readme.")
        assert await main.turn()
        assert await main.turn()
        assert await helper.turn()
        os.kill(service.pid, signal.SIGKILL)
        await service.restart()
        assert await main.turn()
        while await helper.turn():
            pass
        while await main.turn():
            pass


async def exported(state_dir: Path, session_id: str) -> Trajectory:
    """What a service that has never seen the session reads from the journal."""
    async with ServiceProcess(state_dir) as service, admin_of(service) as admin:
        return await admin.trajectory(session_id)


async def recomputed(trajectory: Path, tokenizer: Path) -> list[dict[str, list[float]]]:
    """Per row: policy version -> log-probability of every token but the first."""
    done = await asyncio.create_subprocess_exec(
        PYTHON,
        *("-m", "tests.e2e.tiny_model.recompute", str(trajectory), str(tokenizer)),
        cwd=ROOT,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(done.communicate(), 120)
    assert done.returncode == 0, errors.decode()[-4000:]
    return [json.loads(line)["logprobs"] for line in out.splitlines()]


def owned(row: TokenRow) -> list[int]:
    return [place for place, mask in enumerate(row.mask) if mask]


def versions_of(row: TokenRow) -> list[int | None]:
    """The policy version of every token."""
    found: list[int | None] = []
    for span in row.spans:
        found += [span.policy_version] * (span.end - span.start)
    return found


def runs_of_versions(spans: list[Span]) -> list[list[int | None]]:
    """[tokens, version] of an answer, however it is cut besides."""
    by_version = groupby(spans, key=lambda span: span.policy_version)
    return [[sum(s.end - s.start for s in found), version] for version, found in by_version]


async def test_the_exported_tokens_have_the_log_probabilities_they_were_sampled_with(
    tmp_path: Path,
) -> None:
    if not (ROOT / ".venv-torch" / ".ready").exists():
        pytest.fail("no environment with torch (make test-torch makes it)", pytrace=False)
    tokenizer, log = tmp_path / "tokenizer", tmp_path / "answers.jsonl"
    tokenizer.mkdir()
    write_family(tokenizer, "chatml")
    async with ServiceProcess(tmp_path / "state") as service:
        session = await new_session(service)
        async with worker(service, tokenizer, log):
            await converse(service, session)
    trajectory = await exported(tmp_path / "state", session.session_id)
    file = tmp_path / "trajectory.json"
    file.write_bytes(encode(trajectory))
    said: list[Any] = [json.loads(line) for line in log.read_text().splitlines()]

    main, helper = trajectory.rows
    assert [len(call.choices) for call in trajectory.calls] == [1] * 8
    assert trajectory.untrainable == {}
    assert said[-1]["prompts"] == {"root": 2, "realigned answer": 6}

    # Every sampled token is in one row, with what was recorded when it was sampled.
    rows = {call: row for row in trajectory.rows for call in (s.call_id for s in row.spans)}
    for call, answer in zip(trajectory.calls, said, strict=True):
        row = rows[call.call_id]
        spans = [s for s in row.spans if s.call_id == call.call_id and s.kind == "sampled"]
        assert runs_of_versions(spans) == answer["versions"]
        assert {s.message for s in spans} == {len(call.request.messages)}
        made = [place for s in spans for place in s.tool_calls]
        assert made == list(range(len(call.choices[0].message.tool_calls or ())))
        start, end = spans[0].start, spans[-1].end
        assert start == answer["prompt_count"]
        assert row.token_ids[start:end] == answer["ids"]
        assert row.logprobs[start:end] == pytest.approx(answer["logprobs"], abs=1e-6)
        assert row.mask[start:end] == [1] * len(answer["ids"])
    assert sum(map(sum, (main.mask, helper.mask))) == sum(len(answer["ids"]) for answer in said)
    assert {version for row in trajectory.rows for version in versions_of(row)} == {None, 1, 2}

    # And a fresh process, with the version that is on record, computes the same.
    for row, found in zip(trajectory.rows, await recomputed(file, tokenizer), strict=True):
        versions = versions_of(row)
        right = [found[str(versions[place])][place] for place in owned(row)]
        wrong = [found[str(3 - (versions[place] or 0))][place] for place in owned(row)]
        recorded = [row.logprobs[place] for place in owned(row)]
        assert right == pytest.approx(recorded, abs=TOLERANCE)
        assert max(abs(a - b) for a, b in zip(wrong, recorded, strict=True)) > 1
