"""An answer as an Anthropic message: JSON, or the events of one that was spoken quickly.

`usage` is what the engine counted; an object without numbers stands for unknown, because the field
itself must be there. The signature of a thinking block names the call it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

from rock.errors import RockError
from rock.modelservice.dialects import sse
from rock.modelservice.dialects.anthropic.content import MALFORMED, SIGNATURE
from rock.modelservice.dialects.anthropic.errors import error_body
from rock.modelservice.dialects.canonical import Object
from rock.modelservice.graph.answer import Answer, AnswerChoice
from rock.modelservice.wire import ToolCall, Usage

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
    """One streamed reply. Pings may come before it; every client skips them."""

    def __init__(self, model: str, call_id: str) -> None:
        self._model = model
        self._call_id = call_id

    def keepalive(self) -> bytes:
        return PING

    def delta(self, text: str, reasoning: str) -> bytes:
        del text, reasoning  # its opening event counts the prompt's tokens, known at the end
        return b""

    def answer(self, answer: Answer) -> Iterator[bytes]:
        choice = answer.choices[0]
        usage = usage_body(answer.usage)
        message = message_body(self._call_id, self._model)
        message["usage"] = {**usage, "output_tokens": 0} if usage else {}
        yield _event("message_start", message=message)
        for index, block in enumerate(_blocks(self._call_id, choice)):
            yield from _block_events(index, block)
        delta = {"stop_reason": stop_reason(choice), "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=usage)
        yield _event("message_stop")

    def error(self, exc: RockError) -> bytes:
        return sse.encode(error_body(exc), event="error")


def _block_events(index: int, block: Object) -> Iterator[bytes]:
    """A block's start, its content as deltas, its stop."""
    deltas: list[Object]
    if block["type"] == "text":
        empty: Object = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": block["text"]}]
    elif block["type"] == "thinking":
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    else:
        empty = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": bytes(block["input"]).decode()}]
    yield _event("content_block_start", index=index, content_block=empty)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


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
                "input": tool_input(call),
            }
        )
    return blocks


def tool_input(call: ToolCall) -> Raw:
    """The arguments as an object: what the model wrote, or wrapped if that is no JSON object."""
    text = call.function.arguments
    if not text.strip():
        return Raw(b"{}")
    try:
        msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return Raw(msgspec.json.encode({MALFORMED: text}))
    return Raw(text.encode())


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
