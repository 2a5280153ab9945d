"""The interceptors of a running service: which there are, in what order, and what they do to one
request or one answer.

Promises: an interceptor that fails or is too slow changes nothing, unless it says that it ends the
call; what it did is counted; a call that no interceptor matches is not touched and waits for
nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rock.errors import (
    BadRequest,
    CallFailed,
    ContextLengthExceeded,
    Forbidden,
    NotFound,
    RockError,
)
from rock.modelservice.interceptors import rules
from rock.modelservice.interceptors.hooks import HookEvent, Hooks
from rock.modelservice.interceptors.rules import Blocked, Circumstances
from rock.modelservice.telemetry.logs import about
from rock.modelservice.wire import CanonicalRequest, Choice, FinishReason, ToolCall
from rock.modelservice.wire.interceptors import Interceptor, InterceptorStatus, On

log = logging.getLogger(__name__)

MAX_INTERCEPTORS = 256
MAX_NAME_CHARS = 100
_ERRORS: dict[str, type[RockError]] = {
    kind.code: kind for kind in (Forbidden, BadRequest, ContextLengthExceeded)
}


@dataclass(slots=True)
class Edit:
    """What the interceptors of one call came to."""

    request: CanonicalRequest | None = None
    """The effective request; None if it is as asked."""
    choices: list[Choice] | None = None
    """The effective answer; None if it is as sampled."""
    by: tuple[str, ...] = ()
    """The interceptors that edited or ended it."""
    error: RockError | None = None
    """The call ends with this."""


class Interceptors:
    """By name. `on_run` is told (name, result) of every run."""

    def __init__(self, hooks: Hooks, on_run: Callable[[str, str], None]) -> None:
        self.hooks = hooks
        self._on_run = on_run
        self._specs: dict[str, Interceptor] = {}
        self._counts: dict[str, Counter[str]] = {}
        self._ordered: dict[On, list[tuple[str, Interceptor]]] = {"request": [], "response": []}

    def check(self, name: str, spec: Interceptor) -> None:
        """Raises BadRequest for what cannot work."""
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise BadRequest(
                f"name: expected 1 to {MAX_NAME_CHARS} printable characters", param="name"
            )
        if name not in self._specs and len(self._specs) >= MAX_INTERCEPTORS:
            raise BadRequest(f"there are {len(self._specs)} interceptors already", param="name")
        rules.check(spec)
        if spec.hook is not None:
            self.hooks.check(spec.hook)

    def replace_all(self, specs: Mapping[str, Interceptor]) -> None:
        """From now on these, in the order they were added."""
        self._specs = dict(specs)
        ordered = sorted(self._specs.items(), key=lambda item: item[1].order)
        self._ordered = {
            "request": [item for item in ordered if item[1].on == "request"],
            "response": [item for item in ordered if item[1].on == "response"],
        }

    def status(self) -> list[InterceptorStatus]:
        found: list[InterceptorStatus] = []
        for name, spec in (*self._ordered["request"], *self._ordered["response"]):
            counts = self._counts.get(name, Counter[str]())
            found.append(
                InterceptorStatus(
                    name=name,
                    interceptor=spec,
                    unchanged=counts["unchanged"],
                    edited=counts["edited"],
                    blocked=counts["blocked"],
                    failed=counts["failed"],
                )
            )
        return found

    def one(self, name: str) -> InterceptorStatus:
        """Raises NotFound."""
        for status in self.status():
            if status.name == name:
                return status
        raise NotFound(f"there is no interceptor {name[:MAX_NAME_CHARS]!r}")

    def matching(self, on: On, labels: Mapping[str, str]) -> list[tuple[str, Interceptor]]:
        ordered = self._ordered[on]
        return [item for item in ordered if _matches(item[1].match, labels)] if ordered else []

    def any(self, on: On) -> bool:
        """Whether there is one at all, whatever it matches."""
        return bool(self._ordered[on])

    async def on_request(self, request: CanonicalRequest, seen: Circumstances) -> Edit:
        """Run what matches. Does not wait unless a hook runs."""
        edit, now = Edit(), request
        for name, spec in self.matching("request", seen.labels):
            try:
                if spec.rules is not None:
                    after = rules.on_request(spec.rules, now, seen)
                else:
                    after = await self._hooked_request(spec, now, seen)
            except Exception as exc:  # noqa: BLE001 - a hook may raise anything; the call goes on
                if self._ended(edit, name, spec, exc, seen):
                    return edit
                continue
            self._ran(name, "unchanged" if after is now else "edited")
            if after is not now:
                now = after
                edit.request, edit.by = now, (*edit.by, name)
        return edit

    async def on_response(
        self, request: CanonicalRequest, choices: list[Choice], seen: Circumstances
    ) -> Edit:
        """The same for an answer."""
        edit, now = Edit(), choices
        for name, spec in self.matching("response", seen.labels):
            try:
                if spec.rules is not None:
                    after = rules.on_response(spec.rules, request, now, seen)
                else:
                    after = await self._hooked_response(spec, request, now, seen)
            except Exception as exc:  # noqa: BLE001 - a hook may raise anything; the call goes on
                if self._ended(edit, name, spec, exc, seen):
                    return edit
                continue
            self._ran(name, "unchanged" if after is now else "edited")
            if after is not now:
                now = after
                edit.choices, edit.by = now, (*edit.by, name)
        return edit

    def _ended(
        self, edit: Edit, name: str, spec: Interceptor, exc: Exception, seen: Circumstances
    ) -> bool:
        """Whether what an interceptor raised ends the call."""
        if isinstance(exc, Blocked):
            self._ran(name, "blocked")
            edit.error = _ERRORS.get(exc.code, Forbidden)(exc.message)
            edit.by = (*edit.by, name)
            return True
        self._ran(name, "failed")
        log.warning(
            "interceptor failed",
            extra=about(name=name, error=type(exc).__name__, session_id=seen.session_id),
            exc_info=exc if log.isEnabledFor(logging.DEBUG) else None,
        )
        if spec.on_error == "pass":
            return False
        # Its type and no more: what it says may be a secret of the hook's.
        edit.error = CallFailed(f"the interceptor {name!r} failed: {type(exc).__name__}")
        edit.by = (*edit.by, name)
        return True

    def _ran(self, name: str, result: str) -> None:
        self._counts.setdefault(name, Counter())[result] += 1
        self._on_run(name, result)

    # --- hooks ---

    async def _hooked_request(
        self, spec: Interceptor, request: CanonicalRequest, seen: Circumstances
    ) -> CanonicalRequest:
        returned = await self._run(spec, request, None, seen)
        if returned is None:
            return request
        # Through JSON: only that can be stored and sent.
        after = msgspec.json.decode(msgspec.json.encode(returned), type=CanonicalRequest)
        if not after.messages:
            raise ValueError("a request needs messages")
        return replace(after, n=request.n)  # what the renderer was promised

    async def _hooked_response(
        self,
        spec: Interceptor,
        request: CanonicalRequest,
        choices: list[Choice],
        seen: Circumstances,
    ) -> list[Choice]:
        returned = await self._run(spec, request, choices, seen)
        if returned is None:
            return choices
        said = msgspec.json.decode(msgspec.json.encode(returned), type=list[_Said])
        if len(said) != len(choices):
            raise ValueError(f"expected {len(choices)} choices, got {len(said)}")
        after = [one.of(choice) for one, choice in zip(said, choices, strict=True)]
        return choices if after == choices else after

    async def _run(
        self,
        spec: Interceptor,
        request: CanonicalRequest,
        choices: list[Choice] | None,
        seen: Circumstances,
    ) -> Any:
        event = HookEvent(
            session_id=seen.session_id,
            labels=dict(seen.labels),
            dialect=seen.dialect,
            kind=seen.kind,
            turn=seen.turn,
            request=msgspec.json.decode(msgspec.json.encode(request)),
            choices=None if choices is None else [_shown(choice) for choice in choices],
        )
        assert spec.hook is not None
        return await self.hooks.run(spec.hook, event, timeout_seconds=spec.timeout_seconds)


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    role: str = "assistant"


class _Said(Struct):
    """A choice as a hook gives it back."""

    message: _Message
    finish_reason: FinishReason

    def of(self, choice: Choice) -> Choice:
        """`choice`, saying this."""
        message = replace(
            choice.message,
            content=self.message.content,
            reasoning_content=self.message.reasoning_content,
            tool_calls=self.message.tool_calls,
        )
        return replace(choice, message=message, finish_reason=self.finish_reason)


def _shown(choice: Choice) -> dict[str, Any]:
    message = msgspec.json.decode(msgspec.json.encode(choice.message))
    return {"message": {"role": "assistant", **message}, "finish_reason": choice.finish_reason}


def _matches(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(name in labels and value in ("*", labels[name]) for name, value in wanted.items())
