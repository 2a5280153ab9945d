"""What a session exports: its calls for people and checks, its token rows for training."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

from rock.errors import NotFound, RockError, shown
from rock.modelservice.engine.book import Book
from rock.modelservice.engine.calls import Call
from rock.modelservice.engine.conversation import Conversation
from rock.modelservice.graph.answer import Answer, AnswerChoice
from rock.modelservice.graph.rows import CallTokens, build_rows
from rock.modelservice.sessions import Session
from rock.modelservice.states import State
from rock.modelservice.wire import CanonicalRequest, Choice, SessionInfo, Trajectory, TrajectoryCall
from rock.types import SessionId


def trajectory(book: Book, session_id: SessionId) -> Trajectory:
    """Raises `NotFound`."""
    found, calls = _without_rows(book, session_id)
    found.rows = build_rows(calls)
    return found


async def trajectory_later(book: Book, session_id: SessionId) -> Trajectory:
    """`trajectory` as of now. Rows are made in a thread: those of a session that was tokenised anew at
    each turn can be millions of tokens."""
    found, calls = _without_rows(book, session_id)
    found.rows = await asyncio.to_thread(build_rows, calls)
    return found


def _without_rows(book: Book, session_id: SessionId) -> tuple[Trajectory, list[CallTokens]]:
    session = book.sessions.get(session_id)
    conversation = book.conversation(session.id)
    calls = conversation.calls
    found = Trajectory(
        session_id=session.id,
        labels=dict(session.labels),
        close_reason=session.close_reason,
        limit=session.limit,
        limits=session.spec.limits,
        pins=session.spec.pins,
        calls=[_call(conversation, call) for call in calls],
        rows=[],
        untrainable=dict(Counter(_untrainable(call) for call in calls if _untrainable(call))),
    )
    return found, [call.tokens for call in calls if call.tokens is not None]


def session_info(session: Session, age_seconds: float | None) -> SessionInfo:
    """`age_seconds` is that of the last call."""
    counts = session.counts
    return SessionInfo(
        session_id=session.id,
        state="open" if session.open else "closed",
        labels=dict(session.labels),
        calls=session.calls,
        queued=counts[State.QUEUED],
        leased=counts[State.LEASED],
        answered=counts[State.ANSWERED] + counts[State.DELIVERED],
        undelivered=counts[State.UNDELIVERED],
        failed=counts[State.FAILED],
        cancelled=counts[State.CANCELLED],
        close_reason=session.close_reason,
        limit=session.limit,
        restarted=session.restarted,
        prompt_tokens=session.prompt_tokens,
        completion_tokens=session.completion_tokens,
        last_call_age_seconds=age_seconds,
    )


def one_call(book: Book, session_id: SessionId, call_id: str) -> TrajectoryCall:
    """Raises `NotFound`, also for a call of another session."""
    call = book.call(call_id)
    if call.session_id != session_id:
        raise NotFound(f"this session has no call {shown(call_id)}")
    return _call(book.conversation(session_id), call)


def _call(conversation: Conversation, call: Call) -> TrajectoryCall:
    answer = call.stored if isinstance(call.stored, Answer) else None
    pinned: dict[str, Any] = msgspec.json.decode(call.pinned) if call.pinned else {}
    return TrajectoryCall(
        call_id=call.id,
        state=call.state.value,
        request=conversation.request_of(call),
        original=conversation.original_of(call),
        edited_by=[*call.edited_by, *(answer.edited_by if answer else ())],
        sampled=[_choice(choice) for choice in (answer.sampled or ())] if answer else [],
        pinned=pinned,
        requested=_requested(call, pinned),
        choices=[_choice(choice) for choice in answer.choices] if answer else [],
        parent=call.parent.id if call.parent else None,
        branch=call.branch,
        chain_class=call.chain_class,
        untrainable=answer.untrainable if answer else None,
        policy_version=answer.policy_version if answer else None,
        usage=answer.usage if answer else None,
        deliveries=call.deliveries,
        kind=call.kind,
        error=call.stored.message if isinstance(call.stored, RockError) else None,
        error_code=call.stored.code if isinstance(call.stored, RockError) else None,
        cut_off=call.cut_off,
        left_after_seconds=call.left_after,
    )


def _requested(call: Call, pinned: dict[str, Any]) -> dict[str, Any]:
    """What the agent had asked for where a pin put something else."""
    if not pinned or call.identity is None:
        return {}
    asked = msgspec.json.decode(call.identity[3], type=CanonicalRequest)
    return {name: getattr(asked, name) for name in pinned}


def _choice(choice: AnswerChoice) -> Choice:
    return Choice(
        message=choice.message,
        finish_reason=choice.finish_reason,
        token_ids=choice.token_ids,
        logprobs=choice.logprobs,
        version_spans=list(choice.version_spans) if choice.version_spans else None,
        parts=list(choice.parts) if choice.parts else None,
    )


def _untrainable(call: Call) -> str:
    return (call.stored.untrainable or "") if isinstance(call.stored, Answer) else ""
