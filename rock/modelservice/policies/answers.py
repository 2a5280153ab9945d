"""What an OpenAI-compatible server replies, as completions: whole, or gathered from a stream.

Usage is what the server counted, or unknown; token ids and log-probabilities are what it gave.
"""

from __future__ import annotations

from typing import Any, get_args

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
_NO_COMPLETION = (KeyError, TypeError, AttributeError, IndexError, ValueError)


def completion_of(lease: Lease, response: Any, *, cost_usd: float | None) -> Completion:
    """A chat completion as the answer to `lease`. Raises UpstreamError if it is none."""
    try:
        return Completion(
            lease_id=lease.lease_id,
            choices=[_choice(choice) for choice in response["choices"]],
            prompt_token_ids=response.get("prompt_token_ids"),
            usage=_usage(response.get("usage"), cost_usd),
        )
    except _NO_COMPLETION as exc:
        raise UpstreamError(f"the model's reply is not a chat completion: {exc!r}") from exc


def text_completion_of(lease: Lease, response: Any) -> Completion:
    """A completion of a plain prompt as the answer to `lease`. Raises UpstreamError if it is none."""
    try:
        choices: list[Object] = response["choices"]
        prompt = response.get("prompt_token_ids") or choices[0].get("prompt_token_ids")
        return Completion(
            lease_id=lease.lease_id,
            choices=[
                Choice(
                    message=AssistantMessage(content=choice["text"]),
                    finish_reason=_finish(choice.get("finish_reason")),
                    token_ids=choice.get("token_ids"),
                    logprobs=_object(choice.get("logprobs")).get("token_logprobs"),
                )
                for choice in choices
            ],
            prompt_token_ids=prompt,
            usage=_usage(response.get("usage"), None),
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
        self._span = Span()

    def add(self, chunk: Any) -> None:
        """Raises UpstreamError for what is no chunk of a chat completion, or an error inside one."""
        try:
            self._add(chunk)
        except _NO_COMPLETION as exc:
            raise UpstreamError(f"the model's stream is no chat completion: {exc!r}") from exc

    def _add(self, chunk: Object) -> None:
        self._usage = _usage(chunk.get("usage"), None) or self._usage
        choices: list[Object] = chunk["choices"]
        self.prompt_ids = self.prompt_ids or chunk.get("prompt_token_ids")
        for choice in choices[:1]:
            self.begun = True
            self.prompt_ids = self.prompt_ids or choice.get("prompt_token_ids")
            delta: Object = choice.get("delta") or {}
            self._add_text(delta)
            for call in delta.get("tool_calls") or ():
                self._add_call(call)
            self._add_tokens(choice)
            if choice.get("finish_reason") is not None:
                self.finished = _finish(choice["finish_reason"])

    def _add_text(self, delta: Object) -> None:
        content: str = delta.get("content") or ""
        reasoning: str = delta.get("reasoning_content") or delta.get("reasoning") or ""
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._span.content += content
        self._span.reasoning += reasoning

    def _add_call(self, sent: Object) -> None:
        index: int = sent.get("index", len(self._calls))
        function: Object = sent.get("function") or {}
        arguments: str = function.get("arguments") or ""
        if index == len(self._calls):
            name: str = function["name"]
            self._calls.append(ToolCall(ToolFunction(name, arguments), sent.get("id")))
            self._span.calls.append(ToolCallDelta(index, arguments, name, sent.get("id")))
        elif index == len(self._calls) - 1:
            self._calls[index].function.arguments += arguments
            self._span.calls.append(ToolCallDelta(index, arguments))
        else:
            raise ValueError(f"more of tool call {index} after call {len(self._calls) - 1}")

    def _add_tokens(self, choice: Object) -> None:
        ids: list[int] | None = choice.get("token_ids")
        logprobs = _logprobs(choice.get("logprobs"))
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
        return Completion(
            lease.lease_id, [choice], prompt_token_ids=self.prompt_ids, usage=self._usage
        )


def _choice(choice: Object) -> Choice:
    message: Object = choice["message"]
    calls = [
        ToolCall(
            id=call.get("id"),
            function=ToolFunction(
                name=call["function"]["name"], arguments=call["function"]["arguments"] or ""
            ),
        )
        for call in message.get("tool_calls") or ()
    ]
    content: Any = message.get("content")
    return Choice(
        message=AssistantMessage(
            content=content if isinstance(content, str) else None,
            reasoning_content=message.get("reasoning_content") or message.get("reasoning"),
            tool_calls=calls or None,
        ),
        finish_reason=_finish(choice.get("finish_reason")),
        token_ids=choice.get("token_ids"),
        logprobs=_logprobs(choice.get("logprobs")),
    )


def _object(given: Any) -> Object:
    return given or {}


def _finish(given: Any) -> FinishReason:
    known: dict[str, FinishReason] = {name: name for name in get_args(FinishReason)}
    return known.get(given, "stop")


def _logprobs(given: Object | None) -> list[float] | None:
    content: list[Object] | None = (given or {}).get("content")
    return None if content is None else [item["logprob"] for item in content]


def _usage(given: Object | None, cost_usd: float | None) -> Usage | None:
    """As counted by the provider, or unknown: never filled in."""
    if not given or given.get("prompt_tokens") is None or given.get("completion_tokens") is None:
        return None
    details: Object = given.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=given["prompt_tokens"],
        completion_tokens=given["completion_tokens"],
        cached_tokens=details.get("cached_tokens"),
        cost_usd=cost_usd,
    )
