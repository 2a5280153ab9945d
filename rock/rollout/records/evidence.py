"""From what was seen to one class: did the agent end by itself, and if not, whose doing was it?

Pure rules, in this order; the first that applies decides.

1. The session closed as stale.
2. A call ended without reaching the agent, and the agent did not get the same answer later: the
   infrastructure's cause wins, whatever the agent's exit code says. So it is with an agent that failed
   after a restart of ModelService, which may have lost a request before it was a call.
3. The agent asked for more than its limits allow.
4. The watch over its progress stopped it.
5. How the agent's process ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rock.errors import (
    BadRequest,
    BadUser,
    BadWorkdir,
    CallFailed,
    CapacityExceeded,
    CommandNotFound,
    ConfigError,
    ContextLengthExceeded,
    Forbidden,
    ModelServiceError,
    ProviderAway,
    ProviderUnavailable,
    SandboxDied,
    SandboxError,
    SandboxFileError,
    SessionClosed,
    TaskError,
    UnsafeArchive,
    UpstreamError,
    UpstreamUnauthorized,
)
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.sandbox.base import ExecResult, ExecStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSeen:
    """One call of the session: its final state, and what tells repetitions of it apart."""

    state: str
    digest: str
    error: str | None = None
    code: str | None = None
    """Why it ended without an answer, as a code of `rock.errors`."""
    cut_off: bool = False
    """A restart of ModelService ended the connection on which the agent waited for it."""
    left_after_seconds: float | None = None
    """How long after asking the agent closed its connection without the answer; None if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSeen:
    """The session as it was when the agent had ended."""

    close_reason: str | None
    calls: Sequence[CallSeen]
    limit: str | None = None
    """Which limit closed it, if one did."""
    restarted: bool = False
    """ModelService was started again while it was open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How the agent's part ended. `cls` is None when it ended by itself and may be graded."""

    cls: OutcomeClass | None
    detail: str = ""


ANSWERED_STATES = frozenset({"answered", "delivered", "undelivered"})
GIVEN_UP_CODES = frozenset({SessionClosed.code, CallFailed.code})
"""How a call ends on which the agent, or the end of its session, gave up."""
LOST_STATES = frozenset({"answered", "undelivered"})
"""There was an answer, but not all of it was written to the agent's connection."""
PATIENCE_SECONDS = 30.0
"""Who hangs up earlier did not give up on a model that was too slow: it hung up. Else an agent could make
any attempt that went badly one that is tried again."""
POLICY_CODES = frozenset(
    {ContextLengthExceeded.code, SessionClosed.code, BadRequest.code, Forbidden.code}
)
"""Failures that the agent, its limits or a rule of the operator's brought about."""

LIMITS: Mapping[str, OutcomeClass] = {
    "max_calls": OutcomeClass.TURN_LIMIT,
    "max_prompt_tokens": OutcomeClass.TOKEN_LIMIT,
    "max_completion_tokens": OutcomeClass.TOKEN_LIMIT,
    "max_wall_seconds": OutcomeClass.TIME_LIMIT,
}

_BY_STATUS = {
    ExecStatus.SIGNALED: OutcomeClass.AGENT_SIGNALED,
    ExecStatus.TIMED_OUT: OutcomeClass.AGENT_TIMEOUT,
    ExecStatus.OOM_KILLED: OutcomeClass.OOM,
    ExecStatus.OUTPUT_LIMIT: OutcomeClass.AGENT_OUTPUT_LIMIT,
    ExecStatus.SANDBOX_DIED: OutcomeClass.SANDBOX_DIED,
}


def judge_agent(
    end: ExecResult, session: SessionSeen, *, requires_model: bool, stuck: str = ""
) -> Verdict:
    """The one class that the agent's part of an episode earned.

    `stuck`: what the watch over its progress said when it stopped the agent.
    """
    if session.close_reason == "stale":
        return Verdict(cls=OutcomeClass.STALE, detail="the session closed as stale")
    if end.status is ExecStatus.SANDBOX_DIED:
        return Verdict(cls=OutcomeClass.SANDBOX_DIED, detail="the sandbox died under the agent")
    verdict = _judge_calls(end, session) or _judge_limits(end, session, requires_model)
    if verdict is None and stuck:
        return Verdict(cls=OutcomeClass.NO_PROGRESS, detail=stuck)
    return verdict or _judge_end(end)


def _judge_calls(end: ExecResult, session: SessionSeen) -> Verdict | None:
    calls = session.calls
    delivered = {call.digest for call in calls if call.state == "delivered"}
    killed_by_us = end.status in (ExecStatus.TIMED_OUT, ExecStatus.OUTPUT_LIMIT)
    for number, call in enumerate(calls, 1):
        if call.digest in delivered:
            continue
        if call.cut_off:
            detail = f"ModelService restarted while the agent waited for call {number}"
            return Verdict(cls=OutcomeClass.UNDELIVERABLE_CALL, detail=detail)
        if call.code in POLICY_CODES:
            continue
        if call.state == "failed":
            unauthorized = call.code == UpstreamUnauthorized.code
            cls = OutcomeClass.MODEL_UNAUTHORIZED if unauthorized else OutcomeClass.MODEL_FAILED
            return Verdict(
                cls=cls, detail=f"call {number} failed: {call.error or 'no reason given'}"
            )
        if call.state in LOST_STATES and not (killed_by_us or _hung_up(call)):
            return Verdict(
                cls=OutcomeClass.UNDELIVERABLE_CALL,
                detail=f"the answer to call {number} never reached the agent",
            )
    if session.restarted and end.status is ExecStatus.EXITED and not end.ok:
        # A request that the old process had not read yet left no trace in the journal.
        detail = f"ModelService restarted under the agent, which {describe(end)}"
        return Verdict(cls=OutcomeClass.UNDELIVERABLE_CALL, detail=detail)
    if calls and all(_waited_in_vain(call) for call in calls):
        return Verdict(cls=OutcomeClass.MODEL_FAILED, detail="no call was answered")
    return None


