"""The life of a call: one table, and every change of state goes through it.

    queued ─claim→ leased ─complete→ answered ─sent→ delivered
      ▲               │                  │  ▲
      └─expire,release┘         agent_left▼  │collect
                                      undelivered
    queued|leased ─grace_over, close→ cancelled      queued|leased ─fail, deadline→ failed

A pair that is not in the table is a bug and raises `InvalidTransition`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from rock.errors import InvalidTransition


class State(enum.StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    ANSWERED = "answered"
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Event(enum.StrEnum):
    CLAIM = "claim"
    COMPLETE = "complete"
    EXPIRE = "expire"
    RELEASE = "release"
    FAIL = "fail"
    DEADLINE = "deadline"
    GRACE_OVER = "grace_over"
    CLOSE = "close"
    SENT = "sent"
    AGENT_LEFT = "agent_left"
    COLLECT = "collect"


OPEN = frozenset({State.QUEUED, State.LEASED})
"""Still to be answered."""
WITH_ANSWER = frozenset({State.ANSWERED, State.DELIVERED, State.UNDELIVERED})
ENDED_WITHOUT = frozenset({State.CANCELLED, State.FAILED})

TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.QUEUED, Event.CLAIM): State.LEASED,
        (State.LEASED, Event.COMPLETE): State.ANSWERED,
        (State.LEASED, Event.EXPIRE): State.QUEUED,
        (State.LEASED, Event.RELEASE): State.QUEUED,
        # A worker says so, or the call was handed out too often.
        (State.LEASED, Event.FAIL): State.FAILED,
        # A rule refused it, or a limit of its session was reached, before a worker had it.
        (State.QUEUED, Event.FAIL): State.FAILED,
        (State.QUEUED, Event.DEADLINE): State.FAILED,
        (State.LEASED, Event.DEADLINE): State.FAILED,
        # The agent left, and no retry of it came within the grace.
        (State.QUEUED, Event.GRACE_OVER): State.CANCELLED,
        (State.LEASED, Event.GRACE_OVER): State.CANCELLED,
        # The session was closed.
        (State.QUEUED, Event.CLOSE): State.CANCELLED,
        (State.LEASED, Event.CLOSE): State.CANCELLED,
        (State.ANSWERED, Event.SENT): State.DELIVERED,
        (State.ANSWERED, Event.AGENT_LEFT): State.UNDELIVERED,
        (State.UNDELIVERED, Event.COLLECT): State.ANSWERED,
        # A second connection of the same call, or a retry whose client lost what we had sent.
        (State.DELIVERED, Event.COLLECT): State.ANSWERED,
        (State.DELIVERED, Event.SENT): State.DELIVERED,
        (State.DELIVERED, Event.AGENT_LEFT): State.DELIVERED,
    }
)


def next_state(state: State, event: Event) -> State:
    """Where `event` leads from `state`. Raises `InvalidTransition`."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransition(f"a call that is {state} cannot take the event {event}") from None
