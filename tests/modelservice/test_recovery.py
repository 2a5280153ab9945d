"""Restarts: after a clean stop, after abandoning a journal in mid-flight, after kill -9."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import (
    CallFailed,
    ContextLengthExceeded,
    DeadlineExceeded,
    Forbidden,
    JournalError,
    ServiceUnavailable,
    SessionClosed,
)
from rock.modelservice import wire
from rock.modelservice.journal.journal import framed
from rock.modelservice.service.service import AgentRequest
from rock.modelservice.states import State
from rock.modelservice.wire.interceptors import Interceptor
from rock.testing.clock import FakeClock
from rock.types import SessionId
from tests.modelservice.fixtures import (
    answered,
    ask,
    assistant,
    claim,
    complete,
    completion,
    incoming,
    open_session,
    running,
    user,
)

HI = user("hi")


async def test_calls_of_every_state_come_back_as_they_must(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        made = await service.create_session(wire.SessionSpec(labels={"a": "b"}))
        session = service.session(made.session_id)
        delivered = await answered(service, session, HI, text="one")
        waiting_for_agent = await ask(service, session, user("two"))
        failed = await ask(service, session, user("three"))
        leased = await ask(service, session, user("four"))
        leases = {lease.call_id: lease for lease in await claim(service, 9)}
        await complete(service, completion(leases[waiting_for_agent.id], "two!"))
        failure = wire.Failure(leases[failed.id].lease_id, message="no")
        await service.fail(wire.FailRequest([failure]))
        queued = await ask(service, session, user("five"))
        old_lease = leases[leased.id]
        with pytest.raises(JournalError, match="another process"):
            async with running(tmp_path):
                pass
    with pytest.raises(ServiceUnavailable):
        await queued.answer()

    async with running(tmp_path) as service:
        session = service.authenticate(made.key)
        assert session.labels == {"a": "b"}
        states = {call.call_id: call.state for call in service.trajectory(session.id).calls}
        assert states == {
            delivered.id: "delivered",
            waiting_for_agent.id: "undelivered",
            failed.id: "failed",
            leased.id: "queued",
            queued.id: "queued",
        }
        first, second = await claim(service, 9)
        assert [(first.call_id, first.delivery), (second.call_id, second.delivery)] == [
            (leased.id, 2),
            (queued.id, 1),
        ]
        (late,) = await complete(service, completion(old_lease))
        assert late.error is not None
        assert late.error.code == "lease_lost"
        again = await ask(service, session, user("two"))
        assert (await again.answer()).choices[0].message.content == "two!"
        await complete(service, completion(second, "five!"))
        again = await service.submit(session, incoming(user("five"), retry=1))
        assert (await again.answer()).choices[0].message.content == "five!"
        assert service.session_info(session.id).calls == 5


async def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session_id = (await open_session(service)).id
        await answered(service, service.session(session_id), HI, text="hello")
    async with running(tmp_path) as service:
        session = service.session(session_id)
        await answered(
            service,
            session,
            *(HI, assistant("hello"), user("more")),
            prompt=[1, 2, 3, 10, 11, 4],
            ids=[12],
            logprobs=[-0.5],
        )
        (row,) = service.trajectory(session_id).rows
        assert row.token_ids == [1, 2, 3, 10, 11, 4, 12]
        assert row.mask == [0, 0, 0, 1, 1, 0, 1]


async def test_completing_again_after_a_restart_is_still_idempotent(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await ask(service, await open_session(service), HI)
        (lease,) = await claim(service)
        await complete(service, completion(lease))
    async with running(tmp_path) as service:
        (same,) = await complete(service, completion(lease))
        (other,) = await complete(service, completion(lease, "other"))
        assert (same.error, other.error and other.error.code) == (None, "lease_lost")


async def test_policy_sessions_and_reasons_survive(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        await service.policy(wire.PolicyUpdate(version=9, state="paused"))
        session = await open_session(service)
        call = await ask(service, session, HI)
        await service.close_session(session.id, "revoked")
    async with running(tmp_path) as service:
        status = await service.policy()
        assert (status.version, status.state) == (9, "paused")
        info = service.session_info(session.id)
        assert (info.state, info.close_reason, info.cancelled) == ("closed", "revoked", 1)
        with pytest.raises(SessionClosed):
            await ask(service, service.session(session.id), HI)
        assert service.trajectory(session.id).calls[0].state == "cancelled"
        assert call.state is State.CANCELLED


async def test_calls_found_in_the_journal_wait_longer_for_their_agents(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        session_id = (await open_session(service)).id
        await ask(service, service.session(session_id), HI)
        await ask(service, service.session(session_id), user("two"))
    clock = FakeClock()
    async with running(
        tmp_path, clock, cancel_grace_seconds=1.0, restart_grace_seconds=60.0
    ) as service:
        clock.advance(59.0)
        service.tick()
        assert service.session_info(session_id).queued == 2
        back = await ask(service, service.session(session_id), HI)
        clock.advance(1.0)
        service.tick()
        info = service.session_info(session_id)
        assert (info.queued, info.cancelled) == (1, 1)
        assert back.state is State.QUEUED


async def test_every_prefix_of_a_journal_can_be_recovered(tmp_path: Path) -> None:
    """Abandon the service after every single record it wrote."""
    whole = tmp_path / "whole"
    async with running(whole) as service:
        session = await open_session(service)
        first = await answered(service, session, HI)
        second = await ask(service, session, HI, assistant("hello"), user("more"))
        await claim(service)
        service.agent_left(second)
        service.release(wire.ReleaseRequest([f"{second.id}.1-1"]))
        (lease,) = await claim(service)
        await complete(service, completion(lease))
        third = await ask(service, session, user("three"))
        (lease,) = await claim(service)
        await service.fail(wire.FailRequest([wire.Failure(lease.lease_id)]))
        with pytest.raises(CallFailed):
            await third.answer()
        await service.close_session(session.id)
    content = (whole / "journal.log").read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == 0x0A]
    assert len(ends) > 14
    seen: set[str] = set()
    for number, end in enumerate(ends):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "journal.log").write_bytes(content[:end])
        async with running(folder) as service:
            if b"session_opened" not in content[:end]:
                continue
            calls = service.trajectory(session.id).calls
            seen |= {f"{call.call_id}:{call.state}" for call in calls}
            assert all(call.state != "leased" for call in calls)
            waiting = [call.call_id for call in calls if call.state == "queued"]
            assert [lease.call_id for lease in await claim(service, 9)] == waiting
        shutil.rmtree(folder)
    assert {f"{first.id}:queued", f"{first.id}:undelivered", f"{first.id}:delivered"} <= seen
    assert {f"{second.id}:queued", f"{third.id}:queued", f"{third.id}:failed"} <= seen


def cut_after(folder: Path, kind: str) -> None:
    """Leave of the journal what a kill leaves that comes after the last record of that kind."""
    path = folder / "journal.log"
    content = path.read_bytes()
    path.write_bytes(
        content[: content.index(b"\n", content.rindex(b'"t":"%b"' % kind.encode())) + 1]
    )


@pytest.mark.parametrize("reason", ["finished", "revoked"])
async def test_a_kill_in_the_middle_of_closing_a_session_leaves_nothing_to_claim(
    tmp_path: Path, reason: wire.CloseReason
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service)
        for text in ("one", "two"):
            await ask(service, session, user(text))
        await claim(service)
        await service.close_session(session.id, reason)
    cut_after(tmp_path, "session_closed")
    for _ in range(2):  # what it makes of it is on disk, too
        async with running(tmp_path) as service:
            assert await claim(service, 9) == []
            calls = service.trajectory(session.id).calls
            assert [call.state for call in calls] == ["cancelled", "cancelled"]


async def test_calls_that_a_used_up_budget_leaves_in_flight_are_so_after_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as service:
        session = await open_session(service, limits=wire.SessionLimits(max_calls=1))
        await ask(service, session, HI)
        with pytest.raises(ContextLengthExceeded):
            await ask(service, session, user("more"))
    async with running(tmp_path) as service:
        (lease,) = await claim(service, 9)
        assert (await complete(service, completion(lease)))[0].error is None


async def test_a_request_that_a_rule_refused_is_claimed_by_nobody_after_a_kill(
    tmp_path: Path,
) -> None:
    rule: Any = {
        "do": "block",
        "message": "no mining",
        "code": "forbidden",
        "when": {"contains": "hi"},
    }
    law = msgspec.json.decode(msgspec.json.encode({"rules": [rule]}), type=Interceptor)
    async with running(tmp_path) as service:
        await service.set_interceptor("law", law)
        session = await open_session(service)
        call = await ask(service, session, HI)
        with pytest.raises(Forbidden):
            await call.answer()
    cut_after(tmp_path, "queued")
    for _ in range(2):
        async with running(tmp_path) as service:
            assert await claim(service, 9) == []
            (found,) = service.trajectory(session.id).calls
            assert (found.state, found.error) == ("failed", "no mining")


async def test_an_error_in_what_is_due_does_not_end_what_comes_later(tmp_path: Path) -> None:
    class Clock(FakeClock):
        broken = False

        def __call__(self) -> float:
            if self.broken:
                self.broken = False
                raise OverflowError("planted")
            return super().__call__()

    clock = Clock()
    async with running(tmp_path, clock, call_deadline_seconds=5.0) as service:
        call = await ask(service, await open_session(service), HI)
        clock.broken = True
        async with asyncio.timeout(5):
            while clock.broken:  # noqa: ASYNC110 - the service's own ticks tell nobody
                await asyncio.sleep(0.01)
        clock.advance(5.0)
        with pytest.raises(DeadlineExceeded):
            await call.answer()


@pytest.mark.parametrize("kind", ["session_opened", "queued", "leased", "answered"])
async def test_a_journal_that_contradicts_itself_is_refused(tmp_path: Path, kind: str) -> None:
    async with running(tmp_path) as service:
        await answered(service, await open_session(service), HI)
    path = tmp_path / "journal.log"
    content = path.read_bytes()
    (line,) = [
        line for line in content.splitlines(keepends=True) if b'"t":"%b"' % kind.encode() in line
    ]
    path.write_bytes(content + line)
    with pytest.raises(JournalError, match="cannot have happened"):
        async with running(tmp_path):
            pass


INNER = framed([b'abc"']).decode()
"""A whole record whose payload ends a JSON string, so that its newline stands outside of one."""
QUOTING = {
    "at the end of a string": '{"role": "user", "content": "' + INNER + ', "name": "',
    "inside a string": '{"role": "user", "content": "' + INNER.replace('"', " ").rstrip(),
}


@pytest.mark.parametrize("start", QUOTING.values(), ids=QUOTING.keys())
async def test_a_message_that_quotes_a_record_cannot_make_a_torn_journal_look_corrupt(
    tmp_path: Path, start: str
) -> None:
    message = start + "y" * 5000 + '"}'
    async with running(tmp_path) as service:
        session_id = (await open_session(service)).id
        request = wire.CanonicalRequest(model="m", messages=[msgspec.Raw(message.encode())])
        asked = AgentRequest(dialect="chat", request=request, body=b"")
        await service.submit(service.session(session_id), asked)
    path = tmp_path / "journal.log"
    content = path.read_bytes()
    assert INNER[:17].encode() in content
    path.write_bytes(content[:-300])
    async with running(tmp_path) as service:
        assert service.session_info(session_id).calls == 0


SERVICE = """
import asyncio, sys
from pathlib import Path
from typing import Any
from tests.modelservice.fixtures import *

