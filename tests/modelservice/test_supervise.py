"""The service as its own process: start, kill -9, restart on the same state, its end."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import ServiceUnavailable
from rock.modelservice.client.client import AdminClient
from rock.modelservice.hosting.server import READY_FILE, Ready
from rock.modelservice.hosting.supervise import LOG_FILE, ServiceProcess
from rock.modelservice.keys import read_keys
from rock.modelservice.planes.attach import Attachment
from rock.modelservice.planes.listening import bind, url_of
from rock.modelservice.wire import SessionSpec
from rock.testing import ScriptedPolicy
from rock.testing.fake_engine import error_reply, fake_openai_server
from tests.modelservice.live import (
    HELLO,
    admin_of,
    agent,
    answering,
    eventually,
    new_session,
    raw_agent,
    trainer_of,
)

USER: Any = {"role": "user", "content": "hi"}


async def kill(service: ServiceProcess) -> None:
    os.kill(service.pid, signal.SIGKILL)
    assert await service.wait() == -signal.SIGKILL


async def test_a_started_service_answers_and_leaves_nothing_when_stopped(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with ServiceProcess(state) as service:
        assert state.stat().st_mode & 0o777 == 0o700
        async with answering(service, ScriptedPolicy(["hello"])):
            session = await new_session(service)
            async with agent(session.base_url) as client:
                reply = await client.chat.completions.create(model="m", messages=[USER])
        assert reply.choices[0].message.content == "hello"
        pid, url = service.pid, service.agent_url
        assert running(pid)
    assert not running(pid)
    assert not (state / "ready.json").exists()
    assert not (state / "attach.sock").exists()
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{url}/v1/models")
    with pytest.raises(ServiceUnavailable):
        _ = service.agent_url


async def test_no_key_and_no_prompt_is_in_the_log(tmp_path: Path) -> None:
    async with ServiceProcess(tmp_path / "state") as service:
        async with answering(service, ScriptedPolicy(["hello"])):
            session = await new_session(service)
            async with raw_agent(service) as http:
                body = {**HELLO, "messages": [{"role": "user", "content": "a-secret-prompt"}]}
                assert (
                    await http.post(f"/s/{session.key}/v1/chat/completions", json=body)
                ).is_success
                assert (await http.get(f"/s/{session.key}/v1/nothing")).status_code == 404
        keys = service.keys
    log = (tmp_path / "state" / LOG_FILE).read_text()
    for secret in (session.key, keys.admin_key, keys.trainer_key, "a-secret-prompt"):
        assert secret not in log


async def test_a_killed_service_goes_on_with_what_it_had(tmp_path: Path) -> None:
    async with ServiceProcess(tmp_path / "state") as service, trainer_of(service) as trainer:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http:
            headers = {"Idempotency-Key": "one"}
            asked = asyncio.ensure_future(
                http.post("/v1/chat/completions", json=HELLO, headers=headers)
            )
            [lost] = (await trainer.claim("w", wait_seconds=10)).leases
            await kill(service)
            with pytest.raises(httpx.HTTPError):
                await asked
            waiting = asyncio.ensure_future(
                http.post("/v1/chat/completions", json=HELLO, headers=headers)
            )
            await service.restart()
            [lease] = (await trainer.claim("w", wait_seconds=10)).leases
            assert lease.call_id == lost.call_id
            [late] = await trainer.complete(
                await ScriptedPolicy(["from a lease of the old process"])([lost])
            )
            assert late.error is not None
            await trainer.complete(await ScriptedPolicy(["answered once"])([lease]))
            reply = (await waiting).json()
        stats = await trainer.stats()
    assert reply["choices"][0]["message"]["content"] == "answered once"
    assert stats.answered == 1


async def test_an_answer_that_was_stored_is_collected_after_a_restart(tmp_path: Path) -> None:
    async with ServiceProcess(tmp_path / "state") as service, trainer_of(service) as trainer:
        session = await new_session(service)
        headers = {"Idempotency-Key": "one", "Authorization": f"Bearer {session.key}"}
        async with httpx.AsyncClient(base_url=service.agent_url, timeout=0.5) as hasty:
            asked = asyncio.ensure_future(
                hasty.post("/v1/chat/completions", json=HELLO, headers=headers)
            )
            [lease] = (await trainer.claim("w", wait_seconds=10)).leases
            with pytest.raises(httpx.ReadTimeout):
                await asked
        [done] = await trainer.complete(await ScriptedPolicy(["stored"])([lease]))
        assert done.error is None
        await kill(service)
        await service.restart()
        async with raw_agent(service, session.key) as http:
            again = {**headers, "x-stainless-retry-count": "1"}
            reply = await http.post("/v1/chat/completions", json=HELLO, headers=again)
        stats = await trainer.stats()
    assert reply.json()["choices"][0]["message"]["content"] == "stored"
    assert (stats.queued, stats.leased) == (0, 0)


async def test_agents_on_a_lent_listener_wait_through_a_restart(tmp_path: Path) -> None:
    async with ServiceProcess(tmp_path / "state") as service:
        session = await new_session(service)
        with bind("127.0.0.1", 0) as listener:
            listener.listen()
            async with (
                Attachment(service.attach_path, listener, session.session_id),
                httpx.AsyncClient(base_url=url_of(listener), timeout=20) as http,
            ):
                assert (await http.get("/v1/models")).status_code == 200
                await kill(service)
                asked = asyncio.ensure_future(http.get("/v1/models"))
                await service.restart()
                assert (await asked).status_code == 200


async def test_a_second_service_on_the_same_state_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    async with ServiceProcess(tmp_path / "state"):
        with pytest.raises(ServiceUnavailable, match=r"(?s)ended with code 2.*error: "):
            await ServiceProcess(tmp_path / "state").__aenter__()


async def test_a_taken_port_and_a_wrong_setting_say_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "rock.modelservice", "--state-dir", str(tmp_path / "state")]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for setting, words in (
            (f"agent_port={port}", f"cannot listen on 127.0.0.1:{port}"),
            ("agent_port=99999", "agent_port"),
            ("no_such=1", "no_such"),
        ):
            child = await process.start(
                [*argv, "--set", setting], env=inherited_environment(), stderr=process.PIPE
            )
            _, err = await asyncio.wait_for(child.communicate(), 20)
            assert child.returncode == 2
            assert words in err.decode()


PARENT = """
import asyncio, sys
from pathlib import Path
from rock.modelservice.hosting.supervise import ServiceProcess

