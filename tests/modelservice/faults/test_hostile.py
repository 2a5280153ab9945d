"""Hostile content through real sockets on both planes: answered in time, never a 500, alive after."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rock.errors import NotFound
from rock.modelservice.dialects import BY_NAME
from rock.modelservice.hosting.supervise import LOG_FILE, ServiceProcess
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Lease
from tests.modelservice.faults.connection import Connection
from tests.modelservice.faults.hostile import Hostile, Target, large_message, requests
from tests.modelservice.live import HELLO, admin_of, answering, eventually, new_session, raw_agent
from tests.modelservice.test_dialect_fuzz import GOLDEN

ANSWER_SECONDS = 5.0
AT_ONCE = 16
LARGE_MESSAGES = 4
PATIENCE_SECONDS = 0.3
"""Until the sender of what may be no whole request ends its stream."""
SETTINGS = {"max_wait_seconds": 0.5, "max_lease_seconds": 1.0, "max_deliveries": 100_000}
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
GROUP = {
    "group_id": "g",
    "run_id": "r",
    "task_id": "t",
    "size": 1,
    "episodes": [
        {
            "episode_id": "e",
            "index": 0,
            "session_id": None,
            "outcome": {"class": "solved"},
            "reward": 1.0,
            "rows": [
                {
                    "chain": "c",
                    "token_ids": [1, 2],
                    "mask": [0, 1],
                    "logprobs": [0.0, -0.5],
                    "spans": [{"start": 1, "end": 2, "kind": "sampled", "call_id": "s.0"}],
                }
            ],
        }
    ],
}
SPEC = {
    "labels": {"priority": "1"},
    "limits": {"max_calls": 9, "max_parked": 9, "call_deadline_seconds": 9.5},
    "pins": {"model": "m", "temperature": 0.5, "top_p": 1.0, "max_tokens": 5, "stop": ["x"]},
}
CHOICE = {
    "message": {
        "content": "hi",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
    },
    "finish_reason": "stop",
    "token_ids": [1, 2],
    "logprobs": [-0.5, -0.25],
}


def completing(lease_id: str) -> dict[str, Any]:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}
    item = {"lease_id": lease_id, "choices": [CHOICE], "prompt_token_ids": [1, 2, 3]}
    return {"completions": [{**item, "policy_version": 1, "usage": usage}]}


def saying(lease_id: str) -> dict[str, Any]:
    span = {"lease_id": lease_id, "index": 0, "content": "h", "policy_version": 1}
    tokens = {"token_ids": [1], "logprobs": [-0.5], "prompt_token_ids": [1, 2, 3]}
    return {"partials": [{**span, **tokens}], "worker_id": "w"}


def agent_targets(key: str) -> list[Target]:
    targets: list[Target] = []
    for name, dialect in sorted(BY_NAME.items()):
        good = {**GOLDEN[name], "stream": False}
        good.pop("previous_response_id", None)
        bearer = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        for stream in (False, True):
            made = {**good, "stream": stream}
            if not stream:
                made.pop("stream_options", None)
            targets.append(Target(f"/v1{dialect.routes[0]}", made, bearer))
        targets.append(Target(f"/s/{key}/v1{dialect.routes[0]}", good, {}))
    targets.append(Target("/v1/messages/count_tokens", GOLDEN["anthropic"], {"x-api-key": key}))
    targets.append(Target("/v1/models", {}, {"x-api-key": key}, "GET"))
    return targets


def control_targets(key: str, session_id: str, lease_id: str) -> list[Target]:
    bodies: dict[str, dict[str, Any]] = {
        "/trainer/v1/claim": {"worker_id": "w", "max_leases": 1, "wait_seconds": 0.0},
        "/trainer/v1/complete": completing(lease_id),
        "/trainer/v1/partial": saying(lease_id),
        "/trainer/v1/leases": {"lease_ids": [lease_id]},
        "/trainer/v1/cancelled": {"worker_id": "w", "after": 0, "wait_seconds": 0.0},
        "/trainer/v1/renew": {"lease_ids": [lease_id], "lease_seconds": 1.0},
        "/trainer/v1/release": {"lease_ids": ["s.0.1-1"]},
        "/trainer/v1/fail": {"failures": [{"lease_id": "s.0.1-1", "code": "x", "message": "m"}]},
        "/trainer/v1/policy": {"version": 1, "state": "running", "mode": "hold"},
        "/trainer/v1/rollouts/claim": {"worker_id": "w", "max_groups": 1, "wait_seconds": 0.0},
        "/trainer/v1/rollouts/ack": {"lease_ids": ["g1-1"]},
        "/admin/v1/sessions": SPEC,
        "/admin/v1/sessions/nobody/close": {"reason": "finished"},
        "/admin/v1/groups": GROUP,
    }
    bearer = {"Authorization": f"Bearer {key}"}
    made = [Target(path, good, bearer) for path, good in bodies.items()]
    for path in ("health", f"sessions/{session_id}", f"sessions/{session_id}/trajectory"):
        made.append(Target(f"/admin/v1/{path}", {}, bearer, "GET"))
    return made


@dataclass
class Seen:
    """What hostile requests led to."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    closed: int = 0
    """Ended without a reply, which is an answer to what is no request."""
    wrong: list[str] = field(default_factory=list[str])


