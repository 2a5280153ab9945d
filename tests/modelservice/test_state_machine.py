"""Agents, workers, the clock, pauses, restarts and crashes in any order, against a simple model."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rock.errors import BadRequest, RockError, SessionClosed
from rock.modelservice import wire
from rock.modelservice.journal import FILE_NAME, frame
from rock.modelservice.service import Call, ModelService
from rock.modelservice.states import ENDED_WITHOUT, WITH_ANSWER, Event, State
from rock.testing.clock import FakeClock
from rock.types import SessionId
from tests.modelservice import simple_model
from tests.modelservice.fixtures import claim, incoming, running, user
from tests.modelservice.simple_model import ModelCall, ModelSession, SimpleModel

T = TypeVar("T")
MAX_SESSIONS = 3
SETTINGS: dict[str, Any] = {
    "cancel_grace_seconds": simple_model.CANCEL_GRACE_SECONDS,
    "restart_grace_seconds": simple_model.RESTART_GRACE_SECONDS,
    "call_deadline_seconds": simple_model.CALL_DEADLINE_SECONDS,
    "max_deliveries": simple_model.MAX_DELIVERIES,
}
TORN = frame(b'{"t":"moved","call":"s.0","event":"sent"}')
anything = st.integers(0, 1 << 16)
"""Picks one of what there is, by its rest."""


class ServiceMachine(RuleBasedStateMachine):
    """The rules are what can happen; the invariant is that service and model agree."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="rock-machine-"))
        self.clock = FakeClock()
        self.model = SimpleModel(now=self.clock.now)
        self.calls: dict[int, Call] = {}
        """The service's call of each open connection."""
        self.copies: list[tuple[bytes, SimpleModel]] = []
        self.starts = 0
        self.made = 0
        self.stack = AsyncExitStack()
        self.service: ModelService
        self.do(self._open(b""))

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(20):
                return await coroutine

        return self.loop.run_until_complete(bounded())

    def at_once(self, step: Callable[[], T]) -> T:
        """A step of the service that waits for nothing; its loop runs all the same."""

        async def stepped() -> T:
            return step()

        return self.do(stepped())

    async def _open(self, journal: bytes) -> None:
        """A service on a directory of its own with this journal."""
        self.starts += 1
        state_dir = self.folder / str(self.starts)
        state_dir.mkdir(mode=0o700)
        if journal:
            (state_dir / FILE_NAME).write_bytes(journal)
        self.stack = AsyncExitStack()
        self.service = await self.stack.enter_async_context(
            running(state_dir, self.clock, wall=self.clock, **SETTINGS)
        )
        self.service.tick()

    def _journal(self) -> bytes:
        return (self.folder / str(self.starts) / FILE_NAME).read_bytes()

    async def _settle(self) -> None:
        """Until everything that happened is on disk."""
        await self.service.policy()

    def teardown(self) -> None:
        try:
            self.do(self.stack.aclose())
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            shutil.rmtree(self.folder)

    # --- agents ---

    @precondition(lambda self: len(self.model.sessions) < MAX_SESSIONS)
    @rule(bounded=st.booleans())
    def open_session(self, bounded: bool) -> None:
        seconds = simple_model.SESSION_DEADLINE_SECONDS if bounded else None
        limits = wire.SessionLimits(session_deadline_seconds=seconds)
        made = self.do(self.service.create_session(wire.SessionSpec(limits=limits)))
        end = None if seconds is None else self.clock.now + seconds
        self.model.sessions[made.session_id] = ModelSession(made.session_id, end)

    @precondition(lambda self: self.model.sessions)
    @rule(
        which=anything,
        text=st.sampled_from("ab"),
        key=st.sampled_from((None, None, "k", "l")),
        retry=st.integers(0, 1),
        stream=st.booleans(),
    )
    def ask(self, which: int, text: str, key: str | None, retry: int, stream: bool) -> None:
        session = pick(self.model.sessions, which)
        expected = self.model.find(session, text, key, retry)
        request = incoming(user(text), key=key, retry=retry, stream=stream)
        submitted = self.service.submit(self.service.session(SessionId(session)), request)
        if isinstance(expected, str):
            error = {"closed": SessionClosed, "conflict": BadRequest}[expected]
            with pytest.raises(error):
                self.do(submitted)
            return
        call = self.do(submitted)
        if expected is None:
            assert call.id not in self.model.calls
            deadline = self.clock.now + simple_model.CALL_DEADLINE_SECONDS
            self.model.calls[call.id] = ModelCall(call.id, session, text, key, deadline)
        else:
            assert call.id == expected.id
            self.model.attach(expected)
        self.made += 1
        self.model.connections[self.made] = call.id
        self.calls[self.made] = call

    @precondition(lambda self: self.model.connections)
    @rule(which=anything)
    def agent_leaves(self, which: int) -> None:
        self._end_connection(pick(self.model.connections, which), sent=False)

    @precondition(lambda self: self._with_outcome())
    @rule(which=anything)
    def agent_is_told(self, which: int) -> None:
        connection = self._with_outcome()[which % len(self._with_outcome())]
        call, model = self.calls[connection], self.model.calls[self.model.connections[connection]]
        if model.state in ENDED_WITHOUT:
            with pytest.raises(RockError):
                self.do(call.answer())
        else:
            answer = self.do(call.answer())
            assert answer.choices[0].message.content == model.answer
        self._end_connection(connection, sent=model.state in WITH_ANSWER)

    def _with_outcome(self) -> list[int]:
        ended = (*WITH_ANSWER, *ENDED_WITHOUT)
        return [
            connection
            for connection, call in self.model.connections.items()
            if self.model.calls[call].state in ended
        ]

    def _end_connection(self, connection: int, *, sent: bool) -> None:
        ended = self.model.calls[self.model.connections[connection]].state in ENDED_WITHOUT
        call = self.calls.pop(connection)
        if not ended:  # else `answer` raised, and nobody is told
            tell = self.service.sent if sent else self.service.agent_left
            self.at_once(lambda: tell(call))
        self.model.detach(connection, sent=sent)

    @precondition(lambda self: self.model.sessions)
    @rule(which=anything, reason=st.sampled_from(("finished", "revoked")))
    def close_session(self, which: int, reason: wire.CloseReason) -> None:
        session = pick(self.model.sessions, which)
        self.do(self.service.close_session(SessionId(session), reason))
        self.model.close(session, reason)

    # --- workers ---

    @rule(count=st.integers(1, 3), seconds=st.sampled_from((5.0, 50.0, 400.0)))
    def claim(self, count: int, seconds: float) -> None:
        waiting = [] if self.model.paused else self.model.in_state(State.QUEUED)
        leases = self.do(claim(self.service, count, lease_seconds=seconds))
        assert len(leases) == min(count, len(waiting))
        for lease in leases:
            call = self.model.calls[lease.call_id]
            assert lease.lease_id not in self.model.leases
            self.model.leased(call, lease.lease_id, seconds)
            assert lease.delivery == call.deliveries
            assert lease.request.messages == [
                wire.Raw(b'{"role": "user", "content": "%b"}' % call.text.encode())
            ]

    @precondition(lambda self: self.model.leases)
    @rule(which=anything, text=st.sampled_from(("yes", "no")))
    def complete(self, which: int, text: str) -> None:
        lease = pick(self.model.leases, which)
        choice = wire.Choice(
            wire.AssistantMessage(content=f"{text} {lease}"),
            token_ids=[1, 2],
            logprobs=[-1.0, -0.5],
        )
        item = wire.Completion(lease, [choice], prompt_token_ids=[3], policy_version=1)
        [result] = self.do(self.service.complete(wire.CompleteRequest([item]))).results
        assert code_of(result) == self.model.complete(lease, f"{text} {lease}")

    @precondition(lambda self: self.model.leases)
    @rule(which=anything)
    def fail(self, which: int) -> None:
        lease = pick(self.model.leases, which)
        request = wire.FailRequest([wire.Failure(lease)])
        [result] = self.do(self.service.fail(request)).results
        assert code_of(result) == self.model.end_lease(lease, Event.FAIL)

    @precondition(lambda self: self.model.leases)
    @rule(which=anything)
    def release(self, which: int) -> None:
        lease = pick(self.model.leases, which)
        request = wire.ReleaseRequest([lease])
        [result] = self.at_once(lambda: self.service.release(request)).results
        assert code_of(result) == self.model.end_lease(lease, Event.RELEASE)

    @precondition(lambda self: self.model.leases)
    @rule(which=anything, seconds=st.sampled_from((5.0, 50.0)))
    def renew(self, which: int, seconds: float) -> None:
        lease = pick(self.model.leases, which)
        request = wire.RenewRequest([lease], lease_seconds=seconds)
        [result] = self.at_once(lambda: self.service.renew(request)).results
        assert code_of(result) == self.model.renew(lease, seconds)

    @rule(mode=st.sampled_from(("hold", "requeue")))
    def pause(self, mode: wire.PauseMode) -> None:
        self.do(self.service.policy(wire.PolicyUpdate(state="paused", mode=mode)))
        self.model.pause(mode)

    @rule()
    def resume(self) -> None:
        self.do(self.service.policy(wire.PolicyUpdate(state="running")))
        self.model.resume()

    # --- time and faults ---

    @rule(seconds=st.sampled_from((1.0, 5.0, 10.0, 40.0, 150.0, 300.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.at_once(self.service.tick)
        self.model.now = self.clock.now
        self.model.tick()

    @rule()
    def restart(self) -> None:
        self.do(self._settle())
        self._reopen(self._journal, self.model)

    @rule(torn=st.integers(0, len(TORN) - 1))
    def crash(self, torn: int) -> None:
        """The journal as it is now, with a part of a record that was being written."""
        self.do(self._settle())
        journal = self._journal() + TORN[:torn]
        self._reopen(lambda: journal, self.model)

    @rule()
    def keep_a_copy(self) -> None:
        self.do(self._settle())
        self.copies.append((self._journal(), copy.deepcopy(self.model)))

    @precondition(lambda self: self.copies)
    @rule(which=anything)
    def go_back_to_a_copy(self, which: int) -> None:
        """As if everything since had never been written."""
        journal, model = self.copies[which % len(self.copies)]
        model = copy.deepcopy(model)
        model.now = self.clock.now
        self._reopen(lambda: journal, model)

    def _reopen(self, journal: Any, model: SimpleModel) -> None:
        self.do(self.stack.aclose())
        self.calls.clear()
        self.model = model
        self.do(self._open(journal()))
        self.model.restart()
        self.model.tick()

    # --- what must hold ---

    @invariant()
    def service_and_model_agree(self) -> None:
        self.do(self._settle())
        for session in self.model.sessions.values():
            info = self.service.session_info(SessionId(session.id))
            assert info.close_reason == session.closed
            calls = self.service.trajectory(SessionId(session.id)).calls
            told = {call.call_id: call.state for call in calls}
            assert told == {call.id: call.state for call in self.model.of(session.id)}
            for call in calls:
                said = [choice.message.content for choice in call.choices]
                assert said == [a for a in [self.model.calls[call.call_id].answer] if a]
        stats = self.service.stats()
        model = self.model
        assert (stats.queued, stats.leased, stats.answered) == (
            len(model.in_state(State.QUEUED)),
            len(model.in_state(State.LEASED)),
            len(model.answered),
        )
        assert stats.policy.leased == stats.leased


def pick(found: dict[Any, Any], which: int) -> Any:
    return list(found)[which % len(found)]


def code_of(result: wire.ItemResult) -> str | None:
    return None if result.error is None else result.error.code


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    run_state_machine_as_test(
        ServiceMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=derandomize,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=[
                HealthCheck.too_slow,
                HealthCheck.filter_too_much,
                HealthCheck.data_too_large,
            ],
        ),
    )


def test_whatever_happens_service_and_model_agree() -> None:
    run(40, 40, derandomize=True)


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_service_and_model_agree_for_long() -> None:
    run(1500, 80, derandomize=False)
