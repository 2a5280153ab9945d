"""An answer as an Anthropic message: JSON, or events, as it comes or of one that was spoken quickly.

`usage` is what the engine counted; an object without numbers stands for unknown, because the field
itself must be there. The signature of a thinking block names the call it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from rock.errors import CallFailed, RockError
from rock.modelservice.dialects import sse
from rock.modelservice.dialects.anthropic.content import MALFORMED, SIGNATURE
from rock.modelservice.dialects.anthropic.errors import error_body
from rock.modelservice.dialects.base import Spoken
from rock.modelservice.dialects.canonical import Object
from rock.modelservice.graph.answer import Answer, AnswerChoice, Delta
from rock.modelservice.wire import Usage

PING = sse.encode(b'{"type":"ping"}', event="ping")
_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessagesRenderer(Struct, frozen=True):
    """Writes answers to one request, in both forms."""

    model: str

    def reply(self, answer: Answer) -> bytes:
        choice = answer.choices[0]
        body = message_body(answer.call_id, self.model)
        body.update(
            content=_blocks(answer.call_id, choice),
            stop_reason=stop_reason(choice),
            usage=usage_body(answer.usage),
        )
        return msgspec.json.encode(body)

    def stream(self, call_id: str) -> MessagesStream:
        return MessagesStream(self.model, call_id)


class MessagesStream:
    """One streamed reply. Pings may come before it; every client skips them.

    Blocks come one after the other. Arguments of a tool go out as they come once they begin as a
    JSON object does; until then they wait, so that what is none can be wrapped.
    """

    def __init__(self, model: str, call_id: str) -> None:
        self._model = model
        self._call_id = call_id
        self._said = Spoken()
        self._index = -1
        self._open: str | None = None
        """Type of the block that is open."""
        self._use = _Use()

    def keepalive(self) -> bytes:
        return PING

    def delta(self, delta: Delta) -> bytes:
        if not delta:
            return b""
        known = delta.prompt_tokens
        usage: Object = {} if known is None else {"input_tokens": known, "output_tokens": 0}
        start = b"" if self._said.begun else self._start(usage)
        return start + b"".join(self._say(delta))

    def answer(self, answer: Answer) -> Iterator[bytes]:
        choice = answer.choices[0]
        usage = usage_body(answer.usage)
        if not self._said.begun:
            yield self._start({**usage, "output_tokens": 0} if usage else {})
        yield from self._say(self._said.rest(choice.message), last=True)
        yield from self._close(cut=choice.finish_reason == "length")
        delta = {"stop_reason": stop_reason(choice), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=usage)
        yield _event("message_stop")

    def error(self, exc: RockError) -> bytes:
        return sse.encode(error_body(exc), event="error")

    def _start(self, usage: Object) -> bytes:
        message = {**message_body(self._call_id, self._model), "usage": usage}
        return _event("message_start", message=message)

    def _say(self, delta: Delta, *, last: bool = False) -> Iterator[bytes]:
        self._said.add(delta)
        if delta.reasoning:
            yield from self._in("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self._in("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.calls:
            if call.name is not None:
                yield from self._close()
                self._use = _Use()
                id = call.id or f"toolu_{self._call_id}_{call.index}"
                yield from self._in("tool_use", {"id": id, "name": call.name, "input": {}})
            if more := self._use.more(call.arguments, hold=last):
                yield self._delta({"type": "input_json_delta", "partial_json": more})

    def _in(self, kind: str, empty: Object) -> Iterator[bytes]:
        """Be in a block of that type."""
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        self._index += 1
        block = {"type": kind, **empty}
        yield _event("content_block_start", index=self._index, content_block=block)

    def _close(self, *, cut: bool = False) -> Iterator[bytes]:
        """End the block that is open. Raises CallFailed for arguments that cannot be finished."""
        if self._open == "thinking":
            signature = f"{SIGNATURE}{self._call_id}"
            yield self._delta({"type": "signature_delta", "signature": signature})
        elif self._open == "tool_use" and (rest := self._use.rest(cut=cut)):
            yield self._delta({"type": "input_json_delta", "partial_json": rest})
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)
        self._open = None

    def _delta(self, delta: Object) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


class _Use:
    """The arguments of the tool use that is open."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._live = False

    def more(self, text: str, *, hold: bool) -> str:
        """What to send now. `hold` leaves what has not begun to `rest`, which sees all of it."""
        self._written.append(text)
        if self._live or hold:
            return text if self._live else ""
        held = "".join(self._written)
        self._live = held.lstrip(" \t\r\n").startswith("{")
        return held if self._live else ""

    def rest(self, *, cut: bool) -> str:
        """What is still to be sent. Raises CallFailed if what was sent became no JSON object."""
        whole = "".join(self._written)
        if not self._live:
            return bytes(tool_input(whole)).decode()
        if not cut and not _is_object(whole):
            raise CallFailed("the model's tool arguments are no JSON object; ask again to see them")
        return ""


def _event(name: str, /, **fields: object) -> bytes:
    return sse.encode(msgspec.json.encode({"type": name, **fields}), event=name)


def message_body(call_id: str, model: str) -> Object:
    """A message that has said nothing yet."""
    return {
        "id": f"msg_{call_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(call_id: str, choice: AnswerChoice) -> list[Object]:
    message = choice.message
    blocks: list[Object] = []
    if message.reasoning_content:
        signature = f"{SIGNATURE}{call_id}"
        thought = {
            "type": "thinking",
            "thinking": message.reasoning_content,
            "signature": signature,
        }
        blocks.append(thought)
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for index, call in enumerate(message.tool_calls or ()):
        blocks.append(
            {
                "type": "tool_use",
                "id": call.id or f"toolu_{call_id}_{index}",
                "name": call.function.name,
                "input": tool_input(call.function.arguments),
            }
        )
    return blocks


def tool_input(text: str) -> Raw:
    """The arguments as an object: what the model wrote, or wrapped if that is no JSON object."""
    if not text.strip():
        return Raw(b"{}")
    return Raw(text.encode() if _is_object(text) else msgspec.json.encode({MALFORMED: text}))


def _is_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def stop_reason(choice: AnswerChoice) -> str:
    """Clients run tools only on `tool_use`, which workers that match end tokens do not know."""
    if choice.finish_reason == "stop" and choice.message.tool_calls:
        return "tool_use"
    return _STOP_REASONS[choice.finish_reason]


def usage_body(usage: Usage | None) -> Object:
    """Input tokens leave out what was read from a cache, which is counted beside them."""
    if usage is None:
        return {}
    body: Object = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    if usage.cached_tokens is not None:
        body["input_tokens"] = max(0, usage.prompt_tokens - usage.cached_tokens)
        body["cache_read_input_tokens"] = usage.cached_tokens
    return body