async def provoke(url: str, hostile: Hostile, seen: Seen) -> None:
    """Send one hostile request and note what came back in time."""
    connection = await Connection.open(url)
    got = b""
    try:
        connection.send(hostile.data)
        async with asyncio.timeout(ANSWER_SECONDS):
            got = await _first_reply(connection, hostile)
    except TimeoutError:
        seen.wrong.append(f"{hostile.kind}: no answer in {ANSWER_SECONDS} s: {_shown(hostile)}")
    except OSError:
        pass  # reset: it would not read the rest
    finally:
        connection.abort()
        await connection.close()
    statuses = [int(status) for status in STATUS.findall(got)]
    if not statuses:
        seen.closed += 1
    for status in statuses:
        seen.statuses[status] += 1
        if status >= 500:
            seen.wrong.append(f"{hostile.kind}: {status} {got[:300]!r} to {_shown(hostile)}")


async def _first_reply(connection: Connection, hostile: Hostile) -> bytes:
    """What comes until the first reply's end or the connection's."""
    got = b""
    unsure = hostile.kind in ("chunked", "smuggled", "cut", "garbage", "line", "headers")
    while not re.search(rb"HTTP/1\.[01] [2-5]\d\d .*?\r\n\r\n", got, re.DOTALL):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if unsure else None):
                piece = await connection.reader.read(1 << 16)
        except TimeoutError:
            unsure = False
            connection.writer.write_eof()
            continue
        if not piece:
            break
        got += piece
    return got


def _shown(hostile: Hostile) -> str:
    data = hostile.data
    return repr(data if len(data) < 3000 else data[:1500] + b" ... " + data[-500:])


async def provoke_all(url: str, inputs: list[Hostile]) -> Seen:
    seen = Seen()
    waiting = asyncio.Semaphore(AT_ONCE)

    async def one(hostile: Hostile) -> None:
        async with waiting:
            await provoke(url, hostile, seen)

    await asyncio.gather(*(one(hostile) for hostile in inputs))
    return seen


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0])


async def hello(leases: list[Lease]) -> list[Completion]:
    """At once and without tokens: the worker is not what is tested."""
    choice = Choice(message=AssistantMessage(content="hello"))
    return [Completion(lease_id=one.lease_id, choices=[choice] * one.request.n) for one in leases]


@asynccontextmanager
async def service_with_worker(folder: Path) -> AsyncGenerator[ServiceProcess, None]:
    async with (
        ServiceProcess(folder / "state", settings=SETTINGS, exit_with_parent=True) as service,
        answering(service, hello),
    ):
        yield service


async def check_well(service: ServiceProcess, folder: Path) -> None:
    """The service answers a good agent, and nothing unexpected is in its log."""
    session = await new_session(service)
    async with raw_agent(service, session.key) as http:
        reply = await http.post("/v1/chat/completions", json=HELLO)
    assert reply.status_code == 200, reply.text
    log = (folder / "state" / LOG_FILE).read_text(errors="replace")
    assert "Traceback" not in log, log[-5000:]


async def storm_of_agents(folder: Path, seed: int, count: int) -> None:
    async with service_with_worker(folder) as service:
        before = resident_bytes(service.pid)
        session = await new_session(service)
        inputs = list(islice(requests(seed, agent_targets(session.key)), count))
        inputs[:: count // LARGE_MESSAGES] = [large_message(session.key)] * LARGE_MESSAGES
        seen = await provoke_all(service.agent_url, inputs)
        print(f"seed {seed}: {count} inputs, {dict(seen.statuses)}, {seen.closed} closed")  # noqa: T201
        assert seen.wrong == []
        assert {200, 400} <= set(seen.statuses)
        async with admin_of(service) as admin:
            await admin.close_session(session.session_id)
        await check_well(service, folder)
        await eventually(lambda: bounded(service.pid, before, inputs))


async def bounded(pid: int, before: int, inputs: list[Hostile]) -> bool:
    """What a service may keep: what was said to it, not twice, and no bomb unpacked."""
    said = sum(len(hostile.data) for hostile in inputs)
    return resident_bytes(pid) < before + 2 * said + 100_000_000


async def storm_of_trainers(folder: Path, seed: int, count: int) -> None:
    async with ServiceProcess(
        folder / "state", settings=SETTINGS, exit_with_parent=True
    ) as service:
        keys = service.keys
        session = await new_session(service)
        targets = control_targets(keys.admin_key, session.session_id, "s.0.1-1")
        inputs = list(islice(requests(seed, targets), count))
        seen = await provoke_all(service.control_url, inputs)
        print(f"seed {seed}: {count} inputs, {dict(seen.statuses)}, {seen.closed} closed")  # noqa: T201
        assert seen.wrong == []
        assert {200, 400} <= set(seen.statuses)
        async with answering(service, hello):
            await check_well(service, folder)
        await drain_groups(service)


async def drain_groups(service: ServiceProcess) -> None:
    """Whatever was published can be claimed and read."""
    async with admin_of(service) as admin:
        with pytest.raises(NotFound):
            await admin.group_status("nobody published this")


async def test_hostile_agents_get_answers_or_refusals_in_time(tmp_path: Path) -> None:
    await storm_of_agents(tmp_path, seed=3, count=400)


async def test_hostile_trainers_get_answers_or_refusals_in_time(tmp_path: Path) -> None:
    await storm_of_trainers(tmp_path, seed=4, count=400)


@pytest.mark.soak
@pytest.mark.timeout(1500)
async def test_thousands_of_hostile_agent_requests(tmp_path: Path, soak_seed: int) -> None:
    await storm_of_agents(tmp_path, soak_seed, count=7_000)


@pytest.mark.soak
@pytest.mark.timeout(1500)
async def test_thousands_of_hostile_control_requests(tmp_path: Path, soak_seed: int) -> None:
    await storm_of_trainers(tmp_path, soak_seed, count=4_000)
