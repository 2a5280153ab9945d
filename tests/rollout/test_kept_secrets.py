"""Planted secrets again, where a run keeps whole files: working directories, judges, other backends."""

import asyncio
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rock.rollout.episode.workspace import redact_tree
from rock.secrets import MARK, register
from rock.testing.fake_engine import FakeAnswer, error_reply, fake_openai_server
from tests.rollout.live import write_tasks
from tests.rollout.test_secrets import HOSTED, PLANTED, files_with_secrets, spellings

pytestmark = pytest.mark.timeout(120)

AGENT = """
import os

async def agent(seat):
    reply = await seat.client.chat.completions.create(
        model=seat.model, messages=[{"role": "user", "content": seat.instruction}]
    )
    said = reply.choices[0].message.content
    script = f"printf %s '{said}' > answer.txt; mkdir -p '{said}'; ln -s '{said}' link"
    await seat.run(script + "; printf 'x\\\\0%s' '" + os.environ["VENDOR"] + "' > blob.bin")
    print("the agent prints", os.environ["OPENAI_API_KEY"])
    if seat.task.task_id == "broken":
        raise ValueError("refused: " + os.environ["SERVICE_TOKEN"])
    return "done with " + os.environ["VENDOR"]
"""
JUDGE = {"judge": "Score {instruction}.", "show": ["answer.txt"], "model": "judge", "tries": 2}


def write_run(folder: Path, url: str) -> None:
    write_tasks(folder, "fine", "broken")
    (folder / "agent.py").write_text(AGENT)
    backends = {
        "policy": {"use": "openai:p", "api_base": url},
        "judge": {"use": "openai:j", "api_base": url, "api_key_env": "VENDOR"},
    }
    (folder / "backends.yaml").write_text(json.dumps({"backends": backends}))
    run = {
        "tasks": "tasks.jsonl",
        "agent": {"python": "agent.py:agent"},
        "grader": JUDGE,
        "model": "policy",
        "service": {"backends_file": "backends.yaml"},
        "provider": "local",
        "concurrency": 1,
        "infra": {"max_attempts": 1, "max_failed_fraction": 1},
        "consume_timeout_seconds": 0,
    }
    (folder / "run.yaml").write_text(json.dumps(run))


async def rock_run(folder: Path, *argv: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "rock", "run", *argv),
        cwd=folder,
        env={
            **os.environ,
            "OPENAI_API_KEY": HOSTED,
            "SERVICE_TOKEN": PLANTED[1],
            "VENDOR": PLANTED[2],
            "ROCK_LOG_LEVEL": "DEBUG",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        return (await asyncio.wait_for(process.communicate(), 60))[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.userns
async def test_no_secret_is_in_what_a_run_keeps_or_grades_again(tmp_path: Path) -> None:
    score = '{"score": 7, "reason": "I saw %s"}' % HOSTED  # noqa: UP031 - braces
    script: list[FakeAnswer] = [
        f"the key {HOSTED}",
        f"no score, but {HOSTED}",
        score,
        "harmless",
        error_reply(400, f"Bad key {PLANTED[2]}"),
        score.replace("7", "3", 1),
    ]
    async with fake_openai_server(script) as hosted:
        write_run(tmp_path, hosted.url)
        printed = await rock_run(tmp_path, "run.yaml", "--out", "out")
        printed += await rock_run(tmp_path, "--resume", "out", "--regrade")
    out = tmp_path / "out"
    attempt = out / "episodes/fine/0/attempt-1"
    # These things did happen.
    assert (attempt / "workspace/answer.txt").read_text() == f"the key {MARK}", printed.decode()
    assert (attempt / "workspace/blob.bin").read_bytes() == b"x\0" + MARK.encode()
    assert MARK in (attempt / "judge.json").read_text()
    assert "0.3" in (attempt / "record-2.json").read_text()
    # Each grading keeps what was said.
    said = [json.loads((attempt / name).read_text())[0] for name in ("judge.json", "judge-2.json")]
    assert [text[-1]["content"] for text in said] == [
        '{"score": %d, "reason": "I saw %s"}' % (score, MARK)  # noqa: UP031 - braces
        for score in (7, 3)
    ]
    assert f"refused: {MARK}" in (out / "episodes/broken/0/attempt-1/agent.stderr").read_text()
    assert f"Bad key {MARK}" in (out / "episodes/broken/0/attempt-1/record.json").read_text()
    # And nothing of it is anywhere.
    assert files_with_secrets(out, besides=("journal.log",)) == []
    # The journal holds what was said, word for word, and is its owner's only.
    assert stat.S_IMODE((out / "service" / "journal.log").stat().st_mode) == 0o600
    said = files_with_secrets(out / "service")
    assert said == [f"journal.log: {HOSTED}"], "and no key that nobody said"
    assert [form for secret in PLANTED for form in spellings(secret) if form in printed] == []


def test_a_kept_tree_is_redacted_by_content_name_and_link(tmp_path: Path) -> None:
    register(HOSTED)
    inner = tmp_path / f"of {HOSTED}" / "deep"
    inner.mkdir(parents=True)
    (inner / f"{HOSTED}.txt").write_text(f"a {HOSTED} b")
    (inner / "script").write_text(f"#!/bin/sh\n{HOSTED}")
    (inner / "script").chmod(0o555)
    (inner / "link").symlink_to(f"/x/{HOSTED}")
    (tmp_path / "plain").write_text("plain")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text(HOSTED)
    (tmp_path / "out").symlink_to(outside)
    redact_tree(tmp_path)
    deep = tmp_path / f"of {MARK}" / "deep"
    assert (deep / f"{MARK}.txt").read_text() == f"a {MARK} b"
    assert (deep / "script").stat().st_mode & 0o777 == 0o555
    assert MARK in (deep / "script").read_text()
    assert (deep / "link").readlink() == Path(f"/x/{MARK}")
    assert (tmp_path / "plain").read_text() == "plain"
    assert outside.read_text() == HOSTED, "what a link leads to is not the agent's work"
