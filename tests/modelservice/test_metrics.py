"""`/metrics`: what it says about real traffic, who may read it, and that its size is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rock.modelservice import wire
from rock.modelservice.engine.observer import reason_class
from rock.modelservice.hosting.server import Running
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Failure
from rock.testing.service import running_service
from tests.modelservice.live import HELLO, eventually, new_session, raw_agent, trainer_of

Samples = dict[tuple[str, ...], float]
DOCS = Path(__file__).parents[2] / "docs" / "observability.md"


async def scrape(service: Running, key: str | None = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=service.control_url) as http:
        given = service.keys.trainer_key if key is None else key
        return await http.get("/metrics", headers={"Authorization": f"Bearer {given}"})


async def samples(service: Running) -> Samples:
    """Values by name and label values."""
    reply = await scrape(service)
    assert reply.status_code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def completion(lease: wire.Lease, *, tokens: bool) -> Completion:
    choice = Choice(
        AssistantMessage(content="ok"),
        token_ids=[1, 2] if tokens else None,
        logprobs=[-0.1, -0.2] if tokens else None,
    )
    return Completion(lease.lease_id, [choice], prompt_token_ids=[7, 8, 9], policy_version=3)


async def test_metrics_tell_what_happened_to_calls(tmp_path: Path) -> None:
    async with running_service(tmp_path, cancel_grace_seconds=0.0) as service:
        session = await new_session(service)
        async with raw_agent(service, session.key) as http, trainer_of(service) as trainer:

            def ask(text: str) -> asyncio.Task[httpx.Response]:
                body = {**HELLO, "messages": [{"role": "user", "content": text}]}
                return asyncio.ensure_future(http.post("/v1/chat/completions", json=body))

            tasks = [ask(text) for text in ("a", "b", "c", "d")]
            await eventually(lambda: holds(service, ("rock_queue_depth", "queue"), 4))
            assert (await samples(service))["rock_parked_calls",] == 4
            leases = (await trainer.claim("w", max_leases=3, policy_version=3)).leases
            now = await samples(service)
            assert now["rock_leases", "queue"] == 3
            assert now["rock_queue_depth", "queue"] == 1
            assert now["rock_connections",] == 4
            assert now["rock_oldest_lease_seconds",] > 0
            await trainer.complete([completion(leases[0], tokens=True)])
            await trainer.complete([completion(leases[1], tokens=False)])
            await trainer.fail([Failure(leases[2].lease_id)])
            [last] = (await trainer.claim("w")).leases
            await trainer.release([last.lease_id])
            [again] = (await trainer.claim("w")).leases
            assert again.delivery == 2
            by_text = dict(zip("abcd", tasks, strict=True))
            gone = by_text.pop(json_text(again))
            gone.cancel()
            replies = await asyncio.gather(*by_text.values())
            assert sorted(reply.status_code for reply in replies) == [200, 200, 502]
            assert (await http.post("/v1/chat/completions", json={})).status_code == 400
            await eventually(
                lambda: holds(service, ("rock_calls_cancelled_total", "grace_over"), 1)
            )
        now = await samples(service)
    expected = {
        ("rock_calls_asked_total", "chat"): 4,
        ("rock_calls_answered_total",): 2,
        ("rock_calls_failed_total", "call_failed"): 1,
        ("rock_requests_refused_total", "invalid_request"): 1,
        ("rock_deliveries_total",): 5,
        ("rock_redeliveries_total",): 1,
        ("rock_answers_untrainable_total", "no token_ids"): 1,
        ("rock_tokens_total", "completion"): 2,
        ("rock_call_wait_seconds_count", "queue"): 4,
        ("rock_call_answer_seconds_count", "queue"): 2,
        ("rock_lease_seconds_count",): 2,
        ("rock_sessions_open",): 1,
        ("rock_connections",): 0,
    }
    assert {name: now[name] for name in expected} == expected
    for name in (
        "rock_journal_bytes",
        "rock_journal_commit_seconds_count",
        "rock_event_loop_lag_seconds_count",
    ):
        assert now[name,] > 0


def json_text(lease: wire.Lease) -> str:
    return bytes(lease.request.messages[-1]).decode().partition('"content":"')[2][0]


async def holds(service: Running, name: tuple[str, ...], value: float) -> bool:
    return (await samples(service)).get(name) == value


async def test_expired_leases_and_joined_retries_are_counted(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        headers = {"Idempotency-Key": "k"}
        async with raw_agent(service, session.key) as http, trainer_of(service) as trainer:
            tasks = [
                asyncio.ensure_future(
                    http.post("/v1/chat/completions", json=HELLO, headers=headers)
                )
                for _ in range(2)
            ]
            await eventually(lambda: holds(service, ("rock_reattachments_total",), 1))
            await trainer.claim("slow", lease_seconds=0.05, wait_seconds=5)
            [lease] = (await trainer.claim("quick", wait_seconds=5)).leases
            await trainer.complete([completion(lease, tokens=True)])
            assert [(await task).status_code for task in tasks] == [200, 200]
        now = await samples(service)
    assert now["rock_leases_expired_total",] == 1
    assert now["rock_redeliveries_total",] == 1
    assert now["rock_calls_answered_total",] == 1


async def test_only_keys_of_the_control_plane_open_metrics(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service:
        session = await new_session(service)
        assert (await scrape(service, service.keys.admin_key)).status_code == 200
        assert (await scrape(service, session.key)).status_code == 401
        async with raw_agent(service, session.key) as http:
            assert (await http.get("/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("17 token_ids but 3 logprobs", "misaligned logprobs"),
        ("choice 3: no logprobs", "no logprobs"),
        ("prompt_token_ids outside 0..2147483647", "token ids out of range"),
        ("logprobs above 0", "logprobs above 0"),
        ("edited", "edited"),
        ("something that a later version says of 12345", "other"),
    ],
)
def test_reasons_are_counted_without_their_figures(reason: str, expected: str) -> None:
    assert reason_class(reason) == expected


async def test_every_metric_is_explained(tmp_path: Path) -> None:
    page = DOCS.read_text()
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        await trainer.policy(version=1)
        reply = await scrape(service)
    names = {family.name for family in text_string_to_metric_families(reply.text)}
    names = {name for name in names if not name.endswith("_created")}
    assert len(names) > 25
    assert {name for name in names if f"`{name}" not in page} == set()