def _hung_up(call: CallSeen) -> bool:
    return call.left_after_seconds is not None and call.left_after_seconds < PATIENCE_SECONDS


def _waited_in_vain(call: CallSeen) -> bool:
    return call.state not in ANSWERED_STATES and call.code in (None, *GIVEN_UP_CODES)


def _judge_limits(end: ExecResult, session: SessionSeen, requires_model: bool) -> Verdict | None:
    if session.close_reason == "limit":
        name = session.limit or "max_calls"
        return Verdict(
            cls=LIMITS.get(name, OutcomeClass.TURN_LIMIT),
            detail=f"the session's limit was reached: {name}",
        )
    if session.calls and session.calls[-1].code == ContextLengthExceeded.code:
        return Verdict(cls=OutcomeClass.CONTEXT_LIMIT, detail="the last prompt did not fit")
    if requires_model and not session.calls:
        return Verdict(cls=OutcomeClass.NO_MODEL_CALL, detail=f"the agent {describe(end)}")
    return None


def _judge_end(end: ExecResult) -> Verdict:
    if end.ok:
        return Verdict(cls=None)
    cls = _BY_STATUS.get(end.status, OutcomeClass.AGENT_NONZERO_EXIT)
    return Verdict(cls=cls, detail=f"the agent {describe(end)}")


def describe(end: ExecResult) -> str:
    """How a command ended, as the rest of a sentence."""
    match end.status:
        case ExecStatus.EXITED:
            return f"exited with code {end.exit_code}"
        case ExecStatus.SIGNALED:
            return f"was ended by signal {end.signal}"
        case ExecStatus.TIMED_OUT:
            return f"was stopped after {end.duration_seconds:.1f} s"
        case ExecStatus.OOM_KILLED:
            return "ran out of memory"
        case ExecStatus.OUTPUT_LIMIT:
            return f"was stopped after {end.stdout_bytes + end.stderr_bytes} bytes of output"
        case ExecStatus.SANDBOX_DIED:
            return "lost its sandbox"


def of_a_living_box(result: ExecResult, doing: str) -> ExecResult:
    """`result`; raises `SandboxDied` where the box died under the command, which could be taken for a
    command that failed: by a setup, a grader, a judge."""
    if result.status is ExecStatus.SANDBOX_DIED:
        raise SandboxDied(f"the sandbox died {doing}")
    return result


def class_of_error(phase: Phase, exc: Exception) -> OutcomeClass:
    """The class of an attempt that an exception ended in `phase`."""
    if isinstance(exc, SandboxDied):
        return OutcomeClass.SANDBOX_DIED
    for kinds, cls in _BY_ERROR[phase]:
        if isinstance(exc, kinds):
            return cls
    return OutcomeClass.INTERNAL_ERROR


_ErrorRules: TypeAlias = Sequence[tuple[tuple[type[Exception], ...], OutcomeClass]]

_BY_ERROR: Mapping[Phase, _ErrorRules] = {
    Phase.PROVISION: [
        ((ConfigError, BadUser), OutcomeClass.TASK_INVALID),
        ((CapacityExceeded, ProviderAway), OutcomeClass.NO_ROOM),
        ((SandboxError, TimeoutError, OSError), OutcomeClass.SANDBOX_CREATE_FAILED),
    ],
    Phase.SETUP: [
        ((SandboxFileError, UnsafeArchive, TaskError), OutcomeClass.TASK_INVALID),
        ((ModelServiceError,), OutcomeClass.SERVICE_FAILED),
        ((SandboxError, TimeoutError, OSError), OutcomeClass.SETUP_FAILED),
    ],
    Phase.AGENT: [
        ((TaskError,), OutcomeClass.TASK_INVALID),
        ((CommandNotFound, BadWorkdir, BadUser), OutcomeClass.AGENT_MISSING),
        ((ModelServiceError,), OutcomeClass.SERVICE_FAILED),
        # The sandbox keeps the agent's time limit; if it did not answer, it is gone.
        ((SandboxError, TimeoutError), OutcomeClass.SANDBOX_DIED),
    ],
    Phase.EXPORT: [
        ((ModelServiceError, TimeoutError, OSError), OutcomeClass.EXPORT_FAILED),
    ],
    Phase.GRADE: [
        ((TimeoutError,), OutcomeClass.SANDBOX_DIED),
        # For the fresh sandbox that some graders want.
        ((CapacityExceeded, ProviderAway), OutcomeClass.NO_ROOM),
        ((ProviderUnavailable,), OutcomeClass.SANDBOX_CREATE_FAILED),
        # A judge is asked through the service.
        ((UpstreamUnauthorized,), OutcomeClass.MODEL_UNAUTHORIZED),
        ((CallFailed, UpstreamError), OutcomeClass.MODEL_FAILED),
        ((ModelServiceError,), OutcomeClass.SERVICE_FAILED),
        ((SandboxError, TaskError), OutcomeClass.GRADER_BROKEN),
        # Of the harness's own files: a full disk is no fault of the grader's.
        ((OSError,), OutcomeClass.INTERNAL_ERROR),
    ],
    Phase.TEARDOWN: [],
}
"""Read top down: the first rule that fits decides."""
