"""What an OpenAI-compatible server replies, as completions: whole, or gathered from a stream.

Usage is what the server counted, or unknown; token ids and log-probabilities are what it gave.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from rock.errors import UpstreamError
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    FinishReason,
    Lease,
    ToolCall,
    ToolFunction,
    Usage,
)
from rock.modelservice.wire.partial import ToolCallDelta

Object = dict[str, Any]
T = TypeVar("T")
_NO_COMPLETION = (
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    ValueError,
    msgspec.ValidationError,
)
MAX_COUNT = 2**53
"""More tokens than this nobody counted; also the last integer that every JSON reader knows."""


class _Part(Struct):
    type: str
    text: str


class _Function(Struct):
    name: str | None = None
    arguments: str | Object | None = None
    """An object from servers that read what the model wrote."""

    @property
    def text(self) -> str:
        given = self.arguments
        return msgspec.json.encode(given).decode() if isinstance(given, dict) else given or ""


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Said(Struct):
    """A message, or a delta of one."""

    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None

    @property
    def text(self) -> str | None:
        given = self.content
        return "".join(part.text for part in given) if isinstance(given, list) else given


class _Logprob(Struct):
    logprob: float


class _Logprobs(Struct):
    content: list[_Logprob] | None = None
    token_logprobs: list[float] | None = None
    """Of a plain completion."""

    @property
    def values(self) -> list[float] | None:
        return None if self.content is None else [item.logprob for item in self.content]


class _Choice(Struct):
    index: int | None = None
    message: _Said | None = None
    delta: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Reply(Struct):
    """A completion or a chunk of one, as far as anything of it is used."""

    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None
    usage: Any = None


def completion_of(lease: Lease, response: Any, *, cost_usd: float | None) -> Completion:
    """A chat completion as the answer to `lease`. Raises UpstreamError if it is none."""
    try:
        reply = msgspec.convert(response, _Reply)
        return Completion(
            lease_id=lease.lease_id,
            choices=[_choice(choice) for choice in reply.choices],
            prompt_token_ids=reply.prompt_token_ids,
            usage=_usage(reply.usage, cost_usd),
        )
    except _NO_COMPLETION as exc:
        raise UpstreamError(f"the model's reply is not a chat completion: {exc!r}") from exc


def text_completion_of(lease: Lease, response: Any) -> Completion:
    """A completion of a plain prompt as the answer to `lease`. Raises UpstreamError if it is none."""
    try:
        reply = msgspec.convert(response, _Reply)
        return Completion(
            lease_id=lease.lease_id,
            choices=[
                Choice(
                    message=AssistantMessage(content=_given("text", choice.text)),
                    finish_reason=_finish(choice.finish_reason),
                    token_ids=choice.token_ids,
                    logprobs=choice.logprobs.token_logprobs if choice.logprobs else None,
                )
                for choice in reply.choices
            ],
            prompt_token_ids=reply.prompt_token_ids or reply.choices[0].prompt_token_ids,
            usage=_usage(reply.usage, None),
        )
    except _NO_COMPLETION as exc:
        raise UpstreamError(f"the model's reply is not a completion: {exc!r}") from exc


def reason_against_tokens(completion: Completion) -> str | None:
    """Why nothing could be learned from an answer; None if it has all its tokens."""
    for choice in completion.choices:
        if not choice.token_ids:
            return "it returns no token_ids: it, or a router before it, ignores return_token_ids"
        if choice.logprobs is None:
            return "it returns no log-probabilities"
        if len(choice.logprobs) != len(choice.token_ids):
            return (
                f"it returns {len(choice.token_ids)} token_ids and {len(choice.logprobs)} "
                "log-probabilities"
            )
    return None if completion.prompt_token_ids else "it returns no prompt_token_ids"


def reason_against_count(completion: Completion) -> str | None:
    """Why the token ids are not all that the server counted; None if they are, or if there are none.

    Parsers of tool calls are known to lose ids on the way: those of what they keep to themselves.
    """
    given = [choice.token_ids for choice in completion.choices if choice.token_ids is not None]
    count = sum(map(len, given))
    if completion.usage is None or not given or count == completion.usage.completion_tokens:
        return None
    return f"the engine counted {completion.usage.completion_tokens} tokens and gave {count} ids"


class Span:
    """What came since the last time somebody asked."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[ToolCallDelta] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    @property
    def shows(self) -> bool:
        """Whether an agent would see anything of it."""
        return bool(self.content or self.reasoning or self.calls)

    @property
    def aligned(self) -> bool:
        """Whether it has a log-probability for every token, and tokens at all."""
        return 0 < len(self.ids) == len(self.logprobs)


