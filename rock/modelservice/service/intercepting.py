"""Interceptors on a running service: setting them, and running them on its requests and answers."""

from __future__ import annotations

from collections.abc import Sequence

from rock.errors import RockError
from rock.modelservice.engine.calls import Call
from rock.modelservice.engine.engine import Engine
from rock.modelservice.interceptors.interceptors import Edit
from rock.modelservice.interceptors.rules import Circumstances
from rock.modelservice.journal import records
from rock.modelservice.sessions import Session
from rock.modelservice.wire import CanonicalRequest, Completion
from rock.modelservice.wire.interceptors import (
    Interceptor,
    InterceptorList,
    InterceptorRemoved,
    InterceptorStatus,
)
from rock.types import LeaseId


class InterceptingSide:
    """The part of `ModelService` that the interceptors' API uses. Changes hold from the next request
    and the next answer on, and after a restart."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def interceptors(self) -> InterceptorList:
        found = self._engine.interceptors
        return InterceptorList(interceptors=found.status(), hooks=found.hooks.names)

    def interceptor(self, name: str) -> InterceptorStatus:
        """Raises NotFound."""
        return self._engine.interceptors.one(name)

    async def set_interceptor(self, name: str, spec: Interceptor) -> InterceptorStatus:
        """Add one, or change the one of that name in its place. Raises BadRequest."""
        self._engine.interceptors.check(name, spec)
        await self._engine.change_interceptors(records.InterceptorSet(name=name, spec=spec))
        return self._engine.interceptors.one(name)

    async def remove_interceptor(self, name: str) -> InterceptorRemoved:
        """Removing what is not there is fine."""
        if name not in self._engine.book.interceptors:
            return InterceptorRemoved(removed=False)
        await self._engine.change_interceptors(records.InterceptorRemoved(name=name))
        return InterceptorRemoved(removed=True)


async def intercepted(
    engine: Engine, session: Session, request: CanonicalRequest, *, dialect: str, kind: str | None
) -> Edit:
    """What the interceptors make of a new request. Waits only if a hook matches."""
    return await engine.interceptors.on_request(
        request, _seen(session, session.calls, dialect, kind)
    )


async def intercepted_answers(engine: Engine, completions: Sequence[Completion]) -> dict[str, Edit]:
    """By lease, what the interceptors make of answers that would be stored now.

    An answer of which an agent has read a part stays as it is.
    """
    edits: dict[str, Edit] = {}
    if not engine.interceptors.any("response"):
        return edits
    for completion in completions:
        call = _open_call(engine, completion.lease_id)
        if call is None or call.shown:
            continue
        session = call.session
        if not engine.interceptors.matching("response", session.labels):
            continue
        request = engine.book.conversation(session.id).request_of(call)
        seen = _seen(session, call.number, call.dialect, call.kind)
        edit = await engine.interceptors.on_response(request, completion.choices, seen)
        if edit.by:
            edits[completion.lease_id] = edit
    return edits


def _open_call(engine: Engine, lease_id: str) -> Call | None:
    try:
        engine.queue.held(LeaseId(lease_id))
        return engine.book.call_of_lease(lease_id)
    except RockError:  # told when the completion is looked at
        return None


def _seen(session: Session, turn: int, dialect: str, kind: str | None) -> Circumstances:
    return Circumstances(
        session_id=session.id, labels=dict(session.labels), dialect=dialect, kind=kind, turn=turn
    )
