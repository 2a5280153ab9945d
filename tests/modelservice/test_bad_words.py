"""What is said to who sends nonsense: the field, what was expected, and never more than one can read."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from rock.config import Strict, validated
from rock.errors import (
    MAX_MESSAGE,
    BadRequest,
    CallFailed,
    ConfigError,
    ModelServiceError,
    NotFound,
)
from rock.modelservice import wire
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening, url_of
from rock.modelservice.planes.plane import Reply, Request
from rock.testing.fake_engine import error_reply
from rock.testing.service import running_service
from tests.modelservice.fixtures import ask, claim, open_session, running, user
from tests.modelservice.live import admin_of, trainer_of

LONG = "x" * 50_000
BIG = 10**30


@pytest.mark.parametrize(
    "url", ["", "no url", "http://", "ftp://host", "http://[::1", "http://host:99999999", LONG]
)
def test_what_is_no_address_is_said_before_it_is_used(url: str) -> None:
    with pytest.raises(ConfigError, match="url: expected http://HOST:PORT, got") as caught:
        AdminClient(url, "key")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(("key", "said"), [("", "an empty string"), ("secret\n", "a newline")])
def test_what_is_no_key_is_said_and_not_shown(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"key: .*{said}") as caught:
        TrainerClient("http://127.0.0.1:1", key)
    assert "secret" not in caught.value.message


BAD_ADMIN: list[tuple[str, Callable[[AdminClient], Awaitable[object]]]] = [
    ("there is no session 'x.*50000 long", lambda admin: admin.session(LONG)),
    ("there is no session 'x.*50000 long", lambda admin: admin.trajectory(LONG)),
    ("no group 'x.*50000 long.* was published", lambda admin: admin.group_status(LONG)),
    ("id: text that is not valid Unicode", lambda admin: admin.session("\ud800")),
    ("id: expected a string, got int", lambda admin: admin.session(5)),  # pyright: ignore[reportArgumentType]
    (
        "got 'x.*50000 long",
        lambda admin: admin.create_session(wire.SessionSpec(backend=LONG)),
    ),
    (
        "pins.temperature: expected a finite number, got inf",
        lambda admin: admin.create_session(
            wire.SessionSpec(pins=wire.Pins(temperature=math.inf)),
        ),
    ),
    (
        "limits.max_wall_seconds: expected a finite number, got nan",
        lambda admin: admin.create_session(
            wire.SessionSpec(limits=wire.SessionLimits(max_wall_seconds=math.nan)),
        ),
    ),
    (
        "SessionSpec: cannot be sent as JSON",
        lambda admin: admin.create_session(
            wire.SessionSpec(labels={"a": object()}),  # pyright: ignore[reportArgumentType]
        ),
    ),
    (
        "expected one of finished, revoked",
        lambda admin: admin.close_session("s", LONG),  # pyright: ignore[reportArgumentType]
    ),
]


@pytest.mark.parametrize(("said", "step"), BAD_ADMIN)
async def test_bad_input_of_a_harness_is_named_and_bounded(
    tmp_path: Path, said: str, step: Callable[[AdminClient], Awaitable[object]]
) -> None:
    async with running_service(tmp_path) as service, admin_of(service) as admin:
        with pytest.raises((BadRequest, NotFound), match=said) as caught:
            await step(admin)
        assert len(caught.value.message) < 600


BAD_TRAINER: list[tuple[str, Callable[[TrainerClient], Awaitable[object]]]] = [
    (
        "worker_id: expected a name of 1 to 200 characters, got 50000",
        lambda trainer: trainer.claim(LONG),
    ),
    ("worker_id: .* got 0", lambda trainer: trainer.cancelled("")),
    ("policy_version: Expected `int` <= ", lambda trainer: trainer.claim("w", policy_version=BIG)),
    ("version: Expected `int` <= ", lambda trainer: trainer.policy(version=BIG)),
    ("lease_seconds: expected at least", lambda trainer: trainer.claim("w", lease_seconds=-1)),
    ("lease_seconds: Expected `float`", lambda trainer: trainer.renew([], lease_seconds=math.inf)),
    ("wait_seconds: expected at least 0", lambda trainer: trainer.claim("w", wait_seconds=-1)),
    (
        "mode: Invalid enum value 'x'; expected one of hold, drain, requeue",
        lambda trainer: trainer.policy(mode="x"),  # pyright: ignore[reportArgumentType]
    ),
    ("text that is not valid Unicode", lambda trainer: trainer.release(["\ud800"])),
]


@pytest.mark.parametrize(("said", "step"), BAD_TRAINER)
async def test_bad_input_of_a_trainer_is_named_and_bounded(
    tmp_path: Path, said: str, step: Callable[[TrainerClient], Awaitable[object]]
) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        with pytest.raises(BadRequest, match=said) as caught:
            await step(trainer)
        assert len(caught.value.message) < 600


async def test_items_of_a_batch_are_refused_in_few_words(tmp_path: Path) -> None:
    async with running_service(tmp_path) as service, trainer_of(service) as trainer:
        [result] = await trainer.renew([LONG])
        assert result.error is not None
        assert (result.error.status, len(result.error.message) < 200) == (404, True)


async def test_a_usage_that_cannot_be_is_refused_and_the_lease_stays(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await ask(service, await open_session(service), user("hi"))
        [lease] = await claim(service)
        choice = wire.Choice(wire.AssistantMessage(content="x"))
        wrong = wire.Completion(
            lease.lease_id, [choice], usage=wire.Usage(prompt_tokens=-1, completion_tokens=2)
        )
        [result] = (await service.complete(wire.CompleteRequest([wrong]))).results
        assert result.error is not None
        assert "usage: expected counts of 0 or more, got -1 and 2" in result.error.message
        [kept] = service.renew(wire.RenewRequest([lease.lease_id])).results
        assert kept.error is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_token_ids": [1, BIG]},
        {"usage": wire.Usage(prompt_tokens=BIG, completion_tokens=1)},
        {"usage": wire.Usage(prompt_tokens=1, completion_tokens=1, cached_tokens=BIG)},
    ],
)
async def test_a_number_that_cannot_be_stored_costs_its_item_and_no_other(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        for text in ("one", "two"):
            await ask(service, session, user(text))
        [one, two] = await claim(service, 2)
        choice = wire.Choice(wire.AssistantMessage(content="x"), token_ids=[1], logprobs=[-0.5])
        items = [
            wire.Completion(one.lease_id, [choice], **wrong),
            wire.Completion(two.lease_id, [choice], prompt_token_ids=[1]),
        ]
        bad, good = (await service.complete(wire.CompleteRequest(items))).results
        assert bad.error is not None
        assert "a number of more than 64 bits" in bad.error.message
        assert good.error is None


async def test_what_a_worker_says_of_a_failure_is_kept_as_far_as_one_can_read(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        call = await ask(service, await open_session(service), user("hi"))
        [lease] = await claim(service)
        await service.fail(wire.FailRequest([wire.Failure(lease.lease_id, message="m" * 10**6)]))
        with pytest.raises(CallFailed) as caught:
            await call.answer()
        assert len(caught.value.message) < MAX_MESSAGE + 100
    assert (tmp_path / "journal.log").stat().st_size < 20_000


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(200, b"<html>"), "this is no reply of a ModelService"),
        (Reply(200, b'{"pid": 1}'), "this is no reply of a ModelService"),
        (Reply(200, b"\xff"), "this is no reply of a ModelService"),
        (Reply(502, b"\xff\xfe" + b"<html>" * 10_000), "HTTP 502 without an error body"),
        (error_reply(500, "another service"), "HTTP 500 without an error body"),
    ],
)
async def test_a_server_that_is_no_modelservice_is_said_to_be_none(reply: Reply, said: str) -> None:
    async def other(request: Request) -> Reply:
        return reply

    listener = bind("127.0.0.1", 0)
    adapter = Adapter(other, lambda exc: reply, Bounds(max_body_bytes=1000))
    async with listening(listener, adapter), AdminClient(url_of(listener), "k") as admin:
        with pytest.raises(ModelServiceError, match=said) as caught:
            await admin.session("s")
        assert len(caught.value.message) < 1000


def even(value: int) -> int:
    if value % 2:
        raise ValueError(f"expected an even number, got {value}")
    return value


class Sample(Strict):
    number: Annotated[int, AfterValidator(even)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"number": "x"}, r"^here: number: .*\(given: 'x'\)$"),
        ({"number": 10**5000 + 1, LONG: 1}, r"here: x{80}: "),
        ({"number": 1.5}, r"^here: number: "),
        ({"number": 3}, r"^here: number: expected an even number, got 3 \(given: 3\)$"),
    ],
)
def test_a_wrong_setting_is_named_in_few_words(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        validated(Sample, data, source="here")
    assert len(caught.value.message) < 600


def test_settings_of_a_service_process_are_checked_like_all_others(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings: max_queued: .*\(given: 0\)"):
        ServiceProcess(tmp_path, settings={"max_queued": 0})
    with pytest.raises(ConfigError, match="settings: nonsense: "):
        ServiceProcess(tmp_path, settings={"nonsense": json})