class Gathered:
    """A streamed chat completion of one choice, as far as it came."""

    def __init__(self) -> None:
        self.begun = False
        self.finished: FinishReason | None = None
        self.prompt_ids: list[int] | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []
        self._ids: list[int] | None = None
        self._logprobs: list[float] | None = None
        self._usage: Usage | None = None
        self._bare = False
        """Whether something was said without its token ids."""
        self._span = Span()

    def add(self, chunk: Any) -> None:
        """Raises UpstreamError for what is no chunk of a chat completion, or an error inside one."""
        try:
            self._add(chunk)
        except _NO_COMPLETION as exc:
            raise UpstreamError(f"the model's stream is no chat completion: {exc!r}") from exc

    def _add(self, chunk: Any) -> None:
        reply = msgspec.convert(chunk, _Reply)
        self._usage = _usage(reply.usage, None) or self._usage
        self.prompt_ids = self.prompt_ids or reply.prompt_token_ids
        for choice in reply.choices:
            if choice.index:
                continue
            self.begun = True
            self.prompt_ids = self.prompt_ids or choice.prompt_token_ids
            delta = choice.delta or _Said()
            self._add_text(delta)
            for call in delta.tool_calls or ():
                self._add_call(call)
            self._add_tokens(choice)
            shows = delta.text or delta.reasoning_content or delta.reasoning or delta.tool_calls
            self._bare = self._bare or (bool(shows) and choice.token_ids is None)
            if choice.finish_reason is not None:
                self.finished = _finish(choice.finish_reason)

    def _add_text(self, delta: _Said) -> None:
        content = delta.text or ""
        reasoning = delta.reasoning_content or delta.reasoning or ""
        (content + reasoning).encode()  # half a character, alone, is no text
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._span.content += content
        self._span.reasoning += reasoning

    def _add_call(self, sent: _Call) -> None:
        index = len(self._calls) if sent.index is None else sent.index
        function = sent.function or _Function()
        arguments = function.text
        if index == len(self._calls):
            name = _given("name", function.name)
            self._calls.append(ToolCall(ToolFunction(name, arguments), sent.id))
            self._span.calls.append(ToolCallDelta(index, arguments, name, sent.id))
        elif index == len(self._calls) - 1:
            self._calls[index].function.arguments += arguments
            self._span.calls.append(ToolCallDelta(index, arguments))
        else:
            raise ValueError(f"more of tool call {index} after call {len(self._calls) - 1}")

    def _add_tokens(self, choice: _Choice) -> None:
        ids = choice.token_ids
        logprobs = choice.logprobs.values if choice.logprobs else None
        if ids is not None:
            self._ids = [*(self._ids or ()), *ids]
            self._span.ids += ids
        if logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *logprobs]
            self._span.logprobs += logprobs

    def take(self) -> Span:
        """What came since the last `take`."""
        taken, self._span = self._span, Span()
        return taken

    def completion(self, lease: Lease) -> Completion:
        """All of it. Raises UpstreamError for a stream that ended before the answer did."""
        if self.finished is None:
            raise UpstreamError("the model's stream broke off before its answer was finished")
        message = AssistantMessage(
            content="".join(self._content) or None,
            reasoning_content="".join(self._reasoning) or None,
            tool_calls=self._calls or None,
        )
        choice = Choice(message, self.finished, self._ids, self._logprobs)
        completion = Completion(
            lease.lease_id, [choice], prompt_token_ids=self.prompt_ids, usage=self._usage
        )
        if self._bare and self._ids is not None:
            completion.untrainable = "the engine streamed a part without token_ids"
        return completion


def _choice(choice: _Choice) -> Choice:
    message = _given("message", choice.message)
    calls = [
        ToolCall(id=call.id, function=ToolFunction(_given("name", made.name), made.text))
        for call in message.tool_calls or ()
        for made in [call.function or _Function()]
    ]
    return Choice(
        message=AssistantMessage(
            content=message.text,
            reasoning_content=message.reasoning_content or message.reasoning,
            tool_calls=calls or None,
        ),
        finish_reason=_finish(choice.finish_reason),
        token_ids=choice.token_ids,
        logprobs=choice.logprobs.values if choice.logprobs else None,
    )


def _given(name: str, value: T | None) -> T:
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def _finish(given: str | None) -> FinishReason:
    known: dict[str | None, FinishReason] = {name: name for name in get_args(FinishReason)}
    return known.get(given, "stop")


def _usage(given: Any, cost_usd: float | None) -> Usage | None:
    """As counted by the provider, or unknown: never filled in. What cannot be a count is unknown, too:
    an answer is worth more than its bill."""
    prompt, completion = _count(given, "prompt_tokens"), _count(given, "completion_tokens")
    if prompt is None or completion is None:
        return None
    details = cast("Object", given).get("prompt_tokens_details")
    cached = _count(details, "cached_tokens")
    return Usage(
        prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached, cost_usd=cost_usd
    )


def _count(counts: Any, name: str) -> int | None:
    value: Any = cast("Object", counts).get(name) if isinstance(counts, dict) else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value <= MAX_COUNT else None
