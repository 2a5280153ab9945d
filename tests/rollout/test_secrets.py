"""Planted secrets: nothing that a run writes, prints or puts into a sandbox has one in it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rock.config import secret_values
from rock.errors import ConfigError
from rock.modelservice.keys import read_keys
from rock.rollout.inputs.leaks import refuse_leaks
from rock.rollout.inputs.runfile import RunFile, load_run_file
from rock.rollout.inputs.task import LoadedTask, Task
from rock.rollout.run import resume
from rock.secrets import MARK, RedactingStream, Register, credentials_in, register
from rock.testing.fake_engine import FakeAnswer, error_reply, fake_openai_server
from tests.rollout.live import AGENT, GRADER, write_tasks

HOSTED = "sk-planted-hosted-0123456789"
TOKEN = 'tok"planted/ü+&\\0123456789'
NAMED = "planted by name 0123456789"
LOGIN = "planted-pass-0123"
PLANTED = (HOSTED, TOKEN, NAMED, LOGIN)


def spellings(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield json.dumps(secret)[1:-1].encode()
    yield json.dumps(secret, ensure_ascii=False)[1:-1].encode()


def files_with_secrets(folder: Path, *, besides: tuple[str, ...] = ()) -> list[str]:
    found: list[str] = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in besides:
            data = path.read_bytes()
            found += [
                f"{path.relative_to(folder)}: {secret}"
                for secret in PLANTED
                if any(form in data for form in spellings(secret))
            ]
    return found


LOOK = r"""
import glob, os
for path in ["/proc/self/environ", *glob.glob("/proc/[0-9]*/environ")]:
    try:
        print(path, open(path, "rb").read())
    except OSError as exc:
        print(path, exc)
for folder in ("/", "/root", "/home", "/tmp", "/run", "/opt", os.getcwd()):
    print(folder, os.listdir(folder) if os.access(folder, os.R_OK) else "")
"""

IN_THE_HARNESS = """
import os

def grade(work):
    if work.task.task_id == "broken":
        raise ValueError("refused: " + os.environ["SERVICE_TOKEN"])
    return {"reward": 1.0, "detail": "looked at " + os.environ["DATABASE"]}
