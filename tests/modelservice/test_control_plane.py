"""The control plane over HTTP: claiming, answering, fencing, rollouts, and bad input."""

import asyncio
import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.errors import BadRequest, Forbidden, NotFound, ServiceUnavailable, Unauthorized
from rock.modelservice.client.blocking import SyncAdminClient, SyncTrainerClient
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.client.shards import TrainerShards
from rock.modelservice.hosting.server import Running
from rock.modelservice.keys import FILE_NAME, ensure_keys
from rock.modelservice.planes.control_plane import ControlPlane
from rock.modelservice.planes.plane import Request
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure, SessionSpec
from rock.modelservice.wire.groups import Group, GroupEpisode
from rock.testing import ScriptedPolicy
from rock.testing.service import running_service
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

BIG = 10**400
"""More than any float."""


def text(lease_id: str, content: str) -> Completion:
    choice = Choice(message=AssistantMessage(content=content))
    return Completion(lease_id=lease_id, choices=[choice])


async def ask(service: Running, key: str, content: str) -> tuple[int, Any]:
    async with raw_agent(service, key) as http:
        body = {**HELLO, "messages": [{"role": "user", "content": content}]}
        reply = await http.post("/v1/chat/completions", json=body)
        return reply.status_code, reply.json()


async def test_a_claim_waits_for_the_first_call_and_takes_a_batch(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service, SessionSpec(labels={"task": "t1"}))
        claim = asyncio.ensure_future(trainer.claim("w", max_leases=3, wait_seconds=20))
        await eventually(lambda: workers_are_waiting(service))
        asked = [asyncio.ensure_future(ask(service, session.key, f"q{i}")) for i in range(5)]
        leases = (await claim).leases
        while len(leases) < 5:
            leases += (await trainer.claim("w", max_leases=3, wait_seconds=5)).leases
        assert (await trainer.claim("w", wait_seconds=0)).leases == []
        assert all(lease.labels == {"task": "t1"} for lease in leases)
        answers = [
            text(lease.lease_id, json.loads(bytes(lease.request.messages[0]))["content"])
            for lease in leases
        ]
        results = await trainer.complete(answers)
        assert [result.error for result in results] == [None] * 5
        assert {result.untrainable is not None for result in results} == {True}
        replies = [await task for task in asked]
    contents = [reply["choices"][0]["message"]["content"] for _, reply in replies]
    assert contents == [f"q{i}" for i in range(5)]


async def workers_are_waiting(service: Running) -> bool:
    return service.service.stats().waiting_workers == 1


