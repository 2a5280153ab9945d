"""What a dialect is: one class that turns a request into a canonical call and an answer into bytes.

A dialect knows neither the HTTP server nor who answers. Adding one is a file beside `chat.py` and a
line in the registry. Life of one request:

    parse(body, headers, history)      the canonical request, and a Renderer that remembers only
        -> Parsed                      what the reply needs (the request itself is let go)
    renderer.reply(answer) -> bytes    for a plain reply, or
    renderer.stream(call_id)           an encoder for a streamed one: keepalive() and delta() as it
                                       comes, then answer(), or error() if the call ends badly
                                       after the first byte
    error(exc) -> ErrorReply           when the status is still free
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Raw, Struct

from rock.config import kind_of
from rock.errors import BadRequest, RockError
from rock.modelservice.graph.answer import Answer, Delta
from rock.modelservice.wire import AssistantMessage, CanonicalRequest
from rock.modelservice.wire.partial import ToolCallDelta

Headers = Mapping[str, str]
"""Header values by name, which is in lower case."""
T = TypeVar("T")


class Exchange(Struct, frozen=True):
    """An earlier call of the session and what it got (its first choice)."""

    request: CanonicalRequest
    message: AssistantMessage


class History(Protocol):
    """Earlier calls of the asking session, for a dialect whose requests may name one."""

    def exchange(self, call_id: str) -> Exchange | None:
        """None if the session has no answered call of that id."""
        ...


class NoHistory:
    """A session without earlier calls."""

    def exchange(self, call_id: str) -> Exchange | None:
        del call_id
        return None


NO_HISTORY = NoHistory()


class Spoken:
    """What an encoder has already said of one choice, so that it says only the rest."""

    def __init__(self) -> None:
        self._text = 0
        self._reasoning = 0
        self._arguments: list[int] = []
        self.begun = False

    def add(self, delta: Delta) -> None:
        self.begun = True
        self._text += len(delta.content)
        self._reasoning += len(delta.reasoning)
        for call in delta.calls:
            if call.index == len(self._arguments):
                self._arguments.append(0)
            self._arguments[call.index] += len(call.arguments)

    def rest(self, message: AssistantMessage) -> Delta:
        """The message, which begins with what was said, without that."""
        said = len(self._arguments)
        calls: list[ToolCallDelta] = []
        for index, call in enumerate(message.tool_calls or ()):
            if index >= said:
                calls.append(
                    ToolCallDelta(index, call.function.arguments, call.function.name, call.id)
                )
            elif more := call.function.arguments[self._arguments[index] :]:
                calls.append(ToolCallDelta(index, more))
        return Delta(
            content=(message.content or "")[self._text :],
            reasoning=(message.reasoning_content or "")[self._reasoning :],
            calls=tuple(calls),
        )


class StreamEncoder(Protocol):
    """Writes one reply as events. Frames are whole; the first may also be a keep-alive."""

    def keepalive(self) -> bytes:
        """A data event that says nothing: comments do not reset the timers of several clients."""
        ...

    def delta(self, delta: Delta) -> bytes:
        """More of an answer that is not whole yet; b"" where the dialect has to wait for the end."""
        ...

    def answer(self, answer: Answer) -> Iterator[bytes]:
        """Everything still to be said, the closing frames included.

        Raises `CallFailed` where what was said cannot be finished in this dialect; a stream that
        has said nothing yet can always be.
        """
        ...

    def error(self, exc: RockError) -> bytes:
        """The last frame of a stream that cannot be finished."""
        ...


class Renderer(Protocol):
    """How the answer to one request is written."""

    def reply(self, answer: Answer) -> bytes: ...

    def stream(self, call_id: str) -> StreamEncoder: ...


class Parsed(Struct, frozen=True):
    request: CanonicalRequest
    stream: bool
    renderer: Renderer


@dataclass(frozen=True, slots=True)
class ErrorReply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class CountRoute:
    """A path that asks how many tokens a request has. No call is made for it."""

    parse: Callable[[bytes, History], CanonicalRequest]
    """Raises BadRequest."""
    render: Callable[[int], bytes]


class Dialect(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def routes(self) -> tuple[str, ...]:
        """Paths below `/v1` that take a POST of this dialect."""
        ...

    @property
    def count_routes(self) -> Mapping[str, CountRoute]:
        """Further paths below `/v1` that take a POST."""
        ...

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        """Raises BadRequest naming the field, what was given and what was expected."""
        ...

    def error(self, exc: RockError) -> ErrorReply: ...


_fields = msgspec.json.Decoder(dict[str, Raw])


def fields_of(body: bytes) -> dict[str, Raw]:
    """The top-level fields of a JSON object, each still as sent. Raises BadRequest."""
    try:
        if not body.isascii():
            body.decode("utf-8")  # skipped values are not checked by the decoder
        return _fields.decode(body)
    except UnicodeDecodeError as exc:
        raise BadRequest(f"the body is not UTF-8: bad byte at {exc.start}") from exc
    except msgspec.ValidationError as exc:
        raise BadRequest(f"the body must be a JSON object, got {kind_of_json(body)}") from exc
    except msgspec.DecodeError as exc:
        what = "is empty" if not body.strip() else f"is not valid JSON: {exc}"
        raise BadRequest(f"the body {what}") from exc
    except RecursionError as exc:
        raise BadRequest("the body is nested too deeply") from exc


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind | None)


def take(fields: dict[str, Raw], name: str, kind: type[T] | Any, expected: str) -> Any:
    """Remove `name` and decode it as `kind`; null and absent are None. Raises BadRequest."""
    raw = fields.pop(name, None)
    if raw is None:
        return None
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise wrong(name, raw, expected) from exc


def wrong(name: str, raw: Raw | bytes, expected: str) -> BadRequest:
    return BadRequest(f"{name}: expected {expected}, got {kind_of_json(bytes(raw))}", param=name)


def kind_of_json(raw: bytes) -> str:
    """What a JSON text is, for an error message: scalars are shown when short."""
    head = raw.lstrip()[:1]
    if head == b"{":
        return "an object"
    if head == b"[":
        return "an array"
    try:
        return kind_of(msgspec.json.decode(raw))
    except msgspec.DecodeError:
        return "a malformed value"
