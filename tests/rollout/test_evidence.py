"""From what was seen to one class: the infrastructure's cause wins over whatever the agent says."""

import pytest

from rock.errors import (
    BadWorkdir,
    CommandNotFound,
    ConfigError,
    ProviderAway,
    ProviderUnavailable,
    SandboxDied,
    SandboxFileError,
    ServiceUnavailable,
)
from rock.rollout.records.evidence import (
    PATIENCE_SECONDS,
    CallSeen,
    SessionSeen,
    class_of_error,
    judge_agent,
)
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.sandbox.base import ExecResult, ExecStatus


def ended(
    status: ExecStatus = ExecStatus.EXITED, *, code: int | None = 0, signal: int | None = None
) -> ExecResult:
    return ExecResult(
        status=status,
        exit_code=code if status is ExecStatus.EXITED else None,
        signal=signal,
        stdout=b"",
        stderr=b"",
        stdout_bytes=0,
        stderr_bytes=0,
        duration_seconds=1.0,
    )


def call(state: str = "delivered", digest: str = "a", code: str | None = None) -> CallSeen:
    return CallSeen(state=state, digest=digest, error=code and "because", code=code)


def judged(
    end: ExecResult, *calls: CallSeen, close_reason: str = "finished", requires_model: bool = True
) -> OutcomeClass | None:
    session = SessionSeen(close_reason=close_reason, calls=calls)
    return judge_agent(end, session, requires_model=requires_model).cls


def test_an_agent_that_ends_by_itself_may_be_graded() -> None:
    assert judged(ended(), call()) is None


@pytest.mark.parametrize(
    ("end", "cls"),
    [
        (ended(code=3), OutcomeClass.AGENT_NONZERO_EXIT),
        (ended(ExecStatus.SIGNALED, signal=11), OutcomeClass.AGENT_SIGNALED),
        (ended(ExecStatus.TIMED_OUT), OutcomeClass.AGENT_TIMEOUT),
        (ended(ExecStatus.OOM_KILLED), OutcomeClass.OOM),
        (ended(ExecStatus.OUTPUT_LIMIT), OutcomeClass.AGENT_OUTPUT_LIMIT),
        (ended(ExecStatus.SANDBOX_DIED), OutcomeClass.SANDBOX_DIED),
    ],
)
def test_every_way_a_process_ends_has_its_class(end: ExecResult, cls: OutcomeClass) -> None:
    assert judged(end, call()) is cls


@pytest.mark.parametrize("end", [ended(), ended(code=1), ended(ExecStatus.SIGNALED, signal=9)])
def test_an_answer_that_never_arrived_is_infra_whatever_the_exit_code(end: ExecResult) -> None:
    assert judged(end, call(), call("undelivered", "b")) is OutcomeClass.UNDELIVERABLE_CALL


@pytest.mark.parametrize("end", [ended(), ended(code=1)])
def test_a_failed_call_is_infra_whatever_the_exit_code(end: ExecResult) -> None:
    failed = call("failed", "b", "deadline_exceeded")
    assert judged(end, call(), failed) is OutcomeClass.MODEL_FAILED


def test_a_failure_that_the_agents_retry_made_good_does_not_count() -> None:
    assert judged(ended(), call("failed", "b", "upstream_error"), call("delivered", "b")) is None


def test_a_refused_key_is_the_operators() -> None:
    refused = call("failed", "a", "upstream_unauthorized")
    assert judged(ended(code=1), refused) is OutcomeClass.MODEL_UNAUTHORIZED


def test_an_answer_lost_because_we_stopped_the_agent_is_not_infra() -> None:
    end = ended(ExecStatus.TIMED_OUT)
    assert judged(end, call(), call("undelivered", "b")) is OutcomeClass.AGENT_TIMEOUT


@pytest.mark.parametrize("state", ["cancelled", "answered"])
def test_a_call_that_a_restart_cut_off_is_infra_unless_a_retry_got_its_answer(state: str) -> None:
    cut = CallSeen(state=state, digest="b", code="session_closed", cut_off=True)
    assert judged(ended(code=1), call(), cut) is OutcomeClass.UNDELIVERABLE_CALL
    assert judged(ended(), call(), cut, call("delivered", "b")) is None


def test_an_answer_that_was_not_written_to_the_end_is_lost() -> None:
    assert judged(ended(), call(), call("answered", "b")) is OutcomeClass.UNDELIVERABLE_CALL


def test_a_call_that_the_agent_did_not_wait_for_is_no_fault() -> None:
    left = call("cancelled", "b", "session_closed")
    assert judged(ended(), call(), left) is None


def test_a_timeout_in_which_no_call_was_ever_answered_is_the_models() -> None:
    end = ended(ExecStatus.TIMED_OUT)
    assert judged(end, call("cancelled")) is OutcomeClass.MODEL_FAILED


