"""The trainer's side of the service: claim, complete, renew, release, fail, policy, stats."""

from __future__ import annotations

import contextlib
import time
from functools import partial

from rock.errors import BadRequest, CallFailed, LeaseLost, RockError
from rock.modelservice import wire
from rock.modelservice.engine.calls import Call, failure
from rock.modelservice.engine.engine import Engine
from rock.modelservice.engine.queue import TRAINER_BACKEND, Held, Ticket
from rock.modelservice.graph import tokens
from rock.modelservice.graph.answer import Answer
from rock.modelservice.interceptors.interceptors import Edit
from rock.modelservice.journal import records
from rock.modelservice.service import completions
from rock.modelservice.service.batches import check_claim, check_positive, each, tried
from rock.modelservice.service.intercepting import intercepted_answers
from rock.modelservice.service.prepared import Prepared, prepare
from rock.modelservice.service.spelling import Spelling
from rock.modelservice.states import Event, State
from rock.types import LeaseId, PolicyVersion, WorkerId

BLOCKED = "blocked"
"""What a worker hears instead of a reason: an interceptor ended the call."""
CANNOT_CONTINUE = "cannot_continue"
"""What a worker says that cannot begin with `Lease.prefix`."""


class TrainerSide:
    """The part of `ModelService` that workers use, built-in ones and the trainer alike."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._book = engine.book
        self._queue = engine.queue
        self.spelling = Spelling(engine.config.tokenizers)

    async def claim(
        self, request: wire.ClaimRequest, *, backend: str = TRAINER_BACKEND
    ) -> wire.ClaimReply:
        """Lease up to `max_leases` waiting calls, waiting up to `wait_seconds` for the first.

        Built-in workers claim the calls of sessions with their `backend` name; a pause of the
        policy holds back the backend `queue` only.
        """
        check_claim(request.worker_id, request.lease_seconds, request.wait_seconds)
        if request.max_leases < 0:
            check_positive("max_leases", request.max_leases)
        bell = self._engine.bells[backend]
        leases = self._claim_now(request, backend)
        end = time.monotonic() + min(request.wait_seconds, self._engine.config.max_wait_seconds)
        while not leases and (left := end - time.monotonic()) > 0:
            if not request.max_leases and self._claimable(backend):
                break
            if not await bell.wait(left, name=request.worker_id) or self._engine.stopping:
                break
            if not request.max_leases:
                bell.ring()  # it takes nothing: the ring is for whoever does
            leases = self._claim_now(request, backend)
        state = self._book.policy.state if backend == TRAINER_BACKEND else "running"
        return wire.ClaimReply(leases=leases, policy_state=state)

    def _claimable(self, backend: str) -> bool:
        paused = backend == TRAINER_BACKEND and self._book.policy.state == "paused"
        return self._queue.waiting(backend) > 0 and not paused

    def _claim_now(self, request: wire.ClaimRequest, backend: str) -> list[wire.Lease]:
        policy = self._book.policy
        if backend == TRAINER_BACKEND and policy.state == "paused":
            return []
        version = policy.version if request.policy_version is None else request.policy_version
        seconds = min(request.lease_seconds, self._engine.config.max_lease_seconds)
        leases: list[wire.Lease] = []

        fresh = partial(self._fresh, version)
        while len(leases) < request.max_leases:
            held = self._queue.claim(
                WorkerId(request.worker_id),
                now=self._engine.clock(),
                lease_seconds=seconds,
                backend=backend,
                policy_version=version,
                fit=fresh,
            )
            if held is None:
                break
            self._engine.lease_record(held)
            leases.append(self._lease(held, seconds, delta=request.delta))
        return leases

    def _fresh(self, version: PolicyVersion | None, ticket: Ticket) -> bool:
        session = self._book.sessions.get(ticket.session_id)
        bound = session.spec.limits.max_staleness
        if bound is None:
            bound = self._engine.config.max_staleness
        if session.stale_at(version, bound):
            self._engine.close_session(session, "stale")
            return False
        return True

    def leases(self, request: wire.LeasesRequest) -> wire.LeasesReply:
        """Leases that are out, whole, for a worker that lacks what a delta claim left out."""
        now = self._engine.clock()
        found: list[wire.Lease] = []
        for lease_id in request.lease_ids:
            with contextlib.suppress(LeaseLost):
                held = self._queue.held(LeaseId(lease_id))
                left = self._queue.expires_in(held.id, now=now)
                found.append(self._lease(held, left, delta=False))
        return wire.LeasesReply(found)

    def _lease(self, held: Held, seconds: float, *, delta: bool) -> wire.Lease:
        call = self._book.calls[held.ticket.id]
        conversation = self._book.conversation(call.session_id)
        spans = self._engine.observer.spans
        request, omitted, parent = None, None, None
        if call.parent is not None:
            if delta and call.parent.answered_by == held.worker_id:
                request, omitted = conversation.request_after(call, call.parent)
            parent = _parent(call, call.parent, with_ids=omitted is None)
        return wire.Lease(
            lease_id=held.id,
            call_id=call.id,
            session_id=call.session_id,
            delivery=call.deliveries,
            expires_in_seconds=seconds,
            request=request or conversation.request_of(call),
            parent=parent,
            omitted=omitted,
            prefix=None if call.said is None else call.said.prefix(),
            labels=dict(call.session.spec.labels),
            kind=call.kind,
            traceparent=spans.traceparent(call.id) if spans.recording else None,
            streams=call.streams,
        )

    async def complete(self, request: wire.CompleteRequest) -> wire.BatchReply:
        """Store answers; each item counts or fails on its own (409 `lease_lost`, 404 `not_found`,
        400 `invalid_request`). The same completion twice is accepted twice and stored once."""
        edits = await intercepted_answers(self._engine, request.completions)
        misspelt = await self.spelling.reasons(request.completions, self._tokenizers)
        results = [
            tried(
                lease_id := item.lease_id,
                partial(self._complete_one, item, edits.get(lease_id), misspelt.get(lease_id)),
            )
            for item in request.completions
        ]
        await self._engine.journal.barrier()
        return wire.BatchReply(results=results)

    def _tokenizers(self, completion: wire.Completion) -> set[str]:
        """Those that the worker or the session names."""
        names = {completion.tokenizer}
        with contextlib.suppress(RockError):  # what is wrong with the lease is said later
            names.add(self._book.call_of_lease(completion.lease_id).session.spec.tokenizer)
        return {name for name in names if name is not None}

    def _complete_one(
        self, completion: wire.Completion, edit: Edit | None, misspelt: str | None
    ) -> str | None:
        if completion.tokenizer is not None:
            self.spelling.check_known(completion.tokenizer)
        prepared = prepare(completion)
        call = self._book.call_of_lease(completion.lease_id)
        if call.answered_lease == completion.lease_id:
            if call.fingerprint == prepared.fingerprint and isinstance(call.stored, Answer):
                return call.stored.untrainable
            raise LeaseLost("this lease was completed before, with a different answer")
        held = self._queue.held(LeaseId(completion.lease_id))
        wanted = call.wanted
        version = completion.policy_version
        if version is None:
            version = held.policy_version
        if call.said is not None:
            self._check_prefix(call, prepared)
        graph = self._book.conversation(call.session_id).graph
        record = completions.answered(call, wanted, prepared, version, graph, misspelt=misspelt)
        if edit is not None and edit.error is not None:
            self._engine.end(call, Event.FAIL, edit.error)
            return BLOCKED
        if edit is not None and edit.choices is not None and not call.shown:
            record = completions.edited(record, edit.choices, edit.by)
        self._engine.complete(call, record)
        call.answered_by = held.worker_id
        return record.untrainable

    def _check_prefix(self, call: Call, prepared: Prepared) -> None:
        """Raises `BadRequest`, and fails the call, if agents have read another beginning."""
        reason = completions.reason_against_prefix(call, prepared)
        if reason is None:
            return
        if not call.shown:
            self._engine.drop_spans(call)
            return
        message = f"the answer cannot be finished: {reason}"
        self._engine.end(call, Event.FAIL, CallFailed(message))
        raise BadRequest(f"the completion was refused and the call failed: {reason}")

    async def fail(self, request: wire.FailRequest) -> wire.BatchReply:
        """End calls without an answer; the agent sees the error that `code` names."""

        def fail_one(item: wire.Failure) -> None:
            call = self._book.call_of_lease(item.lease_id)
            held = self._queue.held(LeaseId(item.lease_id))
            if item.code == CANNOT_CONTINUE and call.said is not None and not call.shown:
                # Nobody has read it yet, so the next worker may begin afresh.
                self._engine.drop_spans(call)
                self._engine.give_back(held)
                return
            self._engine.end(call, Event.FAIL, failure(item.code, item.message))

        results = [tried(item.lease_id, partial(fail_one, item)) for item in request.failures]
        await self._engine.journal.barrier()
        return wire.BatchReply(results=results)

    def renew(self, request: wire.RenewRequest) -> wire.BatchReply:
        """Prolong leases; an item error tells the worker to stop sampling."""
        check_positive("lease_seconds", request.lease_seconds)
        seconds = min(request.lease_seconds, self._engine.config.max_lease_seconds)

        def renew_one(lease_id: str) -> None:
            self._book.call_of_lease(lease_id)
            self._queue.renew(LeaseId(lease_id), now=self._engine.clock(), lease_seconds=seconds)

        return each(request.lease_ids, renew_one)

    def release(self, request: wire.ReleaseRequest) -> wire.BatchReply:
        """Give leases back: their calls are handed out again, before all others."""

        def release_one(lease_id: str) -> None:
            self._book.call_of_lease(lease_id)
            self._engine.give_back(self._queue.held(LeaseId(lease_id)))

        return each(request.lease_ids, release_one)

    async def policy(self, update: wire.PolicyUpdate | None = None) -> wire.PolicyStatus:
        """Read or change policy version and state.

        Pausing stops claims of the trainer's queue. `hold` leaves leases with their workers and lets
        the leases' clocks stand still until `resume`; `drain` also waits (bounded, like a long-poll)
        until none is left; `requeue` takes them back at once and tells their workers. Deadlines of
        calls and sessions run on. State `running` resumes.
        """
        if update is None:
            return self._policy_status()
        old = self._book.policy
        new = records.PolicyChanged(
            version=old.version if update.version is None else update.version,
            state=update.state or old.state,
        )
        if new != old:
            self._book.policy = new
            self._engine.note(new)
        if new.state == "running":
            self._queue.thaw(TRAINER_BACKEND, now=self._engine.clock())
            self._engine.bells[TRAINER_BACKEND].ring_all()
        elif update.state is not None:
            await self._pause(update.mode)
        await self._engine.journal.barrier()
        return self._policy_status()

    async def _pause(self, mode: wire.PauseMode) -> None:
        now = self._engine.clock()
        if mode == "hold":
            self._queue.freeze(TRAINER_BACKEND, now=now)
            return
        self._queue.thaw(TRAINER_BACKEND, now=now)
        if mode == "requeue":
            for held in self._queue.leases():
                if held.ticket.backend == TRAINER_BACKEND:
                    self._engine.take_back(held)
        elif self._engine.leased_by(TRAINER_BACKEND):
            await self._engine.drained.wait(self._engine.config.max_wait_seconds)

    def _policy_status(self) -> wire.PolicyStatus:
        policy = self._book.policy
        leased = self._engine.leased_by(TRAINER_BACKEND)
        return wire.PolicyStatus(policy.version, policy.state, leased)

    def stats(self) -> wire.Stats:
        totals = self._book.sessions.totals
        return wire.Stats(
            queued=totals[State.QUEUED],
            leased=totals[State.LEASED],
            waiting_workers=sum(len(bell) for bell in self._engine.bells.values()),
            open_sessions=self._book.sessions.open_count,
            answered=sum(
                totals[state] for state in (State.ANSWERED, State.DELIVERED, State.UNDELIVERED)
            ),
            failed=totals[State.FAILED],
            cancelled=totals[State.CANCELLED],
            redelivered=self._engine.redelivered,
            policy=self._policy_status(),
        )


def _parent(call: Call, parent: Call, *, with_ids: bool) -> wire.Parent:
    ids = None
    if with_ids and parent.tokens is not None:
        ids = tokens.unpack_ids(parent.tokens.sequence_ids(call.parent_choice))
    return wire.Parent(parent.id, call.parent_choice, call.covers, ids)
