"""An answer as a Responses object: JSON, or the full sequence of events.

Order of a streamed reply: `response.created`, `response.in_progress` (also the keep-alive), each
output item with its parts and deltas, then `response.completed` or `response.incomplete`; or
`response.failed` if the call ends badly after the first byte. `usage` is what was counted, or null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from rock.errors import BadRequest, ContextLengthExceeded, QueueFull, RockError, SessionClosed
from rock.modelservice.dialects import sse
from rock.modelservice.dialects.base import Spoken
from rock.modelservice.dialects.canonical import Object
from rock.modelservice.dialects.responses.output import (
    Event,
    Item,
    MessageItem,
    ReasoningItem,
    SpecialItem,
    call_item,
    output_items,
    status_of,
)
from rock.modelservice.dialects.responses.tools import Targets
from rock.modelservice.graph.answer import Answer, Delta
from rock.modelservice.wire import Usage

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesRenderer(Struct, frozen=True):
    """Writes answers to one request, in both forms."""

    model: str
    now: Callable[[], float]
    targets: Targets
    previous_response_id: str | None
    parallel_tool_calls: bool
    sealed: bool

    def reply(self, answer: Answer) -> bytes:
        choice = answer.choices[0]
        items = output_items(answer.call_id, choice, self.targets, sealed=self.sealed)
        return msgspec.json.encode(self.finished(answer, self.body(answer.call_id), items))

    def stream(self, call_id: str) -> ResponsesStream:
        return ResponsesStream(self, call_id)

    def body(self, call_id: str) -> Object:
        """A response that has just begun. Fields that only repeat the request are left empty."""
        return {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": int(self.now()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }

    def finished(self, answer: Answer, body: Object, items: list[Object]) -> Object:
        choice = answer.choices[0]
        reason = _INCOMPLETE.get(choice.finish_reason)
        return {
            **body,
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": items,
            "usage": usage_body(answer.usage),
        }


class ResponsesStream:
    """One streamed reply. Events are numbered from its first frame on; items come one after the
    other."""

    def __init__(self, renderer: ResponsesRenderer, call_id: str) -> None:
        self._renderer = renderer
        self._call_id = call_id
        self._body = renderer.body(call_id)
        self._next = 0
        self._said = Spoken()
        self._open: Item | None = None
        self._announced = False
        """Whether the client knows of the open item."""
        self._done: list[Object] = []

    def keepalive(self) -> bytes:
        """The opening, or a repetition of its second half: that resets every client's timer."""
        return self._opening() or self._event("response.in_progress", response=self._body)

    def delta(self, delta: Delta) -> bytes:
        return self._opening() + b"".join(self._say(delta)) if delta else b""

    def answer(self, answer: Answer) -> Iterator[bytes]:
        yield self._opening()
        choice = answer.choices[0]
        status = status_of(choice)
        yield from self._say(self._said.rest(choice.message), status)
        if self._open is None:
            yield from self._begin(MessageItem(self._call_id, 0))  # an answer has an item
        yield from self._close(status)
        body = self._renderer.finished(answer, self._body, self._done)
        yield self._event(f"response.{body['status']}", response=body)

    def error(self, exc: RockError) -> bytes:
        error = {"code": error_code(exc), "message": _message(exc)}
        body = {**self._body, "status": "failed", "error": error}
        return self._opening() + self._event("response.failed", response=body)

    def _opening(self) -> bytes:
        if self._next:
            return b""
        return self._event("response.created", response=self._body) + self._event(
            "response.in_progress", response=self._body
        )

    def _say(self, delta: Delta, status: str = "completed") -> Iterator[bytes]:
        self._said.add(delta)
        if delta.reasoning:
            if not isinstance(self._open, ReasoningItem):
                number = self._count("reasoning")
                sealed = self._renderer.sealed
                item = ReasoningItem(self._call_id, number, sealed=sealed)
                yield from self._begin(item, status)
            yield from self._more(delta.reasoning)
        if delta.content:
            if not isinstance(self._open, MessageItem):
                item = MessageItem(self._call_id, self._count("message"))
                yield from self._begin(item, status)
            yield from self._more(delta.content)
        for call in delta.calls:
            if call.name is not None:
                id = call.id or f"call_{self._call_id}_{call.index}"
                item = call_item(id, call.name, self._renderer.targets)
                yield from self._begin(item, status)
            yield from self._more(call.arguments)

    def _count(self, kind: str) -> int:
        return sum(item["type"] == kind for item in self._done)

    def _begin(self, item: Item, status: str = "completed") -> Iterator[bytes]:
        yield from self._close(status)
        self._open = item
        self._announced = not isinstance(item, SpecialItem)
        if self._announced:
            yield from self._announce(item)

    def _announce(self, item: Item) -> Iterator[bytes]:
        place = len(self._done)
        yield self._event("response.output_item.added", output_index=place, item=item.begun)
        yield from self._events(item, item.opening())

    def _more(self, text: str) -> Iterator[bytes]:
        assert self._open is not None
        yield from self._events(self._open, self._open.more(text))

    def _close(self, status: str) -> Iterator[bytes]:
        item, self._open = self._open, None
        if item is None:
            return
        if not self._announced:
            yield from self._announce(item)
        yield from self._events(item, item.closing(status))
        body = item.body(status)
        yield self._event("response.output_item.done", output_index=len(self._done), item=body)
        self._done.append(body)

    def _events(self, item: Item, events: list[Event]) -> Iterator[bytes]:
        for name, fields in events:
            place = {"item_id": item.begun["id"], "output_index": len(self._done)}
            yield self._event(name, **place, **fields)

    def _event(self, name: str, /, **fields: object) -> bytes:
        data = {"type": name, "sequence_number": self._next, **fields}
        self._next += 1
        return sse.encode(msgspec.json.encode(data), event=name)


def error_code(exc: RockError) -> str:
    """The words that clients choose by: wait, stop, or try again."""
    if isinstance(exc, ContextLengthExceeded):
        return exc.code
    if isinstance(exc, QueueFull):
        return "rate_limit_exceeded"
    if isinstance(exc, (BadRequest, SessionClosed)):
        return "invalid_prompt"
    return exc.code


def _message(exc: RockError) -> str:
    if isinstance(exc, QueueFull):
        # The wait is read out of this text.
        return f"{exc.message}. Please try again in {math.ceil(exc.retry_after_seconds)}s."
    return exc.message


def usage_body(usage: Usage | None) -> Object | None:
    """Details that nobody counted are zero: the shape has no other word for "none"."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