async def main():
    async with ServiceProcess(Path(sys.argv[1]), exit_with_parent=sys.argv[2] == "yes") as service:
        print(service.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("together", ["yes", "no"])
async def test_whether_it_outlives_a_killed_parent_is_the_parents_choice(
    tmp_path: Path, together: str
) -> None:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "state"), together]
    parent = await process.start(argv, env=inherited_environment(), stdout=process.PIPE)
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 30))
    try:
        assert running(pid)
        parent.kill()
        await parent.wait()
        if together == "yes":
            await eventually(lambda: ended(pid))
        else:
            ready = read_ready(tmp_path / "state")
            async with AdminClient(
                ready.control_url, read_keys(tmp_path / "state").admin_key
            ) as admin:
                assert (await admin.health()).status == "ok"
    finally:
        if running(pid):
            os.kill(pid, signal.SIGTERM)
        await eventually(lambda: ended(pid))


def read_ready(state_dir: Path) -> Ready:
    return msgspec.json.decode((state_dir / READY_FILE).read_bytes(), type=Ready)


def running(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def ended(pid: int) -> bool:
    return not running(pid)


async def test_a_hosted_model_with_a_wrong_key_fails_calls_with_the_cause(tmp_path: Path) -> None:
    async with fake_openai_server([error_reply(401, "Incorrect API key provided: sk-x")]) as hosted:
        name = "openai:some-model"
        async with ServiceProcess(
            tmp_path / "state",
            backends=[name],
            api_base=hosted.url,
            environment={"OPENAI_API_KEY": "sk-x"},
        ) as service:
            session = await new_session(service, SessionSpec(backend=name))
            async with raw_agent(service, session.key) as http:
                reply = await http.post("/v1/chat/completions", json=HELLO)
            async with admin_of(service) as admin:
                health = await admin.health()
    assert hosted.keys == ["sk-x"]
    assert reply.status_code == 401
    assert "Incorrect API key provided" in reply.json()["error"]["message"]
    assert "Incorrect API key provided" in (health.backends[name] or "")


async def test_a_service_takes_its_code_from_where_its_starter_did(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('the module queue of this directory')\n")
    with contextlib.chdir(tmp_path):
        async with ServiceProcess(tmp_path / "state") as service:
            assert service.ready.pid > 0
