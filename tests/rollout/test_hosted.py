"""Runs answered by a hosted model, and runs whose own ModelService crashes."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from rock.modelservice.client.worker import serve
from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.keys import read_keys
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.records.rundir import read_records
from rock.rollout.run import RunResult, run
from rock.testing import ScriptedPolicy
from rock.testing.fake_engine import FakeAnswer, error_reply, fake_openai_server
from tests.rollout.live import address, new_provider, run_file, wait_until, write_tasks

pytestmark = [pytest.mark.userns, pytest.mark.timeout(120)]

MODEL = "openai:hosted"


async def run_hosted(folder: Path, script: list[FakeAnswer], **fields: object) -> RunResult:
    write_tasks(folder, "a", "b")
    async with (
        fake_openai_server(script) as hosted,
        ServiceProcess(
            folder / "service",
            backends=[MODEL],
            api_base=hosted.url,
            environment={"OPENAI_API_KEY": "sk-test"},
            exit_with_parent=True,
        ) as service,
        new_provider() as provider,
    ):
        return await run(
            run_file(folder, model=MODEL, **fields),
            directory=folder / "run",
            service=address(service),
            provider=provider,
        )


async def test_a_hosted_model_answers_through_its_429_and_500(tmp_path: Path) -> None:
    script: list[FakeAnswer] = [
        error_reply(429, "slow down", headers={"Retry-After": "0"}),
        "write 42",
        error_reply(500, "oops"),
        "done",
        "write 42",
        "done",
    ]
    result = await run_hosted(tmp_path, script, concurrency=1)
    assert (result.exit_code, result.report.total.solved) == (0, 2)
    for record in read_records(tmp_path / "run"):
        assert record.attempt == 1
        assert (record.usage.turns, record.usage.prompt_tokens) == (2, 14)
        assert (record.usage.rows, record.usage.trainable_tokens) == (0, 0)
        assert sum(record.untrainable.values()) == 2


async def test_a_refused_key_stops_the_run_and_names_the_cause(tmp_path: Path) -> None:
    result = await run_hosted(tmp_path, [error_reply(401, "Incorrect API key")], concurrency=2)
    assert result.exit_code == 1
    assert result.failure is not None
    assert "Incorrect API key" in result.failure
    classes = {record.outcome.cls for record in read_records(tmp_path / "run")}
    assert classes == {OutcomeClass.MODEL_UNAUTHORIZED}


async def test_a_run_survives_the_crash_of_its_own_service(tmp_path: Path) -> None:
    write_tasks(tmp_path, "a", "b")
    directory = tmp_path / "run"
    ready = directory / "service" / READY_FILE
    crashed = asyncio.Event()

    async def answer(lease: Lease) -> str:
        if lease.labels["task_id"] == "b":
            await crashed.wait()
        return "done" if turn_of(lease) else "write 42"

    policy = ScriptedPolicy(answer)

    async def train() -> None:
        await wait_until(ready.exists)
        url = msgspec.json.decode(ready.read_bytes(), type=Ready).control_url
        await serve(policy, url=url, key=read_keys(ready.parent).trainer_key)

    async def crash() -> None:
        await wait_until(lambda: any(lease.labels["task_id"] == "b" for lease in policy.seen))
        first = msgspec.json.decode(ready.read_bytes(), type=Ready).pid
        os.kill(first, signal.SIGKILL)
        await wait_until(
            lambda: (
                ready.exists() and msgspec.json.decode(ready.read_bytes(), type=Ready).pid != first
            )
        )
        crashed.set()

    training = asyncio.ensure_future(train())
    crashing = asyncio.ensure_future(crash())
    try:
        async with new_provider() as provider:
            result = await run(run_file(tmp_path), directory=directory, provider=provider)
        await crashing
    finally:
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
    assert (result.exit_code, result.report.total.solved, result.published) == (0, 2, 2)