async def main():
    def say(*words):
        print(*words, flush=True)
    async with running(Path(sys.argv[1])) as service:
        made = await service.create_session(wire.SessionSpec())
        session = service.session(made.session_id)
        say("session", made.session_id, made.key)
        async def agent(name):
            for turn in range(100_000):
                call = await ask(service, session, user(f"{name}:{turn}"))
                say("asked", call.id, f"{name}:{turn}")
                answer = await call.answer()
                say("told", call.id, answer.choices[0].message.content)
                service.sent(call)
        async def worker():
            while True:
                request = wire.ClaimRequest(worker_id="w", max_leases=5)
                leases = (await service.claim(request)).leases
                items = []
                for lease in leases:
                    text = json.loads(bytes(lease.request.messages[0]))["content"]
                    say("claimed", lease.call_id, text)
                    items.append(completion(lease, "re " + text))
                for item, result in zip(items, await complete(service, *items)):
                    assert result.error is None
                    say("completed", item.lease_id.rpartition(".")[0], item.choices[0].message.content)
        await asyncio.gather(*(agent(name) for name in range(40)), worker(), worker())

asyncio.run(main())
"""


@pytest.mark.parametrize("lines", [30, 400, 2000])
async def test_nothing_said_is_lost_by_kill_9(tmp_path: Path, lines: int) -> None:
    child = await process.start(
        [sys.executable, "-c", SERVICE, tmp_path],
        env=inherited_environment(),
        cwd=Path(__file__).parent.parent.parent,
        stdout=process.PIPE,
    )
    said: list[list[str]] = []
    try:
        assert child.stdout is not None
        async with asyncio.timeout(30):
            while len(said) < lines:
                said.append((await child.stdout.readline()).decode().split(maxsplit=2))
            child.send_signal(signal.SIGKILL)
            rest = (await child.stdout.read()).decode()
            said += [line.split(maxsplit=2) for line in rest.split("\n")[:-1]]
            await child.wait()
    finally:
        await process.stop(child)
    session_id, key = SessionId(said[0][1]), said[0][2].strip()
    async with running(tmp_path) as service:
        assert service.authenticate(key).id == session_id
        calls = {call.call_id: call for call in service.trajectory(session_id).calls}
        claimable = {lease.call_id for lease in await claim(service, 1000)}
        for what, call_id, text in said[1:]:
            call = calls[call_id]
            asked = json.loads(bytes(call.request.messages[0]))["content"]
            if what in ("told", "completed"):
                assert call.state in ("delivered", "undelivered")
                assert call.choices[0].message.content == text.strip() == f"re {asked}"
            else:
                assert asked == text.strip()
                assert call.state in ("delivered", "undelivered") or call_id in claimable


async def test_a_session_that_was_open_through_a_restart_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        open_one, closed = await open_session(service), await open_session(service)
        await service.close_session(closed.id)
        assert not service.session_info(open_one.id).restarted
    async with running(tmp_path) as service:
        later = await open_session(service)
        assert (await service.close_session(open_one.id)).restarted
        assert not service.session_info(closed.id).restarted
        assert not service.session_info(later.id).restarted
