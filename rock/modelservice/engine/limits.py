"""What one session may use up, and what its agent hears when it has. Rules only.

Counted are calls, and the prompt and completion tokens of answers that say how many they had. A
budget that is used up closes the session with reason `limit`; the agent gets the error that makes
real agents stop cleanly, the session records which limit it was.
"""

from __future__ import annotations

from rock.errors import RockError
from rock.modelservice.sessions import Over, Session
from rock.modelservice.wire import LimitName


def used_up(session: Session) -> LimitName | None:
    """The limit that leaves no room for one more call; None if there is room. Time is not looked
    at: the service closes a session whose time is over."""
    limits = session.spec.limits
    if limits.max_calls is not None and session.calls >= limits.max_calls:
        return "max_calls"
    bound = limits.max_prompt_tokens
    if bound is not None and session.prompt_tokens >= bound:
        return "max_prompt_tokens"
    bound = limits.max_completion_tokens
    if bound is not None and session.completion_tokens >= bound:
        return "max_completion_tokens"
    return None


def completion_room(session: Session, choices: int) -> int | None:
    """Tokens that each choice of the next answer may have; None if there is no such limit."""
    bound = session.spec.limits.max_completion_tokens
    if bound is None:
        return None
    return max(1, (bound - session.completion_tokens) // max(1, choices))


def refusal(session: Session) -> RockError:
    """What the agent of a session closed by a limit hears."""
    return Over("limit", session.limit, bound_of(session)).refusal()


def bound_of(session: Session) -> float | None:
    """The bound that closed the session, if one did."""
    return None if session.limit is None else getattr(session.spec.limits, session.limit)
