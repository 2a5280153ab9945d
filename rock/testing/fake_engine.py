"""A fake of the servers that hosted models and inference engines run on, on a real socket.

It plays a script and records what it was asked. It answers chat and plain completions, whole or
streamed (a chunk per word), and gives byte tokens to those who ask for them, unless it is told to lose
them as some engines and routers do.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from rock.errors import RockError
from rock.modelservice.dialects import sse
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening, url_of
from rock.modelservice.planes.plane import EventStream, Reply, Request
from rock.modelservice.wire import AssistantMessage

BOUNDS = Bounds(max_body_bytes=64 << 20)
FakeAnswer: TypeAlias = str | AssistantMessage | Reply | Callable[[], EventStream]
"""Text or a message to answer with, or a whole HTTP reply."""
TokensGiven = Literal["always", "whole", "never"]
"""Whether who asks for token ids gets them: in every answer, only in whole ones, or never."""
Object = dict[str, Any]


@dataclass
class FakeOpenAI:
    """`url` is the base URL, with `/v1`."""

    url: str
    script: list[FakeAnswer]
    tokens: TokensGiven = "always"
    requests: list[Object] = field(default_factory=list[Object])
    bodies: list[bytes] = field(default_factory=list[bytes])
    """The same as they were sent."""
    paths: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])

    async def handle(self, request: Request) -> Reply | EventStream:
        self.keys.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        self.paths.append(request.path)
        self.bodies.append(await request.read())
        asked: Object = json.loads(self.bodies[-1])
        self.requests.append(asked)
        answer = self.script[min(len(self.requests), len(self.script)) - 1]
        if isinstance(answer, Reply):
            return answer
        if callable(answer):
            return answer()
        message = AssistantMessage(content=answer) if isinstance(answer, str) else answer
        if request.path.endswith("/chat/completions"):
            return self._chat(asked, message)
        return self._completion(asked, message.content or "")

    def _chat(self, asked: Object, message: AssistantMessage) -> Reply | EventStream:
        given = asked.get("return_token_ids") is True
        if asked.get("stream"):
            with_tokens = given and self.tokens == "always"
            return EventStream(frames_of(_chunks(asked, message, with_tokens)))
        body = _chat_body(message)
        if given and self.tokens != "never":
            body["prompt_token_ids"] = _prompt_of(asked)
            body["choices"][0] |= _tokens_of(msgspec.json.encode(message))
        return Reply(200, json.dumps(body).encode())

    def _completion(self, asked: Object, text: str) -> Reply:
        choice: Object = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        if asked.get("return_token_ids") and self.tokens != "never":
            tokens = _tokens_of(text.encode())
            values = [item["logprob"] for item in tokens["logprobs"]["content"]]
            choice["token_ids"] = tokens["token_ids"]
            choice["logprobs"] = {"token_logprobs": values}
            choice["prompt_token_ids"] = _prompt_of(asked)
        body = {**_HEAD, "object": "text_completion", "choices": [choice], "usage": USAGE}
        return Reply(200, json.dumps(body).encode())


@asynccontextmanager
async def fake_openai_server(
    script: Sequence[FakeAnswer], *, tokens: TokensGiven = "always"
) -> AsyncGenerator[FakeOpenAI, None]:
    """Replies in the script's order; the last one is repeated."""
    listener = bind("127.0.0.1", 0)
    fake = FakeOpenAI(f"{url_of(listener)}/v1", list(script), tokens)
    async with listening(listener, Adapter(fake.handle, _refusal, BOUNDS)):
        yield fake


_HEAD: Object = {"id": "chatcmpl-fake", "created": 1, "model": "fake"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def completion_reply(text: str) -> Reply:
    """A chat completion as a hosted model sends it."""
    return Reply(200, json.dumps(_chat_body(AssistantMessage(content=text))).encode())


def error_reply(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Reply:
    """An error as a hosted model sends it."""
    error = {"message": message, "type": "error", "param": None, "code": None}
    return Reply(status, json.dumps({"error": error}).encode(), headers or {})


def stream_reply(*events: str | Object, cut: bool = False) -> Callable[[], EventStream]:
    """Streams of these events (`[DONE]` is one), which with `cut` end in a lost connection."""
    return lambda: EventStream(frames_of(list(events), cut=cut))


def chunk(delta: Object, finish: str | None = None, **more: object) -> Object:
    """One event of a streamed chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


async def frames_of(
    events: Sequence[str | Object], *, cut: bool = False
) -> AsyncGenerator[bytes, None]:
    for event in events:
        yield sse.encode((event if isinstance(event, str) else json.dumps(event)).encode())
    if cut:
        raise RuntimeError("cut, as told")  # the connection is aborted


def _chat_body(message: AssistantMessage) -> Object:
    said: Object = {"role": "assistant", **json.loads(msgspec.json.encode(message))}
    finish = "tool_calls" if message.tool_calls else "stop"
    choice: Object = {"index": 0, "message": said, "finish_reason": finish}
    return {**_HEAD, "object": "chat.completion", "choices": [choice], "usage": dict(USAGE)}


def _chunks(asked: Object, message: AssistantMessage, with_tokens: bool) -> list[str | Object]:
    events: list[str | Object] = [chunk({"role": "assistant", "content": ""})]
    if with_tokens:
        events[0] = {**chunk({"role": "assistant"}), "prompt_token_ids": _prompt_of(asked)}
    for name, text in (
        ("reasoning_content", message.reasoning_content),
        ("content", message.content),
    ):
        for word in re.findall(r"\s*\S+\s*", text or ""):
            tokens = _tokens_of(word.encode()) if with_tokens else {}
            events.append(chunk({name: word}, **tokens))
    for index, call in enumerate(message.tool_calls or ()):
        opened = {"index": index, "id": call.id or f"call_fake_{index}", "type": "function"}
        function = {"name": call.function.name, "arguments": ""}
        events.append(chunk({"tool_calls": [{**opened, "function": function}]}))
        for word in re.findall(r"\s*\S+\s*", call.function.arguments):
            more = {"index": index, "function": {"arguments": word}}
            tokens = _tokens_of(word.encode()) if with_tokens else {}
            events.append(chunk({"tool_calls": [more]}, **tokens))
    events.append(chunk({}, "tool_calls" if message.tool_calls else "stop"))
    options: Object = asked.get("stream_options") or {}
    if options.get("include_usage"):
        events.append({**chunk({}), "choices": [], "usage": USAGE})
    return [*events, "[DONE]"]


def _prompt_of(asked: Object) -> list[int]:
    return list(json.dumps(asked.get("messages", asked.get("prompt"))).encode())


def _tokens_of(text: bytes) -> Object:
    """Byte tokens with made-up log-probabilities."""
    content = [{"token": "?", "logprob": -(1 + byte % 7) / 8} for byte in text]
    return {"token_ids": list(text), "logprobs": {"content": content}}


def _refusal(exc: RockError) -> Reply:
    return error_reply(exc.status, exc.message)
