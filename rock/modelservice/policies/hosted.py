"""What policies on a hosted model share: canonical request in, completion out, retries between.

Errors are recognised by the classes of the openai package, which litellm's are built on. A failure
before the first byte that may pass (429, 5xx, no connection) is tried again, waiting what
`Retry-After` says within a bound; a refused key is not, and raises `UpstreamUnauthorized`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_args

import openai
import tenacity

from rock.errors import (
    BadRequest,
    ContextLengthExceeded,
    RockError,
    UpstreamError,
    UpstreamUnauthorized,
)
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Choice,
    Completion,
    FinishReason,
    Lease,
    ToolCall,
    ToolFunction,
    Usage,
)

T = TypeVar("T")
Object = dict[str, Any]

MAX_WAIT_SECONDS = 60.0
"""A longer Retry-After is cut to this."""


class Retries:
    """How often and how long to try. The defaults give a busy provider about five minutes."""

    def __init__(
        self, *, attempts: int = 8, total_seconds: float = 300.0, first_wait_seconds: float = 0.5
    ) -> None:
        self._stop = tenacity.stop_after_attempt(attempts) | tenacity.stop_after_delay(
            total_seconds
        )
        self._backoff = tenacity.wait_exponential(
            multiplier=first_wait_seconds, max=30.0
        ) + tenacity.wait_random(0, first_wait_seconds)

    async def run(self, work: Callable[[], Awaitable[T]], *, target: str) -> T:
        """`work`'s result. Raises the RockError that its last failure stands for."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=self._wait,
            stop=self._stop,
            reraise=True,
        )
        try:
            return await retrying(work)
        except openai.OpenAIError as exc:
            raise translated(exc, target) from exc

    def _wait(self, state: tenacity.RetryCallState) -> float:
        asked = retry_after_seconds(state.outcome.exception() if state.outcome else None)
        return self._backoff(state) if asked is None else min(asked, MAX_WAIT_SECONDS)


def may_pass(exc: BaseException) -> bool:
    if isinstance(exc, openai.APIStatusError):
        return exc.status_code in (408, 409, 429) or exc.status_code >= 500
    return isinstance(exc, openai.APIConnectionError)


def retry_after_seconds(exc: BaseException | None) -> float | None:
    """What the server asked for, in its plain form of seconds."""
    if not isinstance(exc, openai.APIStatusError):
        return None
    try:
        return max(0.0, float(exc.response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def translated(exc: openai.OpenAIError, target: str) -> RockError:
    text = f"{target}: {exc}"[:2000]
    if isinstance(exc, openai.AuthenticationError | openai.PermissionDeniedError):
        return UpstreamUnauthorized(f"the model's provider refused the key: {text}")
    if isinstance(exc, openai.BadRequestError):
        if "context_length_exceeded" in text or "maximum context length" in text:
            return ContextLengthExceeded(text)
        return BadRequest(text)
    return UpstreamError(text)


def arguments_of(request: CanonicalRequest) -> Object:
    """The request as arguments of a chat completion; what was not given is left out."""
    arguments: Object = {
        "messages": [json.loads(bytes(message)) for message in request.messages],
        "tools": [json.loads(bytes(tool)) for tool in request.tools or ()] or None,
        "tool_choice": _loaded(request.tool_choice),
        "response_format": _loaded(request.response_format),
        "n": request.n if request.n != 1 else None,
    }
    for name in (
        "parallel_tool_calls",
        "temperature",
        "top_p",
        "max_tokens",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "reasoning_effort",
    ):
        arguments[name] = getattr(request, name)
    return {name: value for name, value in arguments.items() if value is not None}


def extras_of(request: CanonicalRequest) -> Object:
    return {name: json.loads(bytes(raw)) for name, raw in request.extra.items()}


def _loaded(raw: Any) -> Any:
    return None if raw is None else json.loads(bytes(raw))


def completion_of(lease: Lease, response: Object, *, cost_usd: float | None) -> Completion:
    """A chat completion as the answer to `lease`. Raises UpstreamError if it is none."""
    try:
        choices = [_choice(choice) for choice in response["choices"]]
        usage = _usage(response.get("usage"), cost_usd)
    except (KeyError, TypeError, AttributeError) as exc:
        raise UpstreamError(f"the model's reply is not a chat completion: {exc!r}") from exc
    return Completion(
        lease_id=lease.lease_id,
        choices=choices,
        prompt_token_ids=response.get("prompt_token_ids"),
        usage=usage,
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
            reasoning_content=message.get("reasoning_content"),
            tool_calls=calls or None,
        ),
        finish_reason=_finish(choice.get("finish_reason")),
        token_ids=choice.get("token_ids"),
        logprobs=_logprobs(choice.get("logprobs")),
    )


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
