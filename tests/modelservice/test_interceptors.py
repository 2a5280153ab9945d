"""Interceptors on a live service: set, changed, ordered and removed while agents ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rock.errors import BadRequest, CallFailed, ConfigError, ContextLengthExceeded, Forbidden
from rock.modelservice import wire
from rock.modelservice.client.client import AdminClient
from rock.modelservice.hosting.server import Running
from rock.modelservice.interceptors.hooks import MAX_THREADS
from rock.modelservice.service.service import ModelService
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.wire import SessionSpec
from rock.modelservice.wire.interceptors import Interceptor
from rock.testing.clock import FakeClock
from rock.testing.service import running_service
from tests.modelservice import hooked
from tests.modelservice.fixtures import (
    answered,
    ask,
    assistant,
    claim,
    complete,
    completion,
    open_session,
    running,
    user,
)
from tests.modelservice.live import admin_of, new_session, raw_agent, trainer_of

HOOKED = "tests.modelservice.hooked"


def interceptor(*rules: dict[str, Any], **fields: Any) -> Interceptor:
    body = {**fields, **({"rules": rules} if rules else {})}
    return msgspec.json.decode(json.dumps(body), type=Interceptor)


def system(text: str, **more: Any) -> dict[str, Any]:
    return {"do": "system", "text": text, "place": "append", **more}


def texts(request: wire.CanonicalRequest) -> list[str]:
    return [json.loads(bytes(message))["content"] for message in request.messages]


async def test_a_request_is_edited_and_both_versions_are_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.set_interceptor(
            "calm", interceptor(system("be calm"), {"do": "set", "field": "seed", "value": 5})
        )
        session = await open_session(service, pins=wire.Pins(temperature=0.5))
        await answered(service, session, user("a"), text="b")
        call = await ask(service, session, user("a"), assistant("b"), user("c"))
        [lease] = await claim(service)
        assert texts(lease.request) == ["be calm", "a", "b", "c"]
        assert (lease.request.seed, lease.request.temperature) == (5, 0.5)
        assert lease.parent is not None, "an edit does not break the chain"
        assert lease.parent.messages == 3
        await complete(service, completion(lease, prompt=[1, 2, 3, 10, 11, 9]))
        await call.answer()
        rows = service.trajectory(session.id).rows
    assert [row.token_ids for row in rows] == [[1, 2, 3, 10, 11, 9, 10, 11]]
    async with running(tmp_path) as again:
        exported = again.trajectory(session.id)
        assert [row.token_ids for row in exported.rows] == [row.token_ids for row in rows]
        second = exported.calls[1]
        assert second.original is not None
        assert texts(second.original) == ["a", "b", "c"]
        assert (second.original.seed, second.edited_by) == (None, ["calm"])
        assert texts(second.request) == ["be calm", "a", "b", "c"]
        assert again.interceptors().interceptors[0].interceptor.rules is not None


async def test_interceptors_and_what_they_did_outlive_a_compaction(tmp_path: Path) -> None:
    clock = FakeClock()
    async with running(tmp_path, clock) as service:
        for name in ("one", "two", "gone"):
            await service.set_interceptor(name, interceptor(system(name)))
        over, live = await open_session(service), await open_session(service)
        for session in (over, live):
            await answered(service, session, user("a"))
        await service.set_interceptor("one", interceptor(system("uno")))
        await service.remove_interceptor("gone")
        await service.close_session(over.id)
        clock.advance(service.config.evict_seconds)
        service.tick()
        before = [wire.encode(service.trajectory(session.id)) for session in (over, live)]
        await service.compact()
        await service.set_interceptor("three", interceptor(system("three")))
        await service.compact()
    async with running(tmp_path, clock) as again:
        names = [one.name for one in again.interceptors().interceptors]
        assert names == ["one", "two", "three"]
        after = [again.trajectory(session.id) for session in (over, live)]
        assert [wire.encode(one) for one in after] == before
        assert all(call.original is not None for one in after for call in one.calls)
        call = await ask(again, again.session(live.id), user("b"))
        [lease] = await claim(again)
        assert (lease.call_id, texts(lease.request)) == (call.id, ["uno\n\ntwo\n\nthree", "b"])


async def test_a_retry_of_an_edited_request_still_finds_its_call(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.set_interceptor("calm", interceptor(system("be calm")))
        session = await open_session(service)
        first = await ask(service, session, user("a"))
        service.agent_left(first)
        await service.set_interceptor("calm", interceptor(system("be quick")))
        assert await ask(service, session, user("a")) is first
        other = await ask(service, session, user("b"))
        assert other is not first
        leases = await claim(service, 2)
        assert [texts(lease.request)[0] for lease in leases] == ["be calm", "be quick"]
    async with running(tmp_path) as again:
        retried = await ask(again, again.session(session.id), user("a"))
        assert retried.id == first.id


async def test_they_run_in_order_and_only_where_their_labels_match(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.set_interceptor("late", interceptor(system("3"), order=5))
        await service.set_interceptor("first", interceptor(system("1"), order=-1))
        await service.set_interceptor("second", interceptor(system("2"), match={"team": "*"}))
        await service.set_interceptor("other", interceptor(system("x"), match={"team": "b"}))
        matched = await open_session(service, labels={"team": "a"})
        plain = await open_session(service)
        for session in (matched, plain):
            await ask(service, session, user("hi"))
        [one, two] = await claim(service, 2)
        assert texts(one.request) == ["1\n\n2\n\n3", "hi"]
        assert texts(two.request) == ["1\n\n3", "hi"]
        await service.set_interceptor("late", interceptor(system("0"), order=-2))
        await service.remove_interceptor("first")
        assert not (await service.remove_interceptor("first")).removed
        await ask(service, plain, user("hello"))
        [three] = await claim(service)
        assert texts(three.request) == ["0", "hello"]
        assert [one.name for one in service.interceptors().interceptors] == [
            "late",
            "second",
            "other",
        ]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("forbidden", Forbidden),
        ("invalid_request", BadRequest),
        ("context_length_exceeded", ContextLengthExceeded),
    ],
)
async def test_a_blocked_request_is_a_failed_call_on_record(
    tmp_path: Path, code: str, error: type[Exception]
) -> None:
    rule = {"do": "block", "message": "no mining", "code": code, "when": {"contains": "bitcoin"}}
    async with running(tmp_path) as service:
        await service.set_interceptor("law", interceptor(rule))
        session = await open_session(service)
        call = await ask(service, session, user("mine bitcoin"))
        with pytest.raises(error, match="no mining"):
            await call.answer()
        assert await claim(service) == []
        fine = await ask(service, session, user("mine gold"))
        [lease] = await claim(service)
        assert lease.call_id == fine.id
    async with running(tmp_path) as again:
        blocked = again.trajectory(session.id).calls[0]
    assert (blocked.state, blocked.error_code, blocked.error) == ("failed", code, "no mining")
    assert blocked.edited_by == ["law"]


async def test_an_edited_answer_is_what_the_agent_gets_and_nobody_trains_on(tmp_path: Path) -> None:
    rule = {"do": "replace_text", "find": "secret", "put": "…"}
    async with running(tmp_path) as service:
        await service.set_interceptor("mask", interceptor(rule, on="response"))
        session = await open_session(service)
        call = await ask(service, session, user("a"))
        [lease] = await claim(service)
        done = completion(lease, "the secret")
        [result] = await complete(service, done)
        assert (result.error, result.untrainable) == (None, "edited")
        [again] = await complete(service, done)
        assert (again.error, again.untrainable) == (None, "edited")
        assert (await call.answer()).choices[0].message.content == "the …"
        await answered(service, session, user("b"), text="harmless")
    async with running(tmp_path) as service:
        exported = service.trajectory(session.id)
    first, second = exported.calls
    assert first.choices[0].message.content == "the …"
    assert first.sampled[0].message.content == "the secret"
    assert first.sampled[0].token_ids == [10, 11]
    assert (first.untrainable, first.edited_by) == ("edited", ["mask"])
    assert (second.untrainable, second.sampled, second.edited_by) == (None, [], [])
    assert exported.untrainable == {"edited": 1}
    assert [row.chain for row in exported.rows] == [f"{second.call_id}/0"]


async def test_a_blocked_answer_fails_the_call_and_the_worker_hears_it(tmp_path: Path) -> None:
    rule = {"do": "block", "message": "refused", "when": {"contains": "secret"}}
    async with running(tmp_path) as service:
        await service.set_interceptor("stop", interceptor(rule, on="response"))
        session = await open_session(service)
        call = await ask(service, session, user("a"))
        [lease] = await claim(service)
        [result] = await complete(service, completion(lease, "the secret"))
        assert (result.error, result.untrainable) == (None, "blocked")
        with pytest.raises(Forbidden, match="refused"):
            await call.answer()


async def test_hooks_edit_requests_and_answers(tmp_path: Path) -> None:
    async with running(tmp_path, hooks=hooked.ALLOWED) as service:
        await service.set_interceptor("in", interceptor(hook=f"{HOOKED}:shout"))
        await service.set_interceptor("look", interceptor(hook=f"{HOOKED}:look", order=1))
        await service.set_interceptor("out", interceptor(hook=f"{HOOKED}:redact", on="response"))
        session = await open_session(service, labels={"team": "a"})
        call = await ask(service, session, user("hi"))
        [lease] = await claim(service)
        assert texts(lease.request) == ["hi", "a chat 0"]
        await complete(service, completion(lease, "quiet"))
        answer = await call.answer()
        assert (answer.choices[0].message.content, answer.untrainable) == ("QUIET", "edited")
        states = service.interceptors().interceptors
    assert [(one.name, one.edited, one.unchanged) for one in states] == [
        ("in", 1, 0),
        ("look", 0, 1),
        ("out", 1, 0),
    ]


@pytest.mark.parametrize("name", ["broken", "stop", "hang", "nonsense", "unsendable"])
async def test_a_hook_that_fails_changes_nothing_unless_it_says_so(
    tmp_path: Path, name: str
) -> None:
    hooked.RELEASE.clear()
    hook = interceptor(hook=f"{HOOKED}:{name}", timeout_seconds=0.2)
    try:
        async with running(tmp_path, hooks=hooked.ALLOWED) as service:
            await service.set_interceptor("bad", hook)
            session = await open_session(service)
            await ask(service, session, user("hi"))
            [lease] = await claim(service)
            assert texts(lease.request) == ["hi"]
            await service.set_interceptor("bad", msgspec.structs.replace(hook, on_error="fail"))
            call = await ask(service, session, user("there"))
            with pytest.raises(CallFailed, match="'bad' failed"):
                await call.answer()
            assert service.interceptor("bad").failed == 2
            await service.remove_interceptor("bad")
            await ask(service, session, user("again"))
            [lease] = await claim(service)
            assert texts(lease.request) == ["again"]
    finally:
        hooked.RELEASE.set()


async def test_hooks_that_hang_cost_threads_and_never_the_service(tmp_path: Path) -> None:
    hooked.RELEASE.clear()
    hook = interceptor(hook=f"{HOOKED}:hang", timeout_seconds=0.1)
    count = MAX_THREADS + 8
    try:
        async with running(tmp_path, hooks=hooked.ALLOWED) as service:
            await service.set_interceptor("bad", hook)
            session = await open_session(service)
            await asyncio.gather(*(ask(service, session, user(str(n))) for n in range(count)))
            assert len(await claim(service, count)) == count
            assert service.interceptor("bad").failed == count
    finally:
        hooked.RELEASE.set()


async def test_a_hook_can_block(tmp_path: Path) -> None:
    async with running(tmp_path, hooks=hooked.ALLOWED) as service:
        await service.set_interceptor("no", interceptor(hook=f"{HOOKED}:refuse"))
        call = await ask(service, await open_session(service), user("hi"))
        with pytest.raises(ContextLengthExceeded, match="not today"):
            await call.answer()


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ("nocolon", "expected MODULE:FUNCTION"),
        ("no.such.module:f", "cannot import no.such.module"),
        (f"{HOOKED}:nothing", "no plain function"),
        (f"{HOOKED}:not_plain", "no plain function"),
    ],
)
async def test_a_hook_that_cannot_be_imported_stops_the_start(
    tmp_path: Path, hooks: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        async with ModelService.open(
            ServiceConfig.model_validate({"state_dir": tmp_path, "hooks": hooks})
        ):
            raise AssertionError("it started")


async def test_only_hooks_that_were_allowed_at_the_start_can_be_named(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        with pytest.raises(BadRequest, match="not among those"):
            await service.set_interceptor("x", interceptor(hook="os:system"))
        assert service.interceptors().interceptors == []


# --- over HTTP ---


@dataclass
class Live:
    service: Running
    admin: AdminClient
    http: httpx.AsyncClient


@asynccontextmanager
async def live(tmp_path: Path) -> AsyncGenerator[Live, None]:
    async with running_service(tmp_path) as service, admin_of(service) as admin:
        session = await new_session(service, SessionSpec(labels={"team": "a"}))
        async with raw_agent(service, session.key) as http:
            yield Live(service, admin, http)


async def one_exchange(live: Live, **body: Any) -> tuple[httpx.Response, list[wire.Lease]]:
    """A request, answered by a worker if it gets that far; the reply, and what the worker saw."""
    asked = asyncio.ensure_future(live.http.post("/v1/chat/completions", json=body))
    async with trainer_of(live.service) as trainer:
        claimed = asyncio.ensure_future(trainer.claim("w", wait_seconds=20))
        done, _ = await asyncio.wait({asked, claimed}, return_when=asyncio.FIRST_COMPLETED)
        if asked in done:
            claimed.cancel()
            await asyncio.gather(claimed, return_exceptions=True)
            return asked.result(), []
        leases = claimed.result().leases
        await trainer.complete([completion(lease, "done") for lease in leases])
        return await asked, leases


async def test_the_worked_example_changes_live_traffic(tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("bash", "web_search")
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": "curl evil.sh"}], "tools": tools}
    async with live(tmp_path) as here:
        reply, [lease] = await one_exchange(here, **body)
        assert len(lease.request.tools or ()) == 2
        offline = interceptor({"do": "drop_tools", "names": ["web_search"]}, match={"team": "a"})
        await here.admin.set_interceptor("offline", offline)
        reply, [lease] = await one_exchange(here, **body)
        assert [
            json.loads(bytes(tool))["function"]["name"] for tool in lease.request.tools or ()
        ] == ["bash"]
        block = {"do": "block", "message": "no downloads", "when": {"contains": "curl"}}
        await here.admin.set_interceptor("no-curl", interceptor(block))
        reply, leases = await one_exchange(here, **body)
        assert (reply.status_code, leases) == (403, [])
        assert reply.json()["error"]["message"] == "no downloads"
        reply, leases = await one_exchange(here, **body, stream=True)
        assert (reply.status_code, leases) == (403, [])
        await here.admin.remove_interceptor("no-curl")
        await here.admin.remove_interceptor("offline")
        reply, [lease] = await one_exchange(here, **body)
        assert (reply.status_code, len(lease.request.tools or ())) == (200, 2)


async def test_bad_interceptors_are_refused_with_the_field(tmp_path: Path) -> None:
    async with live(tmp_path) as here, httpx.AsyncClient() as http:
        base = f"{here.service.control_url}/admin/v1/interceptors"
        admin = {"Authorization": f"Bearer {here.service.keys.admin_key}"}
        trainer = {"Authorization": f"Bearer {here.service.keys.trainer_key}"}
        wrong: list[tuple[dict[str, Any], str | None]] = [
            ({"rules": [{"do": "explode"}]}, "rules[0].do"),
            ({"rules": [{"do": "set", "field": "seed"}]}, "rules[0]"),
            ({"rules": [], "on_error": "maybe"}, "on_error"),
            ({"rules": [], "timeout_seconds": 99}, "timeout_seconds"),
            ({"rules": [], "nothing": 1}, None),
        ]
        for body, param in wrong:
            reply = await http.put(f"{base}/x", json=body, headers=admin)
            assert (reply.status_code, reply.json()["error"].get("param")) == (400, param), body
        assert (await http.get(f"{base}/x", headers=admin)).status_code == 404
        assert (await http.put(f"{base}/x", json={"rules": []}, headers=trainer)).status_code == 403
        assert (await http.post(f"{base}/x", json={}, headers=admin)).status_code == 405
        name = "%C3%A4 b%2Fc"
        assert (
            await http.put(f"{base}/{name}", json={"rules": []}, headers=admin)
        ).status_code == 200
        listed = (await http.get(base, headers=admin)).json()
        assert [one["name"] for one in listed["interceptors"]] == ["ä b/c"]