async def test_one_bad_item_does_not_spoil_the_batch(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        [lease] = (await trainer.claim("w", wait_seconds=5)).leases
        good = text(lease.lease_id, "a")
        first = await trainer.complete([text("nobody", "x"), good])
        assert [item.error and (item.error.status, item.error.code) for item in first] == [
            (404, "not_found"),
            None,
        ]
        assert (await asked)[0] == 200
        assert (await trainer.complete([good]))[0].error is None
        [changed] = await trainer.complete([text(lease.lease_id, "another")])
        assert changed.error is not None
        assert (changed.error.status, changed.error.code) == (409, "lease_lost")


async def test_a_late_worker_is_fenced_off(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        [slow] = (await trainer.claim("slow", lease_seconds=0.1, wait_seconds=5)).leases
        [quick] = (await trainer.claim("quick", wait_seconds=5)).leases
        assert (quick.call_id, quick.delivery) == (slow.call_id, 2)
        [late] = await trainer.complete([text(slow.lease_id, "late")])
        assert late.error is not None
        assert (late.error.status, late.error.code) == (409, "lease_lost")
        [renewed] = await trainer.renew([slow.lease_id])
        assert renewed.error is not None
        await trainer.complete([text(quick.lease_id, "in time")])
        _, reply = await asked
        assert reply["choices"][0]["message"]["content"] == "in time"


async def test_released_and_failed_calls_go_where_they_should(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        [first] = (await trainer.claim("a", wait_seconds=5)).leases
        assert (await trainer.release([first.lease_id]))[0].error is None
        [again] = (await trainer.claim("b", wait_seconds=5)).leases
        assert again.call_id == first.call_id
        await trainer.fail([Failure(lease_id=again.lease_id, message="out of memory")])
        status, reply = await asked
    assert status == 502
    assert "out of memory" in reply["error"]["message"]


async def test_a_worker_that_hangs_up_while_waiting_loses_no_call(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        session = await new_session(service)
        async with httpx.AsyncClient(timeout=20) as http:
            headers = {"Authorization": f"Bearer {service.keys.trainer_key}"}
            url = f"{service.control_url}/trainer/v1/claim"
            body = {"worker_id": "gone", "wait_seconds": 20}
            claim = asyncio.ensure_future(http.post(url, json=body, headers=headers))
            await eventually(lambda: workers_are_waiting(service))
            claim.cancel()
            await asyncio.gather(claim, return_exceptions=True)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        [lease] = (await trainer.claim("w", wait_seconds=5)).leases
        await trainer.complete([text(lease.lease_id, "a")])
        assert (await asked)[0] == 200


async def test_leases_whose_reply_could_not_be_written_are_free_at_once(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        keys = service.keys
        plane = ControlPlane(
            service.service,
            keys,
            agent_url="",
            attach_path=tmp_path,
            backends={},
            detach=lambda _: asyncio.sleep(0),
        )

        async def body() -> bytes:
            return b'{"worker_id": "gone", "lease_seconds": 3600}'

        session = await new_session(service)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        headers = {"authorization": f"Bearer {keys.trainer_key}"}
        reply = await plane.handle(Request("POST", "/trainer/v1/claim", headers, body))
        assert len(json.loads(reply.body)["leases"]) == 1
        reply.lost()
        [lease] = (await trainer.claim("w", wait_seconds=0)).leases
        await trainer.complete([text(lease.lease_id, "a")])
        assert (await asked)[0] == 200


async def test_policy_version_and_pause_are_kept(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        assert (await trainer.stats()).policy.version is None
        status = await trainer.policy(version=4, state="paused")
        assert (status.version, status.state) == (4, "paused")
        session = await new_session(service)
        asked = asyncio.ensure_future(ask(service, session.key, "q"))
        reply = await trainer.claim("w", wait_seconds=0.1)
        assert (reply.leases, reply.policy_state) == ([], "paused")
        await trainer.policy(state="running")
        [lease] = (await trainer.claim("w", wait_seconds=5)).leases
        await trainer.complete([text(lease.lease_id, "a")])
        assert (await asked)[0] == 200


async def test_a_trajectory_has_every_call_and_its_token_rows(tmp_path: Path) -> None:
    policy = ScriptedPolicy(["one", "two"], policy_version=7)
    async with running_service(tmp_path) as service, answering(service, policy):
        session = await new_session(service)
        messages: list[Any] = [{"role": "user", "content": "q"}]
        async with agent(session.base_url) as client:
            for _ in range(2):
                reply = await client.chat.completions.create(model="m", messages=messages)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                messages.append({"role": "user", "content": "go on"})
        async with admin_of(service) as admin:
            trajectory = await admin.trajectory(session.session_id)
            info = await admin.session(session.session_id)
    assert [call.choices[0].message.content for call in trajectory.calls] == ["one", "two"]
    assert trajectory.calls[1].parent == trajectory.calls[0].call_id
    assert {call.policy_version for call in trajectory.calls} == {7}
    [row] = trajectory.rows
    assert sum(row.mask) == sum(
        len(choice.token_ids or ()) for call in trajectory.calls for choice in call.choices
    )
    assert info.answered == 2


async def test_groups_are_published_claimed_and_acknowledged(tmp_path: Path) -> None:
    episode = GroupEpisode(
        episode_id="e", index=0, session_id=None, outcome={"class": "solved"}, reward=1.0, rows=[]
    )
    group = Group(group_id="run/task 1", run_id="run", task_id="t", size=1, episodes=[episode])
    async with (
        running_service(tmp_path) as service,
        trainer_of(service) as trainer,
        admin_of(service) as admin,
    ):
        claim = asyncio.ensure_future(trainer.claim_rollouts("w", wait_seconds=20))
        assert (await admin.publish_group(group)).accepted is True
        assert (await admin.publish_group(group)).accepted is False
        [claimed] = await claim
        assert claimed.group == group
        assert (await admin.group_status(group.group_id)).state == "leased"
        assert (await trainer.ack_rollouts([claimed.lease_id]))[0].error is None
        assert (await admin.group_status(group.group_id)).state == "acknowledged"
        with pytest.raises(NotFound):
            await admin.group_status("run/another")


async def test_errors_come_back_as_the_classes_they_are(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        async with admin_of(service) as admin:
            with pytest.raises(NotFound):
                await admin.session("nobody")
            with pytest.raises(BadRequest, match="litellm:x") as unknown:
                await admin.create_session(SessionSpec(backend="litellm:x"))
            assert unknown.value.param == "backend"
        async with AdminClient(service.control_url, service.keys.trainer_key) as admin:
            with pytest.raises(Forbidden):
                await admin.health()
        async with TrainerClient(service.control_url, "rt-made-up") as trainer:
            with pytest.raises(Unauthorized):
                await trainer.stats()
    async with TrainerClient(service.control_url, "x", retry_seconds=0.2) as trainer:
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            await trainer.stats()


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/trainer/v1/claim", {"worker_id": 3}, "worker_id", "Expected `str`, got `int`"),
        ("/trainer/v1/claim", {}, None, "worker_id"),
        (
            "/trainer/v1/claim",
            {"worker_id": "w", "max_leases": -1},
            "max_leases",
            "at least 0, got -1",
        ),
        ("/trainer/v1/claim", {"worker_id": "w", "max_leases": -BIG}, "max_leases", f"got -{BIG}"),
        (
            "/trainer/v1/claim",
            {"worker_id": "w", "lease_seconds": -1},
            "lease_seconds",
            "at least 0.01, got -1.0",
        ),
        ("/trainer/v1/claim", {"worker_id": "w", "max_lease": 1}, None, "max_lease"),
        ("/trainer/v1/complete", [], None, "Expected `object`, got `array`"),
        (
            "/trainer/v1/complete",
            {"completions": [{"lease_id": "x", "choices": [{"message": {"content": 1}}]}]},
            "completions[0].choices[0].message.content",
            "got `int`",
        ),
        ("/admin/v1/sessions", {"pins": {"temperature": "hot"}}, "pins.temperature", "got `str`"),
        ("/admin/v1/sessions", "{", None, "not valid JSON"),
    ],
)
async def test_bad_input_is_named(
    tmp_path: Path, path: str, body: Any, param: str | None, words: str
) -> None:
    async with running_service(tmp_path) as service, httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {service.keys.admin_key}"}
        content = body if isinstance(body, str) else json.dumps(body)
        reply = await http.post(service.control_url + path, content=content, headers=headers)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_request")
    assert error.get("param") == param
    assert words in error["message"]


async def test_who_asks_for_more_than_there_ever_is_gets_what_there_is(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {service.keys.trainer_key}"}
        for path, name in (("claim", "max_leases"), ("rollouts/claim", "max_groups")):
            body = {"worker_id": "w", name: BIG, "wait_seconds": 0}
            url = f"{service.control_url}/trainer/v1/{path}"
            reply = await http.post(url, json=body, headers=headers)
            assert (reply.status_code, list(reply.json().values())) == (200, [[]])


async def test_unknown_paths_and_methods_are_said_to_be(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        headers = {"Authorization": f"Bearer {service.keys.admin_key}"}
        async with httpx.AsyncClient(base_url=service.control_url, headers=headers) as http:
            assert (await http.get("/admin/v1/sessions/x/y/z")).status_code == 404
            assert (await http.get("/")).status_code == 404
            wrong = await http.get("/trainer/v1/claim")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")


async def test_the_blocking_clients_do_the_same(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        await asyncio.to_thread(use_blocking_clients, service)


def use_blocking_clients(service: Running) -> None:
    with (
        SyncAdminClient(service.control_url, service.keys.admin_key) as admin,
        SyncTrainerClient(service.control_url, service.keys.trainer_key) as trainer,
    ):
        session = admin.create_session()
        assert admin.session(session.session_id).state == "open"
        assert trainer.claim("w", wait_seconds=0).leases == []
        assert trainer.stats().open_sessions == 1
        with pytest.raises(NotFound):
            admin.close_session("nobody")
    with pytest.raises(ServiceUnavailable, match="closed"):
        trainer.stats()


async def test_a_blocking_client_that_is_closed_lets_no_thread_wait(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        await asyncio.to_thread(close_while_another_waits, service)


def close_while_another_waits(service: Running) -> None:
    with ThreadPoolExecutor(1) as threads:
        with SyncTrainerClient(service.control_url, service.keys.trainer_key) as trainer:
            waiting = threads.submit(trainer.claim, "w", wait_seconds=60)
            while not trainer.stats().waiting_workers:
                time.sleep(0.01)
        with pytest.raises(ServiceUnavailable, match="closed"):
            waiting.result(30)


async def test_a_batch_that_is_cancelled_before_it_is_sent_leaves_nothing_unawaited(
    tmp_path: Path,
) -> None:
    async with running_service(tmp_path) as service:
        completion = Completion(lease_id="0.1.0-1", choices=[])
        async with TrainerShards(service.control_url, service.keys.trainer_key) as trainer:
            sending = asyncio.ensure_future(trainer.complete([completion]))
            await asyncio.sleep(0)  # its parts are tasks now, and have not run
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        gc.collect()  # what was never awaited would be a warning, which is an error here


def test_keys_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    keys = ensure_keys(tmp_path)
    assert ensure_keys(tmp_path) == keys
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert len({keys.trainer_key, keys.admin_key}) == 2
    assert keys.admin_key not in repr(keys)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


async def test_sessions_are_told_the_address_by_which_agents_reach_the_service(
    tmp_path: Path,
) -> None:
    url = "https://gateway.example/rock/"
    async with running_service(tmp_path, public_agent_url=url) as service:
        session = await new_session(service)
    assert session.base_url == f"https://gateway.example/rock/s/{session.key}/v1"
    with pytest.raises(ValueError, match="public_agent_url"):
        ServiceConfig.model_validate({"state_dir": tmp_path, "public_agent_url": "gateway:80"})