"""


def write_run(folder: Path, hosted: str) -> None:
    write_tasks(folder, "fine", "broken", "refused", "denied")
    (folder / "agent.py").write_text(LOOK + AGENT)
    (folder / "score.py").write_text(IN_THE_HARNESS)
    run: dict[str, Any] = {
        "tasks": "tasks.jsonl",
        "agent": {
            "command": ["python3", "/opt/agent.py", "{instruction}"],
            "files": {"/opt/agent.py": "agent.py"},
            "timeout_seconds": 60,
        },
        "grader": {"python": "score.py:grade"},
        "model": "openai:hosted",
        "api_base": hosted,
        "provider": "local",
        "secrets": ["DATABASE"],
        "concurrency": 1,
        "infra": {"max_attempts": 1, "max_failed_fraction": 1},
        "consume_timeout_seconds": 0,
    }
    # A comment is where people keep things.
    text = f"# my key is {HOSTED} and the token {json.dumps(TOKEN)}\n{json.dumps(run)}\n"
    (folder / "run.yaml").write_text(text)


@pytest.mark.userns
async def test_no_secret_is_in_what_a_run_writes_prints_or_shows_an_agent(tmp_path: Path) -> None:
    script: list[FakeAnswer] = [
        "done",
        "done",
        error_reply(400, f"Bad request with key {HOSTED}: https://x/?key={HOSTED}"),
        *[error_reply(401, f"Incorrect API key provided: {HOSTED}")] * 9,
    ]
    environment = {
        **os.environ,
        "OPENAI_API_KEY": HOSTED,
        "SERVICE_TOKEN": TOKEN,
        "DATABASE": NAMED,
        "ROCK_LOG_LEVEL": "DEBUG",
    }
    async with fake_openai_server(script) as hosted:
        write_run(tmp_path, hosted.url.replace("://", f"://somebody:{LOGIN}@"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rock", "run", "run.yaml", "--out", "out"),
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), 40)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    out = tmp_path / "out"
    assert (out / "report.json").exists(), printed.decode()
    # The things did happen: the agent looked, the grader told, the model's refusal was passed on.
    looked = (out / "episodes/fine/0/attempt-1/agent.stdout").read_bytes()
    assert b"OPENAI_API_KEY=sk-rock-sandbox" in looked
    records = [path.read_text() for path in sorted(out.rglob("record.json"))]
    assert any(f"refused: {MARK}" in text for text in records)
    assert any(f"looked at {MARK}" in text for text in records)
    assert MARK in (out / "run.yaml").read_text()
    assert f"Incorrect API key provided: {MARK}" in printed.decode()
    # And nothing of it is anywhere.
    assert files_with_secrets(out) == []
    assert [form for secret in PLANTED for form in spellings(secret) if form in printed] == []
    keys = read_keys(out / "service")
    for path in out.rglob("*"):
        if path.is_file() and path.name != "keys.json":
            assert keys.admin_key.encode() not in path.read_bytes(), path
            assert keys.trainer_key.encode() not in path.read_bytes(), path
    with pytest.raises(ConfigError, match="api_base: the run directory keeps it without its"):
        await resume(out)


def test_values_of_variables_with_telling_names_are_secrets() -> None:
    environ = {
        "OPENAI_API_KEY": "a-12345678",
        "GITHUB_TOKEN": "b-12345678",
        "DB_PASSWORD": "c-12345678",
        "AWS_SECRET_ACCESS_KEY": "d-12345678",
        "MY_KEY_2": "e-12345678",
        "MONKEY": "f-12345678",
        "KEYBOARD": "g-12345678",
        "PATH": "h-12345678",
        "DATABASE": "i-12345678",
        "MAX_TOKENS": "j-12345678",
        "TOKEN_LIMIT": "100000000",
        "SSL_KEY": "/etc/ssl/private/key.pem",
        "TEST_PASSWORD": "password",
        "LD_LIBRARY_PATH": "/usr/lib",
        "POSTGRES_URL": "postgres://u:k-12345678@db:5432/x",
    }
    found = secret_values(["DATABASE"], environ)
    assert {value[0] for value in found if value[1:] == "-12345678"} == set("abcdeik")


@pytest.mark.parametrize(
    ("address", "redacted"),
    [
        ("http://me:hunter2@h/v1", f"http://{MARK}h/v1"),
        ("http://me:s3cret-and-long@h/v1", f"http://{MARK}h/v1"),
        ("http://a:b@h/v1", f"{MARK}h/v1"),
        ("https://ghp_0123456789@h/", f"https://{MARK}h/"),
        ("https://h/v1?api-key=abc-123&api-version=1", f"https://h/v1?{MARK}&api-version=1"),
        ("https://h/v1?subscription-key=a%2Fb%2Fc1&x=y", f"https://h/v1?{MARK}&x=y"),
        ("https://h/?sig=0a1b2c3d4e&se=2027", f"https://h/?{MARK}&se=2027"),
        ("http://127.0.0.1:8000/v1?model=key", "http://127.0.0.1:8000/v1?model=key"),
        ("someone@example.com", "someone@example.com"),
        ("http://[::1", "http://[::1"),
    ],
)
def test_what_is_secret_in_an_address_is_redacted(address: str, redacted: str) -> None:
    secrets = Register()
    secrets.register(*credentials_in(address))
    assert secrets.redact_text(f"from {address}") == f"from {redacted}"
    # What is said of it elsewhere may be any text: a plain word stays one.
    assert secrets.redact_text("hunter2 api version 1 sig") == "hunter2 api version 1 sig"


def test_a_password_in_an_address_is_found_apart_from_it_too() -> None:
    secrets = Register()
    secrets.register(*credentials_in("http://me:p%40ss-word-1@h/v1"))
    basic = base64.b64encode(b"me:p@ss-word-1").decode()
    assert secrets.redact_text(f"p@ss-word-1 Basic {basic}") == f"{MARK} Basic {MARK}"


def test_an_address_with_a_password_in_the_wrong_field_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    given = {**BASE, "agent": {"command": ["a"]}, "api_bsae": "http://me:hunter2@h/v1"}
    path.write_text(json.dumps(given))
    with pytest.raises(ConfigError, match=r"api_bsae: .*an address with a password") as caught:
        load_run_file(path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f"x{HOSTED}y", f"x{MARK}y"),
        (json.dumps({"a": TOKEN}), json.dumps({"a": MARK})),
        (json.dumps({"a": TOKEN}, ensure_ascii=False), json.dumps({"a": MARK})),
        ("https://h/?q=tok%22planted%2F%C3%BC%2B%26%5C0123456789&b=1", f"https://h/?q={MARK}&b=1"),
        ("short", "short"),
        ("nothing here", "nothing here"),
    ],
)
def test_a_secret_is_found_however_it_is_spelled(text: str, redacted: str) -> None:
    secrets = Register()
    secrets.register(HOSTED, TOKEN, "short", "")
    assert secrets.redact_text(text) == redacted
    assert secrets.redact(text.encode()) == redacted.encode()
    assert secrets.holds(text) is (text != redacted)


def test_of_two_secrets_the_longer_one_is_replaced_whole() -> None:
    secrets = Register()
    secrets.register("0123456789", "0123456789-and-more")
    assert secrets.redact(b"0123456789-and-more 0123456789") == b"[redacted] [redacted]"


def test_a_sessions_key_is_a_secret_while_it_is_in_use() -> None:
    secrets, key = Register(), "k" * 43
    with secrets.keeping(key):
        assert secrets.redact_text(f"/s/{key}/v1 {'x' * 43}") == f"/s/{MARK}/v1 {'x' * 43}"
        assert secrets.redact(f"/s/{key}/v1".encode()) == f"/s/{MARK}/v1".encode()
    assert secrets.redact_text(key) == key


def test_what_is_printed_is_redacted(capsys: pytest.CaptureFixture[str]) -> None:
    register(HOSTED)
    stream = RedactingStream(sys.stdout)
    assert stream.write(f"key {HOSTED}\n") == len(HOSTED) + 5
    stream.writelines([HOSTED, "\n"])
    assert capsys.readouterr().out == f"key {MARK}\n{MARK}\n"


def test_what_a_library_prints_in_an_ascii_locale_is_redacted() -> None:
    """Such as typer, which writes bytes past a stream that can only say ASCII."""
    script = (
        "import sys, typer; from rock.secrets import RedactingStream, register; "
        f"register({HOSTED!r}); sys.stdout = RedactingStream(sys.stdout); typer.echo({HOSTED!r})"
    )
    ascii_only = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **ascii_only}, capture_output=True
    )
    assert done.stdout.decode() == f"{MARK}\n", done.stderr


BASE: dict[str, Any] = {"tasks": "t.jsonl", "grader": GRADER}
TASK = {"task_id": "t", "instruction": "do it"}


@pytest.mark.parametrize(
    ("agent", "task", "field"),
    [
        ({"env": {"KEY": HOSTED}}, {}, r"agent\.env\.KEY"),
        ({"command": ["a", f"--key={HOSTED}"]}, {}, r"agent\.command\.1"),
        ({}, {"instruction": f"use {HOSTED}"}, r"tasks: t\.instruction"),
        ({}, {"files": {".env": f"KEY={HOSTED}"}}, r"tasks: t\.files\.\.env\.text"),
        ({}, {"grader": {"command": ["x"], "env": {"A": HOSTED}}}, r"tasks: t\.grader\.env\.A"),
        (
            {},
            {"files": {"a": {"source": "tree"}}},
            r"tasks: t: files\.a\.source: .*tree/deep/\.env",
        ),
    ],
)
def test_a_secret_on_its_way_into_a_sandbox_is_refused_by_its_field(
    tmp_path: Path, agent: dict[str, Any], task: dict[str, Any], field: str
) -> None:
    register(HOSTED)
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / ".env").write_text(f"KEY={HOSTED}\n")
    run = RunFile.model_validate({**BASE, "agent": {"command": ["a"], **agent}})
    loaded = LoadedTask(Task.model_validate({**TASK, **task}), tmp_path)
    with pytest.raises(ConfigError, match=f"^{field}.*holds a secret") as caught:
        refuse_leaks(run, [loaded])
    assert HOSTED not in str(caught.value)


def test_a_key_in_the_wrong_field_is_not_repeated_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        json.dumps({**BASE, "agent": {"command": ["a"]}, "api_key": "sk-not-known-yet"})
    )
    with pytest.raises(ConfigError, match=r"api_key: there is no such field \(given: a str\)"):
        load_run_file(path)


def test_a_run_without_secrets_is_let_pass(tmp_path: Path) -> None:
    register(HOSTED)
    run = RunFile.model_validate({**BASE, "agent": {"command": ["a"]}})
    refuse_leaks(run, [LoadedTask(Task.model_validate(TASK), tmp_path)])
