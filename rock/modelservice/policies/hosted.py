"""What policies on a hosted model share: which failures pass, how long to try, what they mean.

Errors are recognised by the classes of the openai package, which litellm's are built on. A failure
before the first byte that may pass (429, 5xx, no connection) is tried again, waiting what
`Retry-After` says within a bound; a refused key is not, and raises `UpstreamUnauthorized`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import openai
import tenacity

from rock.errors import (
    BadRequest,
    ContextLengthExceeded,
    RockError,
    UpstreamError,
    UpstreamUnauthorized,
)

T = TypeVar("T")

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
    if _lacks_key(exc):
        return False
    if isinstance(exc, openai.APIStatusError):
        return exc.status_code in (408, 409, 429) or exc.status_code >= 500
    return isinstance(exc, openai.APIConnectionError)


def _lacks_key(exc: BaseException) -> bool:
    """The openai package found no key to send; litellm makes a failure of the server's of that."""
    return isinstance(exc, openai.OpenAIError) and "Missing credentials" in str(exc)


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
    if _lacks_key(exc):
        return UpstreamUnauthorized(f"there is no key for the model's provider: {text}")
    if isinstance(exc, openai.AuthenticationError | openai.PermissionDeniedError):
        return UpstreamUnauthorized(f"the model's provider refused the key: {text}")
    if isinstance(exc, openai.BadRequestError | openai.UnprocessableEntityError):
        if "context_length_exceeded" in text or "maximum context length" in text:
            return ContextLengthExceeded(text)
        return BadRequest(text)
    return UpstreamError(text)
