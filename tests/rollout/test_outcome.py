"""Outcomes: the whole table, and what it must never allow."""

import msgspec
import pytest

from rock.rollout.records.outcome import (
    TABLE,
    Cause,
    Outcome,
    OutcomeClass,
    Phase,
    graded,
    outcome_json,
    outcome_of,
)

EXPECTED = {
    # class: cause, retryable, gradable, counted
    "solved": ("policy", False, True, True),
    "failed": ("policy", False, True, True),
    "agent_nonzero_exit": ("policy", False, True, True),
    "agent_signaled": ("policy", False, True, True),
    "agent_timeout": ("policy", False, True, True),
    "agent_output_limit": ("policy", False, True, True),
    "oom": ("policy", False, True, True),
    "turn_limit": ("policy", False, True, True),
    "token_limit": ("policy", False, True, True),
    "time_limit": ("policy", False, True, True),
    "no_progress": ("policy", False, True, True),
    "context_limit": ("policy", False, True, True),
    "sandbox_create_failed": ("infra", True, False, False),
    "no_room": ("infra", True, False, False),
    "sandbox_died": ("infra", True, False, False),
    "setup_failed": ("infra", True, False, False),
    "service_failed": ("infra", True, False, False),
    "undeliverable_call": ("infra", True, False, False),
    "model_failed": ("infra", True, False, False),
    "export_failed": ("infra", True, False, False),
    "internal_error": ("infra", True, False, False),
    "grader_broken": ("task", False, False, False),
    "grader_timeout": ("task", False, False, False),
    "task_invalid": ("task", False, False, False),
    "stale": ("operator", True, False, False),
    "redundant": ("operator", False, False, False),
    "no_model_call": ("operator", False, False, False),
    "agent_missing": ("operator", False, False, False),
    "model_unauthorized": ("operator", False, False, False),
    "cancelled": ("operator", True, False, False),
    "interrupted": ("operator", True, False, False),
}


def test_the_table_has_a_row_for_every_class_and_no_other() -> None:
    assert set(TABLE) == set(OutcomeClass)
    assert {cls.value for cls in TABLE} == set(EXPECTED)


@pytest.mark.parametrize("cls", list(OutcomeClass))
def test_a_class_decides_every_flag(cls: OutcomeClass) -> None:
    cause, retryable, gradable, counted = EXPECTED[cls.value]
    outcome = outcome_of(cls, Phase.AGENT, reward=0.0 if counted else None)
    assert outcome_json(outcome) == {
        "phase": "agent",
        "class": cls.value,
        "cause": cause,
        "retryable": retryable,
        "gradable": gradable,
        "reward": 0.0 if counted else None,
        "in_loss": counted,
        "in_baseline": counted,
        "in_denominator": counted,
        "detail": "",
    }


@pytest.mark.parametrize("cls", list(OutcomeClass))
def test_what_counts_needs_a_reward_and_what_does_not_count_cannot_have_one(
    cls: OutcomeClass,
) -> None:
    wrong = None if TABLE[cls].counted else 0.0
    with pytest.raises(ValueError, match=cls.value):
        outcome_of(cls, Phase.GRADE, reward=wrong)


@pytest.mark.parametrize("cls", [cls for cls in TABLE if TABLE[cls].cause is not Cause.POLICY])
def test_only_what_the_policy_can_cause_ever_counts(cls: OutcomeClass) -> None:
    flags = TABLE[cls]
    assert not (flags.in_loss)
    assert not (flags.in_baseline)
    assert not (flags.in_denominator)
    assert not (flags.gradable)


def test_graded_work_is_solved_from_the_full_reward_on() -> None:
    assert graded(1.0, agent_class=None).cls is OutcomeClass.SOLVED
    assert graded(0.99, agent_class=None).cls is OutcomeClass.FAILED


def test_an_agent_that_timed_out_keeps_its_class_and_gets_what_its_work_is_worth() -> None:
    outcome = graded(1.0, agent_class=OutcomeClass.AGENT_TIMEOUT)
    assert (outcome.cls, outcome.reward, outcome.solved) == (OutcomeClass.AGENT_TIMEOUT, 1.0, True)


def test_an_outcome_survives_json() -> None:
    outcome = graded(0.5, agent_class=None, detail="half")
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=Outcome) == outcome
