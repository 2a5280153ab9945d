"""`rock run --model ...`: a hosted model answers, through rate limits and failures."""

import json
from pathlib import Path

import pytest

from rock.testing import fake_openai_server
from rock.testing.fake_engine import FakeAnswer, error_reply
from tests.cli.command import rock
from tests.rollout.live import AGENT

RUN = """\
tasks: tasks.jsonl
agent:
  command: [python3, /opt/agent.py, "{instruction}"]
  files: {/opt/agent.py: agent.py}
grader: {command: [grep, -q, "42", "{workdir}/answer.txt"]}
provider: local
"""
pytestmark = [pytest.mark.userns, pytest.mark.slow, pytest.mark.timeout(180)]


def write_files(folder: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    (folder / "run.yaml").write_text(RUN)
    (folder / "tasks.jsonl").write_text('{"task_id": "one", "instruction": "write 42"}\n')


async def run_with(
    folder: Path, script: list[FakeAnswer], model: str
) -> tuple[int, str, list[str]]:
    """Exit code, what was printed, and the keys that the hosted model saw."""
    write_files(folder)
    async with fake_openai_server(script) as hosted:
        done = await rock(
            *("run", "run.yaml", "--model", model, "--api-base", hosted.url),
            *("--out", "out"),
            home=folder,
            extra={"OPENAI_API_KEY": "sk-hosted"},
            seconds=150,
        )
        return done.code, done.out + done.err, hosted.keys


async def test_a_run_survives_rate_limits_and_errors_and_keeps_the_key_to_itself(
    tmp_path: Path,
) -> None:
    script: list[FakeAnswer] = [
        error_reply(429, "slow down", headers={"Retry-After": "1"}),
        error_reply(500, "oops"),
        "write 42",
        "done",
    ]
    code, printed, keys = await run_with(tmp_path, script, "litellm:openai/m")
    assert code == 0, printed
    assert keys == ["sk-hosted"] * 4
    record = json.loads((tmp_path / "out/episodes/one/0/attempt-1/record.json").read_text())
    assert record["outcome"]["class"] == "solved"
    assert record["usage"]["turns"] == 2
    assert record["usage"]["prompt_tokens"] == 14
    trajectory = json.loads((tmp_path / "out/episodes/one/0/attempt-1/trajectory.json").read_text())
    # A hosted model gives no token ids: stored, and never passed off as something to train on.
    assert trajectory["rows"] == []
    assert sum(trajectory["untrainable"].values()) == 2
    # The key stays with ModelService: no file of the run, its log included, has it.
    kept = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in kept if b"sk-hosted" in path.read_bytes()] == []


async def test_a_wrong_key_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    refusal: list[FakeAnswer] = [error_reply(401, "Incorrect API key provided")]
    code, printed, keys = await run_with(tmp_path, refusal, "openai:m")
    assert code == 1
    assert "refuses the key" in printed
    assert "Traceback" not in printed
    assert len(keys) == 1  # not tried again: it cannot get better
