"""Log lines: what they are about, and that no key, prompt or answer is ever in one."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest

from rock.modelservice.hosting.supervise import LOG_FILE, ServiceProcess
from rock.modelservice.telemetry.logs import JsonFormat, TextFormat, about
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure, SessionSpec
from tests.modelservice.live import admin_of, new_session, raw_agent, trainer_of

SECRET = "correct horse battery staple"


async def raw_exchange(service: ServiceProcess, data: bytes) -> bytes:
    host, port = service.agent_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    writer.write_eof()
    reply = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    return reply


async def hostile_traffic(service: ServiceProcess) -> list[str]:
    """Secrets wherever a client can put them; the keys that were used."""
    session = await new_session(service, SessionSpec(labels={"note": SECRET}))
    keys = service.keys
    body = {"model": SECRET, "messages": [{"role": "user", "content": SECRET}]}
    async with raw_agent(service) as http, trainer_of(service) as trainer:
        bearer = {"Authorization": f"Bearer {session.key}"}
        admin = {"Authorization": f"Bearer {keys.admin_key}"}
        for path in (f"/s/{session.key}/v1/nothing", f"/s/{session.key}/{SECRET}", "/v1/nothing"):
            await http.get(path, headers=bearer)
        await http.post("/v1/chat/completions", content=SECRET, headers=bearer)
        wrong = {**body, "temperature": SECRET, "tools": SECRET, SECRET: 1}
        await http.post("/v1/chat/completions", json=wrong, headers=bearer)
        await http.post("/v1/chat/completions", json=body, headers={"x-api-key": SECRET})
        asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=body, headers=bearer))
        [lease] = (await trainer.claim("w", wait_seconds=5)).leases
        said = Choice(AssistantMessage(content=SECRET))
        await trainer.complete([Completion("nobody", [said]), Completion(lease.lease_id, [])])
        await trainer.fail([Failure(lease.lease_id, message=SECRET)])
        assert (await asked).status_code == 502
        for path in (f"/admin/v1/sessions/{session.key}", f"/admin/v1/{SECRET}"):
            await http.get(service.control_url + path, headers=admin)
        wrong = {"labels": {SECRET: 1}, SECRET: SECRET}
        await http.post(f"{service.control_url}/admin/v1/sessions", json=wrong, headers=admin)
    for line in (
        f"GET /s/{session.key}/v1/models HTTP/9.9\r\nX: {SECRET}\r\n\r\n",
        f"GET /s/{session.key} {SECRET} {SECRET}\r\n\r\n",
        f"POST /v1/chat/completions HTTP/1.1\r\nAuthorization: Bearer {session.key}\r\n"
        f"Content-Length: -5\r\nHost: x\r\n\r\n{SECRET}",
        f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        f"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{SECRET}",
        f"{SECRET}\r\n\r\n",
    ):
        await raw_exchange(service, line.encode())
    async with admin_of(service) as client:
        await client.close_session(session.session_id)
    return [session.key, keys.admin_key, keys.trainer_key]


@pytest.mark.parametrize("style", ["text", "json"])
async def test_no_line_holds_a_key_or_what_was_said(tmp_path: Path, style: str) -> None:
    environment = {"ROCK_LOG_LEVEL": "DEBUG", "ROCK_LOG_FORMAT": style}
    async with ServiceProcess(tmp_path, environment=environment) as service:
        keys = await hostile_traffic(service)
    text = (tmp_path / LOG_FILE).read_text()
    assert "request refused" in text
    assert "call failed" in text
    for secret in (SECRET, SECRET.split()[0], *keys, *(key[:20] for key in keys)):
        assert secret not in text
    if style == "json":
        lines = [json.loads(line) for line in text.splitlines()]
        failed = next(line for line in lines if line["message"] == "call failed")
        assert failed["call_id"].startswith(failed["session_id"])
        assert failed["code"] == "call_failed"


def record_of(name: str, message: str, *args: object, **more: object) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.WARNING, __file__, 1, message, args, None)
    record.__dict__.update(more)
    return record


def test_ids_stand_in_the_line_and_in_the_json() -> None:
    record = record_of("rock.x", "call failed", **about(call_id="s1.0", code=None, n=3))
    assert TextFormat().format(record).endswith("WARNING rock.x: call failed call_id=s1.0 n=3")
    line = json.loads(JsonFormat().format(record))
    assert (line["message"], line["call_id"], line["n"]) == ("call failed", "s1.0", 3)
    assert "code" not in line


def test_what_an_exception_says_is_left_out_and_where_it_was_raised_is_kept() -> None:
    record = record_of("rock.x", "oops")
    try:
        raise ValueError(SECRET)
    except ValueError as exc:
        record.exc_info = (ValueError, exc, exc.__traceback__)
    for text in (TextFormat().format(record), JsonFormat().format(record)):
        assert SECRET not in text
        assert "ValueError" in text
        assert "test_logs.py" in text


def test_of_other_libraries_only_the_fixed_part_of_a_message_is_kept() -> None:
    record = record_of("litellm", "sent %s\nsecond line", SECRET)
    assert TextFormat().format(record).endswith("litellm: sent %s")


def test_values_cannot_break_the_line() -> None:
    record = record_of("rock.x", "m", **about(worker_id="a\nb\ud800", long="x" * 999))
    line = TextFormat().format(record)
    assert "\n" not in line
    line.encode()
    assert len(line) < 400
    json.loads(JsonFormat().format(record))