def test_a_prompt_that_does_not_fit_is_the_policys() -> None:
    over = call("failed", "b", "context_length_exceeded")
    assert judged(ended(code=1), call(), over) is OutcomeClass.CONTEXT_LIMIT


def test_a_session_that_reached_its_limit_is_a_turn_limit() -> None:
    assert judged(ended(code=1), call(), close_reason="limit") is OutcomeClass.TURN_LIMIT


@pytest.mark.parametrize(
    ("limit", "cls"),
    [
        ("max_prompt_tokens", OutcomeClass.TOKEN_LIMIT),
        ("max_completion_tokens", OutcomeClass.TOKEN_LIMIT),
        ("max_wall_seconds", OutcomeClass.TIME_LIMIT),
    ],
)
def test_each_limit_of_a_session_has_its_class(limit: str, cls: OutcomeClass) -> None:
    over = call("failed", "b", "context_length_exceeded")
    session = SessionSeen(close_reason="limit", calls=[call(), over], limit=limit)
    assert judge_agent(ended(code=1), session, requires_model=True).cls is cls


def test_a_stale_session_is_stale_before_anything_else() -> None:
    assert judged(ended(code=1), call("failed"), close_reason="stale") is OutcomeClass.STALE


def test_an_agent_that_never_called_the_model_is_a_mistake_unless_allowed() -> None:
    assert judged(ended()) is OutcomeClass.NO_MODEL_CALL
    assert judged(ended(), requires_model=False) is None


@pytest.mark.parametrize(
    ("phase", "error", "cls"),
    [
        (Phase.PROVISION, ProviderUnavailable("no image"), OutcomeClass.SANDBOX_CREATE_FAILED),
        (Phase.PROVISION, ProviderAway("no engine"), OutcomeClass.NO_ROOM),
        (Phase.GRADE, ProviderAway("no engine"), OutcomeClass.NO_ROOM),
        (Phase.GRADE, ProviderUnavailable("no image"), OutcomeClass.SANDBOX_CREATE_FAILED),
        (Phase.PROVISION, ConfigError("image: no such root"), OutcomeClass.TASK_INVALID),
        (Phase.PROVISION, TimeoutError(), OutcomeClass.SANDBOX_CREATE_FAILED),
        (Phase.SETUP, SandboxFileError("no"), OutcomeClass.TASK_INVALID),
        (Phase.SETUP, ServiceUnavailable("gone"), OutcomeClass.SERVICE_FAILED),
        (Phase.SETUP, OSError("disk"), OutcomeClass.SETUP_FAILED),
        (Phase.AGENT, CommandNotFound("agent"), OutcomeClass.AGENT_MISSING),
        (Phase.AGENT, BadWorkdir("/x"), OutcomeClass.AGENT_MISSING),
        (Phase.AGENT, TimeoutError(), OutcomeClass.SANDBOX_DIED),
        (Phase.EXPORT, ServiceUnavailable("gone"), OutcomeClass.EXPORT_FAILED),
        (Phase.GRADE, SandboxFileError("full"), OutcomeClass.GRADER_BROKEN),
        (Phase.GRADE, TimeoutError(), OutcomeClass.SANDBOX_DIED),
    ],
)
def test_an_exception_is_blamed_by_its_phase(
    phase: Phase, error: Exception, cls: OutcomeClass
) -> None:
    assert class_of_error(phase, error) is cls


@pytest.mark.parametrize("phase", list(Phase))
def test_a_dead_sandbox_and_a_bug_are_what_they_are_in_every_phase(phase: Phase) -> None:
    assert class_of_error(phase, SandboxDied("gone")) is OutcomeClass.SANDBOX_DIED
    assert class_of_error(phase, KeyError("bug")) is OutcomeClass.INTERNAL_ERROR


def test_an_agent_that_fails_after_a_restart_is_infra_and_one_that_ends_well_is_graded() -> None:
    session = SessionSeen(close_reason="finished", calls=[call()], restarted=True)
    for end, cls in [
        (ended(code=1), OutcomeClass.UNDELIVERABLE_CALL),
        (ended(), None),
        (ended(ExecStatus.TIMED_OUT), OutcomeClass.AGENT_TIMEOUT),
    ]:
        assert judge_agent(end, session, requires_model=True).cls is cls


def test_hanging_up_soon_is_the_agents_own_doing_and_late_it_is_a_model_that_was_too_slow() -> None:
    soon = CallSeen(state="undelivered", digest="b", left_after_seconds=0.1)
    late = CallSeen(state="undelivered", digest="b", left_after_seconds=PATIENCE_SECONDS)
    assert judged(ended(), call(), soon) is None
    assert judged(ended(code=1), call(), soon) is OutcomeClass.AGENT_NONZERO_EXIT
    assert judged(ended(), call(), late) is OutcomeClass.UNDELIVERABLE_CALL
