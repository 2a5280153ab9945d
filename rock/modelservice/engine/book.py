"""Every session and call in memory: what the journal's records mean.

`Book.apply` takes one record; applying a journal from its start rebuilds every session, call,
message graph and token row. The running service makes the same changes through the same methods,
and writes the record of each. Nothing in here does I/O.
"""

from __future__ import annotations

from rock.errors import (
    CallFailed,
    InvalidTransition,
    LeaseLost,
    NotFound,
    RockError,
    SessionClosed,
    shown,
)
from rock.modelservice.engine.asked import Original
from rock.modelservice.engine.calls import Call, failure
from rock.modelservice.engine.conversation import Conversation
from rock.modelservice.engine.limits import bound_of
from rock.modelservice.engine.spans import Said
from rock.modelservice.graph.answer import Answer
from rock.modelservice.graph.graph import MessageGraph
from rock.modelservice.graph.places import AnswerRef, Extension
from rock.modelservice.graph.rows import CallTokens, Sample
from rock.modelservice.journal import records
from rock.modelservice.sessions import Over, Session, Sessions
from rock.modelservice.states import OPEN, Event, State
from rock.modelservice.wire.interceptors import Interceptor
from rock.types import CallId, PolicyVersion, SessionId


class Book:
    """Every session and call of one service."""

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.calls: dict[CallId, Call] = {}
        """In the order they were asked."""
        self.policy = records.PolicyChanged(version=None, state="running")
        self.interceptors: dict[str, Interceptor] = {}
        """By name, in the order they were added."""
        self.refused: dict[CallId, RockError] = {}
        """Calls found in the journal that interceptors refused, and with what."""
        self.runs = 0
        """How often a process took the journal over."""
        self._conversations: dict[SessionId, Conversation] = {}

    def conversation(self, session_id: SessionId) -> Conversation:
        return self._conversations[session_id]

    def call(self, call_id: str) -> Call:
        """Raises `NotFound`."""
        call = self.calls.get(CallId(call_id))
        if call is None:
            raise NotFound(f"there is no call {shown(call_id)}")
        return call

    def call_of_lease(self, lease_id: str) -> Call:
        """The call a lease was on. Raises `NotFound`, and `LeaseLost` if the call has ended."""
        call = self.calls.get(CallId(lease_id.rpartition(".")[0]))
        if call is None:
            self._check_retired(lease_id)
            raise NotFound(f"there is no lease {shown(lease_id)}")
        if call.state not in OPEN and call.answered_lease != lease_id:
            raise LeaseLost(f"call {call.id} is {call.state}; drop the work")
        return call

    def _check_retired(self, lease_id: str) -> None:
        try:
            self.sessions.check_retired(lease_id.rpartition(".")[0].rpartition(".")[0])
        except RockError as exc:
            raise LeaseLost(f"{exc.message}; drop the work") from exc

    def retire(self, session: Session) -> Over:
        """Put a closed session, in which nothing is open, out of memory; why it was closed."""
        assert session.close_reason is not None
        for call in self._conversations.pop(session.id).calls:
            del self.calls[call.id]
        over = Over(session.close_reason, session.limit, bound_of(session))
        self.sessions.retire(session.id, session.key_sha256, over)
        return over

    def apply(self, record: records.Record, now: float) -> None:
        """Replay one record of the journal. Records of groups are not the book's."""
        match record:
            case records.SessionOpened():
                self.open_session(record, now)
            case records.SessionEnded():
                session = self.sessions.get(record.session)
                self.sessions.close(session, record.reason, record.limit, at=record.at)
            case records.CallQueued():
                self._replay_queued(record, now)
            case records.PolicyChanged():
                self.policy = record
            case records.InterceptorSet() | records.InterceptorRemoved():
                self.change_interceptors(record)
            case records.Booted():
                self._boot(record)
            case records.SessionArchived():
                over = Over(record.reason, record.limit, record.bound)
                self.sessions.retire(record.session, record.key_sha256, over)
                self.sessions.count(record.counts)
            case records.GroupPublished() | records.GroupLeased() | records.GroupAcknowledged():
                pass
            case _:
                self._apply_to(self.call(record.call), record)

    def _apply_to(self, call: Call, record: records.OfCall) -> None:
        match record:
            case records.CallLeased():
                self._replay_leased(call)
            case records.CallPartial():
                self.add_span(call, record)
            case records.SpansRead():
                call.shown = True
            case records.SpansDropped():
                call.forget_spans()
            case records.CallAnswered():
                call.move(Event.COMPLETE)
                self.store_answer(call, record)
            case records.CallMoved():
                self._replay_moved(call, record.event)
            case records.CallFailedRecord():
                call.move(record.event)
                call.stored = failure(record.code, record.message)
                call.forget_spans()

    def _boot(self, record: records.Booted) -> None:
        """A new process: leases of the last one are over, and so are its connections."""
        self.runs = record.run
        for call in self.calls.values():
            if call.state in (State.QUEUED, State.LEASED, State.ANSWERED):
                call.cut_off = True
            if call.state is State.LEASED:
                call.move(Event.RELEASE)
        for session in self.sessions:
            session.restarted = session.restarted or session.open

    def change_interceptors(
        self, record: records.InterceptorSet | records.InterceptorRemoved
    ) -> None:
        if isinstance(record, records.InterceptorSet):
            self.interceptors[record.name] = record.spec
        else:
            self.interceptors.pop(record.name, None)

    def open_session(self, record: records.SessionOpened, now: float) -> Session:
        session_id = SessionId(record.session)
        if session_id in self._conversations:
            raise InvalidTransition(f"session {session_id} was opened twice")
        session = self.sessions.add(session_id, record.key_sha256, record.spec, now=now)
        self._conversations[session_id] = Conversation()
        return session

    def next_call_id(self, session: Session) -> CallId:
        return CallId(f"{session.id}.{len(self._conversations[session.id].calls)}")

    def add_call(
        self,
        session: Session,
        record: records.CallQueued,
        extension: Extension,
        now: float,
        *,
        asked: Extension | None = None,
    ) -> Call:
        """`extension` is the effective request; `asked` is the original one, if it is another."""
        conversation = self._conversations[session.id]
        call = Call(CallId(record.call), session, number=len(conversation.calls), record=record)
        call.asked_at = now
        if asked is not None:
            call.original = Original(asked.leaf, asked.tools, bytes(record.request))
        conversation.add(call, extension)
        conversation.remember(call, bytes(record.request))
        session.calls += 1
        session.last_call_at = now
        self.calls[call.id] = call
        return call

    def add_span(self, call: Call, span: records.CallPartial) -> Said:
        """All that was said of the call, with the span."""
        said = call.said
        if said is None:
            said = call.said = Said()
        said.add(span)
        if call.session.first_sampled_version is None:
            call.session.first_sampled_version = span.policy_version
        return said

    def store_answer(self, call: Call, record: records.CallAnswered) -> Answer:
        """Keep an answer and its tokens, and give it its place in the graph."""
        if record.untrainable is None and record.prompt_ids is not None:
            self._store_tokens(call, record, record.prompt_ids)
        answer = Answer(
            call_id=call.id,
            model=call.model,
            choices=record.choices,
            usage=record.usage,
            policy_version=record.policy_version,
            untrainable=record.untrainable,
            sampled=record.sampled,
            edited_by=record.edited_by,
            tokens=call.tokens,
        )
        call.stored = answer
        if call.said is not None:
            call.forget_spans()
        call.answered_lease = record.lease
        call.fingerprint = record.fingerprint
        graph = self._conversations[call.session.id].graph
        for number, choice in enumerate(record.choices):
            graph.add_answer(call.leaf, AnswerRef(call.number, number), choice.message)
        call.session.use(record.usage)
        if call.session.first_sampled_version is None:
            call.session.first_sampled_version = _first_version(record)
        return answer

    def _store_tokens(self, call: Call, record: records.CallAnswered, prompt: bytes) -> None:
        parent = call.parent.tokens if call.parent is not None else None
        if call.parent is not None and call.branch is None and not record.continues:
            call.branch = "after_untrainable" if parent is None else "retokenised"
        has_parent = record.continues or record.kept is not None
        call.tokens = CallTokens(
            call_id=call.id,
            policy_version=record.policy_version,
            samples=_samples(record),
            prompt=prompt,
            parent=parent if has_parent else None,
            parent_choice=call.parent_choice if has_parent else 0,
            kept=record.kept,
            chain_class=call.chain_class,
            branch=call.branch,
            messages=self._conversations[call.session.id].graph.depth(call.leaf),
            prompt_parts=record.prompt_parts,
        )

    def _replay_queued(self, record: records.CallQueued, now: float) -> None:
        session = self.sessions.get(record.call.rpartition(".")[0])
        if record.call != self.next_call_id(session):
            raise InvalidTransition(f"call {record.call} was asked out of its turn")
        graph = self._conversations[session.id].graph
        extension, asked = _replayed(graph, record), None
        if record.edited is not None:
            extension, asked = _replayed(graph, record.edited), extension
        call = self.add_call(session, record, extension, now, asked=asked)
        if record.refused is not None:
            self.refused[call.id] = failure(record.refused.code, record.refused.message)

    def _replay_leased(self, call: Call) -> None:
        # That an earlier lease was over is not on record: the next one says it.
        if call.state is State.LEASED:
            call.move(Event.EXPIRE)
        call.move(Event.CLAIM)
        call.deliveries += 1

    def _replay_moved(self, call: Call, event: Event) -> None:
        call.move(event)
        if event is Event.CLOSE:
            call.stored = SessionClosed(f"the session was closed: {call.session.close_reason}")
        elif event is Event.GRACE_OVER:
            call.stored = CallFailed("the agent left and did not come back")


def _replayed(graph: MessageGraph, said: records.CallQueued | records.Edited) -> Extension:
    return graph.replay(
        base=said.base,
        path=said.path,
        blobs=[bytes(blob) for blob in said.blobs],
        tools=said.tools,
    )


def _samples(record: records.CallAnswered) -> tuple[Sample, ...]:
    return tuple(
        [
            Sample(
                choice.packed_ids or b"",
                choice.packed_logprobs or b"",
                choice.version_spans,
                choice.parts,
            )
            for choice in record.choices
        ]
    )


def _first_version(record: records.CallAnswered) -> PolicyVersion | None:
    spans = record.choices[0].version_spans if record.choices else None
    return spans[0].policy_version if spans else record.policy_version
