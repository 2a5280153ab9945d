"""Legacy completions: `POST /v1/completions`, raw text in and raw text out.

A prompt is no conversation and no chat template applies to it. The canonical request says so: it has
one message of the role `prompt`, whose content is the text (or the list of token ids) to go on from,
as it was sent. The answer's `content` is the continuation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from rock.errors import BadRequest, RockError
from rock.modelservice.dialects import canonical, reading, sse
from rock.modelservice.dialects.base import (
    NO_HISTORY,
    CountRoute,
    ErrorReply,
    Headers,
    History,
    Parsed,
    Spoken,
    fields_of,
    take,
    wrong,
)
from rock.modelservice.dialects.canonical import Object
from rock.modelservice.dialects.chat import MAX_CHOICES, usage_body
from rock.modelservice.dialects.openai_errors import error_body, error_reply
from rock.modelservice.graph.answer import Answer, AnswerChoice, Delta
from rock.modelservice.timers import epoch_seconds
from rock.modelservice.wire import AssistantMessage, CanonicalRequest

PROMPT = "a string, a list of token ids, or a list with one of them"
MAX_LOGPROBS = 5


class CompletionsDialect:
    name = "completions"
    routes = ("/completions",)

    def __init__(self, now: Callable[[], float] = epoch_seconds) -> None:
        self._now = now
        self.count_routes: Mapping[str, CountRoute] = {}

    def parse(self, body: bytes, headers: Headers, history: History = NO_HISTORY) -> Parsed:
        del headers, history
        fields = fields_of(body)
        stream = bool(take(fields, "stream", bool, "true or false"))
        options: dict[str, Raw] = take(fields, "stream_options", dict[str, Raw], "an object") or {}
        include_usage = bool(take(options, "include_usage", bool, "true or false"))
        logprobs = take(fields, "logprobs", int, f"an integer from 0 to {MAX_LOGPROBS}")
        request = _canonical(fields)
        if logprobs is not None:
            request.extra["logprobs"] = canonical.raw(logprobs)
        renderer = CompletionsRenderer(
            request.model, self._now, include_usage, logprobs is not None
        )
        return Parsed(request, stream, renderer)

    def error(self, exc: RockError) -> ErrorReply:
        return error_reply(exc)


def _canonical(fields: dict[str, Raw]) -> CanonicalRequest:
    model = reading.model_name(fields)
    prompt = _prompt(fields.pop("prompt", Raw(b"null")))
    choices = reading.integer(fields, "n", MAX_CHOICES)
    if take(fields, "echo", bool, "true or false"):
        raise reading.refused("echo", "true", "the reply has the continuation only")
    best_of = reading.integer(fields, "best_of", MAX_CHOICES)
    if best_of not in (None, choices or 1):
        raise reading.refused("best_of", "another value than n", "every sample is returned")
    stop: str | list[str] | None = take(
        fields, "stop", str | list[str], "a string or a list of strings"
    )
    request = CanonicalRequest(
        model=model,
        messages=[canonical.message("prompt", prompt)],
        temperature=reading.number(fields, "temperature", 0.0, 2.0),
        top_p=reading.number(fields, "top_p", 0.0, 1.0),
        max_tokens=reading.integer(fields, "max_tokens"),
        stop=[stop] if isinstance(stop, str) else (stop or None),
        seed=take(fields, "seed", int, "an integer"),
        n=choices or 1,
        presence_penalty=reading.number(fields, "presence_penalty", -2.0, 2.0),
        frequency_penalty=reading.number(fields, "frequency_penalty", -2.0, 2.0),
    )
    kept = {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}
    request.extra = kept
    return request


def _prompt(raw: Raw) -> Raw:
    """One prompt, taken out of the list it may have come in."""
    sent = bytes(raw)
    if sent == b"null":
        raise BadRequest(f"prompt: missing; expected {PROMPT}", param="prompt")
    if sent[:1] == b"[":
        items = reading.read(raw, list[Raw], "prompt")
        if items and bytes(items[0])[:1] in (b'"', b"["):
            if len(items) > 1:
                raise reading.refused(
                    "prompt", f"a list of {len(items)} prompts", "send each by itself"
                )
            sent = bytes(items[0])
    if sent[:1] == b'"':
        reading.read(sent, str, "prompt")
    elif sent[:1] == b"[":
        reading.read(sent, list[int], "prompt")
    else:
        raise wrong("prompt", sent, PROMPT)
    return Raw(sent)


class CompletionsRenderer(Struct, frozen=True):
    """Writes answers to one request, in both forms."""

    model: str
    now: Callable[[], float]
    include_usage: bool
    logprobs: bool

    def head(self, call_id: str) -> Object:
        return {
            "id": f"cmpl-{call_id}",
            "object": "text_completion",
            "created": int(self.now()),
            "model": self.model,
        }

    def reply(self, answer: Answer) -> bytes:
        choices = [self.choice(*item) for item in enumerate(answer.choices)]
        body = {**self.head(answer.call_id), "choices": choices}
        if answer.usage is not None:
            body["usage"] = usage_body(answer.usage)
        return msgspec.json.encode(body)

    def stream(self, call_id: str) -> CompletionsStream:
        return CompletionsStream(self, call_id)

    def choice(self, index: int, choice: AnswerChoice) -> Object:
        return {
            "index": index,
            "text": choice.message.content or "",
            "finish_reason": "stop"
            if choice.finish_reason == "tool_calls"
            else choice.finish_reason,
            "logprobs": _logprobs(choice) if self.logprobs else None,
        }


class CompletionsStream:
    """One streamed reply: a chunk per choice."""

    def __init__(self, renderer: CompletionsRenderer, call_id: str) -> None:
        self._renderer = renderer
        self._head = renderer.head(call_id)
        self._said = Spoken()

    def keepalive(self) -> bytes:
        return self._chunk([{"index": 0, "text": "", "finish_reason": None, "logprobs": None}])

    def delta(self, delta: Delta) -> bytes:
        """Its text; this dialect has no place for the rest."""
        if not delta.content:
            return b""
        self._said.add(delta)
        choice = {"index": 0, "text": delta.content, "finish_reason": None, "logprobs": None}
        return self._chunk([choice])

    def answer(self, answer: Answer) -> Iterator[bytes]:
        for index, whole in enumerate(answer.choices):
            said = self._said if index == 0 else Spoken()
            text = AssistantMessage(content=said.rest(whole.message).content)
            choice = replace(whole, message=text)
            yield self._chunk([self._renderer.choice(index, choice)])
        if self._renderer.include_usage and answer.usage is not None:
            yield self._chunk([], usage=usage_body(answer.usage))
        yield sse.DONE

    def error(self, exc: RockError) -> bytes:
        return sse.encode(error_body(exc))

    def _chunk(self, choices: list[Object], **more: object) -> bytes:
        return sse.encode(msgspec.json.encode({**self._head, "choices": choices, **more}))


def _logprobs(choice: AnswerChoice) -> Object | None:
    """Token texts are unknown here, so each token is named by its id, as inference engines do."""
    if (ids := choice.token_ids) is None or (values := choice.logprobs) is None:
        return None
    return {
        "tokens": [f"token_id:{token}" for token in ids],
        "token_logprobs": values,
        "top_logprobs": None,
        "text_offset": None,
    }
