"""Real clients on a bad day: refusals, cut connections, a killed service, long silence.

Whatever happens on the wire, a turn is sampled once: a client's retry collects the answer of the
call that it repeats. "Sampled" is what the policy was asked for; calls that a dead service had
handed out are handed out again, which is a further delivery and no further call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rock.modelservice.wire import SessionSpec
from rock.sandbox.base import ExecStatus
from tests.clients.stage import Seen, Stage, script_for, stage
from tests.clients.tap import Fault, Faults, HangUp, Refuse, Reset, Tap
from tests.clients.test_conformance import check_one_chain
from tests.modelservice.live import HELLO, admin_of, raw_agent, trainer_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.userns,
    pytest.mark.slow,
    pytest.mark.timeout(420),
]

CLIENTS = (
    "openai-chat",
    "openai-stream",
    "openai-responses",
    "mini-swe-agent",
    "codex",
    "claude-code",
    "qwen-code",
)
STREAMING = ("codex", "claude-code", "qwen-code")
"""Those that stream and ask again when a stream breaks off."""
KNOWN_AGAIN = ("codex", "claude-code")
"""Those whose second request is known for a retry although the service had written its answer."""
SECOND = 1
"""The request that goes wrong: not the first, so that there is a parent to find again."""
HTML = Refuse(502, body=b"<html><body>Bad Gateway</body></html>", content_type="text/html")
OVERLOADED = Refuse(503)
LIMITED = Refuse(429, headers={"Retry-After": "2"})


def on(fault: Fault, *numbers: int) -> Faults:
    return lambda number: fault if number in numbers else None


def check_done_and_sampled_once(seen: Seen, recipe: str) -> None:
    assert seen.result.ok, seen.output
    assert seen.written == seen.nonce, seen.output
    turns = len(script_for(recipe))
    check_one_chain(seen.trajectory, turns)
    assert len(seen.leases) == turns


@pytest.mark.parametrize("recipe", CLIENTS)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(OVERLOADED, id="503"),
        pytest.param(LIMITED, id="429"),
        pytest.param(HTML, id="html-502"),
        pytest.param(Reset(), id="reset"),
    ],
)
async def test_client_gets_over_a_fault_and_its_retry_samples_nothing_again(
    recipe: str, fault: Fault, tmp_path: Path
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform(recipe, faults=on(fault, SECOND))
    assert len(seen.tap.sent) > len(script_for(recipe))  # it did ask again
    check_done_and_sampled_once(seen, recipe)


@pytest.mark.parametrize("recipe", KNOWN_AGAIN)
async def test_client_whose_stream_was_cut_gets_the_same_answer_again(
    recipe: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform(recipe, faults=on(Reset(after_bytes=200), SECOND))
    assert len(seen.tap.sent) > len(script_for(recipe))
    check_done_and_sampled_once(seen, recipe)


async def test_lost_answer_of_a_client_without_marks_is_sampled_again_and_called_a_retry(
    tmp_path: Path,
) -> None:
    """Nothing tells this retry from a second sample that is meant (docs/agents.md says so)."""
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform("qwen-code", faults=on(Reset(after_bytes=200), SECOND))
    assert [call.branch for call in seen.trajectory.calls][:3] == [None, None, "retry"]
    assert len(seen.leases) == len(seen.tap.sent)


@pytest.mark.parametrize("recipe", CLIENTS)
async def test_connection_that_is_lost_while_a_client_waits_costs_a_retry_and_no_turn(
    recipe: str, tmp_path: Path
) -> None:
    async with stage(tmp_path, stream_grace_seconds=30) as theatre:
        seen = await theatre.perform(recipe, faults=on(HangUp(), SECOND), hook=hang_up)
    check_done_and_sampled_once(seen, recipe)


@pytest.mark.parametrize("recipe", STREAMING)
async def test_stream_that_is_lost_while_a_client_waits_costs_a_retry_and_no_turn(
    recipe: str, tmp_path: Path
) -> None:
    async def hang_up_once_the_stream_began(place: int, tap: Tap) -> None:
        if place == SECOND:
            await until(lambda: tap.statuses[SECOND] == 200)
        await hang_up(place, tap)

    async with stage(tmp_path, stream_grace_seconds=0.1, keepalive_seconds=0.2) as theatre:
        seen = await theatre.perform(
            recipe, faults=on(HangUp(), SECOND), hook=hang_up_once_the_stream_began
        )
    check_done_and_sampled_once(seen, recipe)


async def hang_up(place: int, tap: Tap) -> None:
    """Answer the second call only when its client has lost the connection and asked again."""
    if place == SECOND:
        tap.hang_up.set()
        await until(lambda: len(tap.sent) > SECOND + 1)


async def test_stream_that_breaks_off_ends_an_agent_on_the_bare_sdk_and_samples_nothing_more(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform("openai-stream", faults=on(Reset(after_bytes=200), SECOND))
    assert not seen.result.ok
    assert len(seen.trajectory.calls) == len(seen.leases) == 2


@pytest.mark.parametrize(("recipe", "tries"), [("openai-chat", 3), ("codex", 30)])
async def test_client_that_only_meets_503_gives_up_and_nothing_is_sampled(
    recipe: str, tries: int, tmp_path: Path
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform(recipe, faults=lambda number: OVERLOADED)
    assert seen.result.status is ExecStatus.EXITED
    assert not seen.result.ok
    assert len(seen.tap.sent) == tries
    assert seen.leases == []
    assert seen.trajectory.calls == []


@pytest.mark.parametrize("recipe", ["mini-swe-agent", "claude-code", "qwen-code"])
async def test_client_that_only_meets_503_is_still_trying_after_half_a_minute(
    recipe: str, tmp_path: Path
) -> None:
    async with stage(tmp_path) as theatre:
        seen = await theatre.perform(recipe, faults=lambda number: OVERLOADED, timeout_seconds=40)
    assert seen.result.status is ExecStatus.TIMED_OUT
    assert len(seen.tap.sent) > 1
    assert seen.leases == []
    assert seen.trajectory.calls == []


@pytest.mark.parametrize("recipe", CLIENTS)
async def test_client_waits_out_a_full_service(recipe: str, tmp_path: Path) -> None:
    async with stage(tmp_path, max_queued=1, cancel_grace_seconds=0) as theatre:
        async with full(theatre):
            playing = asyncio.ensure_future(theatre.perform(recipe))
            await until(lambda: any(429 in tap.statuses for tap in theatre.taps), playing)
        seen = await playing
    assert 429 in seen.tap.statuses
    check_done_and_sampled_once(seen, recipe)


@asynccontextmanager
async def full(theatre: Stage) -> AsyncGenerator[None, None]:
    """The trainer pauses, and a call of somebody else takes the only place in the queue."""
    async with (
        admin_of(theatre.service) as admin,
        trainer_of(theatre.service) as trainer,
    ):
        other = await admin.create_session(SessionSpec())
        await trainer.policy(state="paused")
        async with raw_agent(theatre.service, other.key) as agent:
            waiting = asyncio.ensure_future(agent.post("/v1/chat/completions", json=HELLO))
            try:
                while (await trainer.stats()).queued == 0:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
                yield
            finally:
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting
                while (await trainer.stats()).queued > 0:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
                await trainer.policy(state="running")


@pytest.mark.parametrize("recipe", CLIENTS)
async def test_killed_service_costs_a_client_a_retry_and_no_turn(
    recipe: str, tmp_path: Path
) -> None:
    killed: list[int] = []
    async with stage(tmp_path, stream_grace_seconds=30) as theatre:

        async def kill_in_the_second_call(place: int, tap: Tap) -> None:
            if place == SECOND and not killed:
                killed.append(theatre.service.pid)
                os.kill(theatre.service.pid, signal.SIGKILL)
                await theatre.service.restart()

        seen = await theatre.perform(recipe, hook=kill_in_the_second_call)
    assert killed
    assert seen.result.ok, seen.output
    assert seen.written == seen.nonce
    turns = len(script_for(recipe))
    check_one_chain(seen.trajectory, turns)
    assert len({lease.call_id for lease in seen.leases}) == turns


@pytest.mark.parametrize("recipe", STREAMING)
async def test_service_killed_in_the_middle_of_a_stream_costs_a_retry_and_no_turn(
    recipe: str, tmp_path: Path
) -> None:
    killed: list[int] = []
    async with stage(tmp_path, stream_grace_seconds=0.1, keepalive_seconds=0.2) as theatre:

        async def kill_once_the_stream_began(place: int, tap: Tap) -> None:
            if place == SECOND and not killed:
                await until(lambda: tap.statuses[SECOND] == 200)
                killed.append(theatre.service.pid)
                os.kill(theatre.service.pid, signal.SIGKILL)
                await theatre.service.restart()

        seen = await theatre.perform(recipe, hook=kill_once_the_stream_began)
    assert killed
    assert seen.result.ok, seen.output
    assert seen.written == seen.nonce
    check_one_chain(seen.trajectory, len(script_for(recipe)))


async def test_clients_wait_seventy_seconds_for_an_answer_and_ask_once(tmp_path: Path) -> None:
    async def wait(recipe: str) -> Seen:
        async def answer_late(place: int, tap: Tap) -> None:
            if place == SECOND:
                await asyncio.sleep(70)  # the silence is what is tested

        async with stage(tmp_path / recipe, stream_grace_seconds=1) as theatre:
            return await theatre.perform(recipe, hook=answer_late)

    for recipe in CLIENTS:
        (tmp_path / recipe).mkdir()
    played = await asyncio.gather(*(wait(recipe) for recipe in CLIENTS))
    for recipe, seen in zip(CLIENTS, played, strict=True):
        assert len(seen.tap.sent) == len(script_for(recipe)), recipe
        check_done_and_sampled_once(seen, recipe)


async def until(condition: Callable[[], bool], playing: asyncio.Future[Seen] | None = None) -> None:
    """Poll until true; fails after a bound, or when the performance ended first."""
    async with asyncio.timeout(120):
        while not condition():
            assert playing is None or not playing.done(), "the client ended before it happened"
            await asyncio.sleep(0.02)
