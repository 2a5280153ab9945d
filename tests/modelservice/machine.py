"""Agents, workers, the clock, pauses, restarts and crashes in any order, against a simple model.

`test_state_machine` runs it; `faults/test_planted` makes sure that it finds what it should."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from rock.errors import BadRequest, RockError, SessionClosed
from rock.modelservice import wire
from rock.modelservice.journal.journal import FILE_NAME, framed
from rock.modelservice.service.service import AgentRequest, Call, ModelService, Seen
from rock.modelservice.states import ENDED_WITHOUT, WITH_ANSWER, Event, State
from rock.modelservice.wire.partial import Partial, PartialRequest
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
    "evict_seconds": 30.0,
}
TORN = framed([b'{"t":"moved","call":"s.0","event":"sent"}'])
WEIGHTS = {
    "ask": 14,
    "claim": 14,
    "complete": 12,
    "say": 10,
    "agent_reads": 6,
    "worker_is_lost": 5,
    "agent_leaves": 4,
    "agent_is_told": 8,
    "time_passes": 10,
    "fail": 2,
    "cannot_continue": 2,
    "release": 2,
    "renew": 4,
    "pause": 4,
    "resume": 6,
    "open_session": 2,
    "close_session": 1,
    "restart": 1,
    "crash": 1,
    "compact": 1,
    "keep_a_copy": 1,
    "go_back_to_a_copy": 1,
}
"""What can happen, and how often."""
DICE_SIDES = 31


Files = dict[str, bytes]
Dice = Iterator[int]
"""As many as a step needs, from the one seed that hypothesis draws for it: ids are random, so what a
step finds can differ between two runs of the same choices, and hypothesis must not notice."""


class ServiceMachine(RuleBasedStateMachine):
    """A step is one thing that can happen; the invariant is that service and model agree."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="rock-machine-"))
        self.clock = FakeClock()
        self.model = SimpleModel(now=self.clock.now)
        self.calls: dict[int, Call] = {}
        """The service's call of each open connection."""
        self.copies: list[tuple[Files, SimpleModel]] = []
        self.completions: dict[str, str] = {}
        """The last that each lease was completed with."""
        self.seeds: Counter[int] = Counter()
        """How often each was drawn."""
        self.starts = 0
        self.made = 0
        self.spans = 0
        self.stack = AsyncExitStack()
        self.service: ModelService
        self.do(self._open({}))

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

    async def _open(self, files: Files) -> None:
        """A service on a directory of its own with this journal."""
        self.starts += 1
        state_dir = self.folder / str(self.starts)
        state_dir.mkdir(mode=0o700)
        for name, content in files.items():
            (state_dir / name).write_bytes(content)
        self.stack = AsyncExitStack()
        self.service = await self.stack.enter_async_context(
            running(state_dir, self.clock, wall=self.clock, **SETTINGS)
        )
        self.service.tick()

    def _files(self) -> Files:
        """The journal, in as many files as it has."""
        folder = self.folder / str(self.starts)
        for _ in range(1000):
            paths = sorted(folder.glob("*.log"))
            with contextlib.suppress(FileNotFoundError):
                files = {path.name: path.read_bytes() for path in paths}
                if sorted(folder.glob("*.log")) == paths:  # no compaction came between
                    return files
        raise AssertionError("the journal's files never come to rest")

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

    @initialize()
    def begin(self) -> None:
        """Two agents ask, so that no run is spent on an empty service."""
        for bounded in (False, True):
            self._open_session(bounded=bounded)
            session = pick(self.model.sessions, 0)
            self._ask(session, text="a", key=None, retry=0, stream=False)

    def open_session(self, dice: Dice) -> None:
        if len(self.model.sessions) < MAX_SESSIONS:
            self._open_session(bounded=choose(dice, (False, True)))

    def _open_session(self, *, bounded: bool) -> None:
        seconds = simple_model.SESSION_DEADLINE_SECONDS if bounded else None
        limits = wire.SessionLimits(session_deadline_seconds=seconds)
        made = self.do(self.service.create_session(wire.SessionSpec(limits=limits)))
        end = None if seconds is None else self.clock.now + seconds
        self.model.sessions[made.session_id] = ModelSession(made.session_id, end)

    def ask(self, dice: Dice) -> None:
        self._ask(
            pick(self.model.sessions, next(dice)),
            text=choose(dice, "aab"),
            key=choose(dice, (None, None, "k", "l")),
            retry=choose(dice, (0, 1)),
            stream=choose(dice, (False, True)),
        )

    def _ask(self, session: str, *, text: str, key: str | None, retry: int, stream: bool) -> None:
        expected = self.model.find(session, text, key, retry)
        request = incoming(user(text), key=key, retry=retry, stream=stream)
        submitted = self._submit(SessionId(session), request)
        if isinstance(expected, str):
            error = SessionClosed if expected == "closed" else BadRequest
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

    async def _submit(self, session: SessionId, request: AgentRequest) -> Call:
        # A closed session may be out of memory: then looking for it says that it is closed.
        return await self.service.submit(self.service.session(session), request)

    def agent_leaves(self, dice: Dice) -> None:
        if self.model.connections:
            self._end_connection(pick(self.model.connections, next(dice)), sent=False)

    def agent_is_told(self, dice: Dice) -> None:
        ended = self._with_outcome()
        if not ended:
            return
        connection = pick(ended, next(dice))
        call, model = self.calls[connection], self._model_of(connection)
        if model.state in ENDED_WITHOUT:
            with pytest.raises(RockError):
                self.do(call.answer())
        else:
            answer = self.do(call.answer())
            assert answer.choices[0].message.content == model.answer
        self._end_connection(connection, sent=model.state in WITH_ANSWER)

    def agent_reads(self, dice: Dice) -> None:
        """What was said so far, as a stream shows it."""
        waiting = [one for one in self.calls if self.calls[one].outcome is None]
        if waiting:
            said = [one for one in waiting if self._model_of(one).said]
            self._read(pick(said or waiting, next(dice)))

    def _read(self, connection: int) -> None:
        call, model = self.calls[connection], self._model_of(connection)
        assert [delta.content for delta in call.spans_after(Seen())] == model.said
        if model.said:
            self.do(self.service.bind(call))
        self.model.read(model)

    def _model_of(self, connection: int) -> ModelCall:
        return self.model.calls[self.model.connections[connection]]

    def _with_outcome(self) -> list[int]:
        ended = (*WITH_ANSWER, *ENDED_WITHOUT)
        return [
            connection
            for connection, call in self.model.connections.items()
            if self.model.calls[call].state in ended
        ]

    def _end_connection(self, connection: int, *, sent: bool) -> None:
        ended = self._model_of(connection).state in ENDED_WITHOUT
        call = self.calls.pop(connection)
        if not ended:  # else `answer` raised, and nobody is told
            tell = self.service.sent if sent else self.service.agent_left
            self.at_once(lambda: tell(call))
        self.model.detach(connection, sent=sent)

    def close_session(self, dice: Dice) -> None:
        session = pick(self.model.sessions, next(dice))
        reason: wire.CloseReason = choose(dice, ("finished", "revoked"))
        self.do(self.service.close_session(SessionId(session), reason))
        self.model.close(session, reason)

    # --- workers ---

    def claim(self, dice: Dice) -> None:
        count = choose(dice, (1, 2, 3))
        seconds = choose(dice, (5.0, 50.0, 400.0))
        waiting = [] if self.model.paused else self.model.in_state(State.QUEUED)
        leases = self.do(claim(self.service, count, lease_seconds=seconds))
        assert len(leases) == min(count, len(waiting))
        for lease in leases:
            call = self.model.calls[lease.call_id]
            assert lease.lease_id not in self.model.leases
            self.model.leased(call, lease.lease_id, seconds)
            assert lease.delivery == call.deliveries
            [message] = lease.request.messages
            assert json.loads(bytes(message)) == user(call.text)
            said = lease.prefix or wire.Prefix(spans=0, token_ids=[])
            assert (said.spans, said.content) == (len(call.said), "".join(call.said))
            assert said.token_ids == ids_of(said.content)

    def _some_lease(self, dice: Dice) -> str:
        """Mostly one that can end its call, with spans or without; also one whose call another one has,
        or any that ever was."""
        every = list(self.model.leases)
        live = [lease for lease in every if self.model.verdict(lease) is None]
        leased = {self.model.leases[lease] for lease in live}
        fenced = [one for one in every if one not in live and self.model.leases[one] in leased]
        said = [one for one in live if self.model.calls[self.model.leases[one]].said]
        return pick(choose(dice, (said or live, live, live, fenced, every)) or every, next(dice))

    def complete(self, dice: Dice) -> None:
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        call = self.model.calls[self.model.leases[lease]]
        text = choose(dice, ("".join(call.said), "".join(call.said), "afresh "))
        text += choose(dice, ("yes", "yes", "no")) + f" {lease}"
        if choose(dice, (True, False)):
            text = self.completions.get(lease, text)  # the same again
        self.completions[lease] = text
        ids = ids_of(text)
        choice = wire.Choice(
            wire.AssistantMessage(content=text), token_ids=ids, logprobs=[-0.5] * len(ids)
        )
        item = wire.Completion(lease, [choice], prompt_token_ids=[3], policy_version=1)
        [result] = self.do(self.service.complete(wire.CompleteRequest([item]))).results
        self._check(result, lease, self.model.complete(lease, text))

    def say(self, dice: Dice) -> None:
        """A span; now and then one that was sent before, or one too far."""
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        said = self.model.calls[self.model.leases[lease]].said
        self.spans += 1
        text, index = f"{self.spans} ", len(said)
        if said and choose(dice, (True, False, False)):
            index = next(dice) % len(said)
            text = choose(dice, (text, said[index], said[index]))
        elif choose(dice, (True, *[False] * 9)):
            index += 1
        ids = ids_of(text)
        item = Partial(
            lease_id=lease, index=index, content=text, token_ids=ids, logprobs=[-0.5] * len(ids)
        )
        [result] = self.do(self.service.partial(PartialRequest([item]))).results
        self._check(result, lease, self.model.say(lease, index, text))
        call = self.model.leases[lease]
        readers = [one for one, waits in self.model.connections.items() if waits == call]
        if said and readers and choose(dice, (True, False)):
            self._read(pick(readers, 0))

    def worker_is_lost(self, dice: Dice) -> None:
        """A worker begins an answer and goes, or the service does; the next one has it."""
        self.claim(dice)
        self.say(dice)
        choose(dice, (self.restart, self.crash, self.release, self.time_passes))(dice)
        self.resume(dice)
        self.claim(dice)
        choose(dice, (self.complete, self.cannot_continue, self.say))(dice)

    def cannot_continue(self, dice: Dice) -> None:
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        request = wire.FailRequest([wire.Failure(lease, code="cannot_continue")])
        [result] = self.do(self.service.fail(request)).results
        self._check(result, lease, self.model.cannot_continue(lease))

    def fail(self, dice: Dice) -> None:
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        request = wire.FailRequest([wire.Failure(lease)])
        [result] = self.do(self.service.fail(request)).results
        self._check(result, lease, self.model.end_lease(lease, Event.FAIL))

    def release(self, dice: Dice) -> None:
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        request = wire.ReleaseRequest([lease])
        [result] = self.at_once(lambda: self.service.release(request)).results
        self._check(result, lease, self.model.end_lease(lease, Event.RELEASE))

    def renew(self, dice: Dice) -> None:
        if not self.model.leases:
            return
        lease = self._some_lease(dice)
        seconds = choose(dice, (5.0, 50.0))
        request = wire.RenewRequest([lease], lease_seconds=seconds)
        [result] = self.at_once(lambda: self.service.renew(request)).results
        self._check(result, lease, self.model.renew(lease, seconds))

    def _check(self, result: wire.ItemResult, lease: str, expected: str | None) -> None:
        code = None if result.error is None else result.error.code
        session = self.model.sessions[self.model.calls[self.model.leases[lease]].session]
        if session.closed is not None and code == "lease_lost":
            return  # out of memory, even what was accepted before is only known to be over
        assert code == expected, result.error

    def pause(self, dice: Dice) -> None:
        mode: wire.PauseMode = choose(dice, ("hold", "requeue"))
        self.do(self.service.policy(wire.PolicyUpdate(state="paused", mode=mode)))
        self.model.pause(mode)

    def resume(self, dice: Dice) -> None:
        self.do(self.service.policy(wire.PolicyUpdate(state="running")))
        self.model.resume()

    # --- time and faults ---

    def time_passes(self, dice: Dice) -> None:
        seconds = choose(dice, (1.0, 5.0, 1.0, 10.0, 5.0, 40.0, 1.0, 150.0, 300.0))
        self.clock.advance(seconds)
        self.at_once(self.service.tick)
        self.model.now = self.clock.now
        self.model.tick()

    def restart(self, dice: Dice) -> None:
        self.do(self._settle())
        self._reopen(self._files, self.model)

    def compact(self, dice: Dice) -> None:
        """Agents and workers see nothing of it."""
        self.do(self.service.compact())

    def crash(self, dice: Dice) -> None:
        """The journal as it is now, with a part of a record that was being written."""
        torn = choose(dice, range(len(TORN)))
        self.do(self._settle())
        files = self._files()
        files[FILE_NAME] += TORN[:torn]
        self._reopen(lambda: files, self.model)

    def keep_a_copy(self, dice: Dice) -> None:
        self.do(self._settle())
        self.copies.append((self._files(), copy.deepcopy(self.model)))

    def go_back_to_a_copy(self, dice: Dice) -> None:
        """As if everything since had never been written."""
        if not self.copies:
            return
        files, model = pick(self.copies, next(dice))
        model = copy.deepcopy(model)
        model.now = self.clock.now
        self._reopen(lambda: files, model)

    def _reopen(self, files: Callable[[], Files], model: SimpleModel) -> None:
        self.do(self.stack.aclose())
        self.calls.clear()
        self.model = model
        self.do(self._open(files()))
        self.model.restart()
        self.model.tick()

    # --- all of it ---

    @rule(seed=st.integers(0, 2**32 - 1))
    def something_happens(self, seed: int) -> None:
        # One rule with weights, and dice of our own: hypothesis switches whole rules off in most runs
        # and draws the same again, and what is worth seeing needs an agent, a worker and time together.
        self.seeds[seed] += 1
        rng = random.Random(f"{seed} {self.seeds[seed]}")
        [kind] = rng.choices([*WEIGHTS], [*WEIGHTS.values()])
        note(f"{kind}:")
        getattr(self, kind)(rng.randrange(DICE_SIDES) for _ in itertools.count())

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
        assert (stats.queued, stats.leased) == (
            len(self.model.in_state(State.QUEUED)),
            len(self.model.in_state(State.LEASED)),
        )
        assert stats.policy.leased == stats.leased


def ids_of(text: str) -> list[int]:
    return [*text.encode()]


def choose(dice: Dice, options: Sequence[T]) -> T:
    return options[next(dice) % len(options)]


def pick(found: Iterable[T], which: int) -> T:
    """One of several; the newest for 0."""
    several = list(found)
    return several[-1 - which % len(several)]
