"""How an episode ended: one word, and one table that says what follows from it.

Every attempt ends with exactly one `Outcome`. Its *class* decides everything else through `TABLE`:
whose doing it was, whether another attempt may help, whether the work is graded, and whether the
episode counts in the loss, in the group's baseline and in the statistics' denominator. Two rules
hold for every row and are checked when an outcome is made:

- What counts has a reward; what does not count has none. A missing reward is null, never 0.
- Only what the policy could have caused counts. An infrastructure failure never does.

Running out of memory, time or output is something a policy can cause, so it counts: leaving it out
would teach a policy to end hopeless episodes that way.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


class Phase(enum.StrEnum):
    """The part of an episode in which it ended."""

    PROVISION = "provision"
    SETUP = "setup"
    AGENT = "agent"
    EXPORT = "export"
    GRADE = "grade"
    TEARDOWN = "teardown"


class Cause(enum.StrEnum):
    """Whose doing an outcome was."""

    POLICY = "policy"
    INFRA = "infra"
    TASK = "task"
    OPERATOR = "operator"


class OutcomeClass(enum.StrEnum):
    """How an episode ended, in one word."""

    SOLVED = "solved"
    FAILED = "failed"
    AGENT_NONZERO_EXIT = "agent_nonzero_exit"
    AGENT_SIGNALED = "agent_signaled"
    AGENT_TIMEOUT = "agent_timeout"
    AGENT_OUTPUT_LIMIT = "agent_output_limit"
    OOM = "oom"
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"
    TIME_LIMIT = "time_limit"
    NO_PROGRESS = "no_progress"
    CONTEXT_LIMIT = "context_limit"
    SANDBOX_CREATE_FAILED = "sandbox_create_failed"
    NO_ROOM = "no_room"
    SANDBOX_DIED = "sandbox_died"
    SETUP_FAILED = "setup_failed"
    SERVICE_FAILED = "service_failed"
    UNDELIVERABLE_CALL = "undeliverable_call"
    MODEL_FAILED = "model_failed"
    EXPORT_FAILED = "export_failed"
    INTERNAL_ERROR = "internal_error"
    GRADER_BROKEN = "grader_broken"
    GRADER_TIMEOUT = "grader_timeout"
    TASK_INVALID = "task_invalid"
    STALE = "stale"
    REDUNDANT = "redundant"
    NO_MODEL_CALL = "no_model_call"
    AGENT_MISSING = "agent_missing"
    MODEL_UNAUTHORIZED = "model_unauthorized"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Flags:
    """What follows from a class. `meaning` is the sentence that the documentation shows."""

    cause: Cause
    retryable: bool
    gradable: bool
    in_loss: bool
    in_baseline: bool
    in_denominator: bool
    meaning: str

    @property
    def counted(self) -> bool:
        return self.in_loss or self.in_baseline or self.in_denominator


def _counts(meaning: str) -> Flags:
    return Flags(Cause.POLICY, False, True, True, True, True, meaning)


def _left_out(cause: Cause, meaning: str, *, retryable: bool) -> Flags:
    return Flags(cause, retryable, False, False, False, False, meaning)


def _infra(meaning: str) -> Flags:
    return _left_out(Cause.INFRA, meaning, retryable=True)


TABLE: Mapping[OutcomeClass, Flags] = {
    OutcomeClass.SOLVED: _counts("the agent ended by itself and the grader gave the full reward"),
    OutcomeClass.FAILED: _counts("the agent ended by itself and the grader gave less"),
    OutcomeClass.AGENT_NONZERO_EXIT: _counts("the agent exited with a code other than 0"),
    OutcomeClass.AGENT_SIGNALED: _counts("a signal ended the agent"),
    OutcomeClass.AGENT_TIMEOUT: _counts("the agent was still running at its time limit"),
    OutcomeClass.AGENT_OUTPUT_LIMIT: _counts("the agent printed more than the output limit"),
    OutcomeClass.OOM: _counts("the agent ran out of the sandbox's memory"),
    OutcomeClass.TURN_LIMIT: _counts("the agent asked for more calls than the limit allows"),
    OutcomeClass.TOKEN_LIMIT: _counts("the agent used up the tokens that its session may have"),
    OutcomeClass.TIME_LIMIT: _counts("the time that its session may last was over"),
    OutcomeClass.NO_PROGRESS: _counts(
        "the agent neither asked the model nor used the processor for its no-progress limit"
    ),
    OutcomeClass.CONTEXT_LIMIT: _counts("the agent's prompt did not fit the model's context"),
    OutcomeClass.SANDBOX_CREATE_FAILED: _infra("no sandbox could be made"),
    OutcomeClass.NO_ROOM: _infra(
        "the machine had no room for another sandbox at that moment, or its engine did not answer"
    ),
    OutcomeClass.SANDBOX_DIED: _infra("the sandbox went away or stopped answering"),
    OutcomeClass.SETUP_FAILED: _infra("files, session or listener could not be put in place"),
    OutcomeClass.SERVICE_FAILED: _infra("ModelService did not answer the harness"),
    OutcomeClass.UNDELIVERABLE_CALL: _infra("an answer never reached the agent"),
    OutcomeClass.MODEL_FAILED: _infra("the model behind ModelService did not answer a call"),
    OutcomeClass.EXPORT_FAILED: _infra("the trajectory could not be fetched or stored"),
    OutcomeClass.INTERNAL_ERROR: _infra("the harness itself failed"),
    OutcomeClass.GRADER_BROKEN: _left_out(
        Cause.TASK,
        "the grader could not run or gave no usable reward, for the untouched task neither",
        retryable=False,
    ),
    OutcomeClass.GRADER_TIMEOUT: _left_out(
        Cause.TASK,
        "the grader was still running at its time limit, for the untouched task too",
        retryable=False,
    ),
    OutcomeClass.TASK_INVALID: _left_out(
        Cause.TASK, "the task asks for something that does not exist", retryable=False
    ),
    OutcomeClass.STALE: _left_out(
        Cause.OPERATOR, "the policy moved on further than the staleness bound", retryable=True
    ),
    OutcomeClass.REDUNDANT: _left_out(
        Cause.OPERATOR, "enough other episodes had ended, so it was stopped", retryable=False
    ),
    OutcomeClass.NO_MODEL_CALL: _left_out(
        Cause.OPERATOR, "the agent ended without one call to the model", retryable=False
    ),
    OutcomeClass.AGENT_MISSING: _left_out(
        Cause.OPERATOR, "the agent's program does not exist in the sandbox", retryable=False
    ),
    OutcomeClass.MODEL_UNAUTHORIZED: _left_out(
        Cause.OPERATOR, "the hosted model refused the key; the run stops", retryable=False
    ),
    OutcomeClass.CANCELLED: _left_out(
        Cause.OPERATOR, "the run was stopped while the attempt was going on", retryable=True
    ),
    OutcomeClass.INTERRUPTED: _left_out(
        Cause.OPERATOR, "the harness died while the attempt was going on", retryable=True
    ),
}

RUN_AGAIN = frozenset(
    {
        OutcomeClass.CANCELLED,
        OutcomeClass.INTERRUPTED,
        OutcomeClass.REDUNDANT,
        OutcomeClass.NO_ROOM,
    }
)
"""Ends from without. An attempt that ended so is no failure, and does not use up attempts."""

FULL_REWARD = 1.0
"""The reward from which on an episode is solved."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename={"cls": "class"}):
    """How one attempt ended. Make it with `outcome_of`, which keeps it consistent with `TABLE`."""

    phase: Phase
    cls: OutcomeClass
    cause: Cause
    retryable: bool
    gradable: bool
    reward: float | None
    in_loss: bool
    in_baseline: bool
    in_denominator: bool
    detail: str = ""

    @property
    def solved(self) -> bool:
        return self.reward is not None and self.reward >= FULL_REWARD


