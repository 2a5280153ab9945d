"""The life of a call, walked event by event."""

import itertools

import pytest

from rock.errors import InvalidTransition
from rock.modelservice.states import (
    ENDED_WITHOUT,
    OPEN,
    TRANSITIONS,
    WITH_ANSWER,
    Event,
    State,
    next_state,
)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_is_a_transition_or_an_error(state: State, event: Event) -> None:
    expected = TRANSITIONS.get((state, event))
    if expected is not None:
        assert next_state(state, event) is expected
    else:
        with pytest.raises(InvalidTransition, match=f"{state}.*{event}"):
            next_state(state, event)


def test_every_state_is_open_answered_or_ended() -> None:
    assert {*OPEN, *WITH_ANSWER, *ENDED_WITHOUT} == set(State)
    assert len(OPEN) + len(WITH_ANSWER) + len(ENDED_WITHOUT) == len(State)


def test_an_answer_is_never_lost_again() -> None:
    for (state, _), after in TRANSITIONS.items():
        assert after in WITH_ANSWER if state in WITH_ANSWER else True


def test_nothing_leaves_failed_and_cancelled() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in ENDED_WITHOUT]


def test_every_state_can_be_reached_from_queued() -> None:
    reached = {State.QUEUED}
    for _ in State:
        reached |= {after for (state, _), after in TRANSITIONS.items() if state in reached}
    assert reached == set(State)