def _as_text(text: str) -> str:
    """`text` as a record can hold it: what file names have that is no UTF-8 is escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def outcome_of(
    cls: OutcomeClass, phase: Phase, *, reward: float | None = None, detail: str = ""
) -> Outcome:
    """The outcome of class `cls`. A counted class needs a reward, any other must have none."""
    flags = TABLE[cls]
    if flags.counted and reward is None:
        raise ValueError(f"{cls} counts, so it needs a reward")
    if not flags.counted and reward is not None:
        raise ValueError(f"{cls} does not count, so it has no reward; given {reward}")
    return Outcome(
        phase=phase,
        cls=cls,
        cause=flags.cause,
        retryable=flags.retryable,
        gradable=flags.gradable,
        reward=reward,
        in_loss=flags.in_loss,
        in_baseline=flags.in_baseline,
        in_denominator=flags.in_denominator,
        detail=_as_text(detail),
    )


def graded(reward: float, *, agent_class: OutcomeClass | None, detail: str = "") -> Outcome:
    """The outcome of graded work. `agent_class` is how the agent ended, None if by itself."""
    cls = agent_class
    if cls is None:
        cls = OutcomeClass.SOLVED if reward >= FULL_REWARD else OutcomeClass.FAILED
    return outcome_of(cls, Phase.GRADE, reward=reward, detail=detail)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as it travels in a `GroupEpisode`."""
    return msgspec.to_builtins(outcome)
