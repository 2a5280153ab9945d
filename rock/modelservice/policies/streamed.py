"""Saying an answer while its model still streams it.

Chunks are read as fast as they come and said as fast as the service can put them on its disk: what
comes meanwhile goes into the next span.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, cast, runtime_checkable

from rock.modelservice.policies.answers import Gathered, Span
from rock.modelservice.wire import Completion, Lease
from rock.modelservice.wire.partial import ToolCallDelta


class Voice(Protocol):
    """Says the answer to one lease (`rock.modelservice.client.speaking.Voice`)."""

    async def say(
        self,
        content: str = "",
        *,
        reasoning_content: str = "",
        tool_calls: Sequence[ToolCallDelta] = (),
        token_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None: ...


@runtime_checkable
class Speaker(Protocol):
    """A policy that can say its answer as it comes."""

    async def speak(self, lease: Lease, voice: Voice) -> Completion: ...


async def entered(stack: AsyncExitStack, policy: object) -> None:
    """Enter a policy that is an async context manager; `stack` leaves it."""
    if isinstance(policy, AbstractAsyncContextManager):
        await stack.enter_async_context(cast("AbstractAsyncContextManager[object]", policy))


async def relayed(
    chunks: AsyncIterator[Any], gathered: Gathered, voice: Voice, *, with_tokens: bool
) -> None:
    """Say all of `chunks`. `with_tokens` is for streams that give ids and log-probabilities.

    Raises what reading raises, after what came before it was said.
    """
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for chunk in chunks:
                gathered.add(chunk)
                news.set()
        finally:
            news.set()

    reading = asyncio.ensure_future(read())
    held, said_prompt = Span(), False
    try:
        while not reading.done():
            await news.wait()
            news.clear()
            held = _joined(held, gathered.take())
            if not held.shows or (with_tokens and not held.aligned):
                continue
            said, held = held, Span()
            await voice.say(
                said.content,
                reasoning_content=said.reasoning,
                tool_calls=said.calls,
                token_ids=said.ids if with_tokens else None,
                logprobs=said.logprobs if with_tokens else None,
                prompt_token_ids=None if said_prompt else gathered.prompt_ids,
            )
            said_prompt = gathered.prompt_ids is not None
        await reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _joined(first: Span, then: Span) -> Span:
    first.content += then.content
    first.reasoning += then.reasoning
    first.calls += then.calls
    first.ids += then.ids
    first.logprobs += then.logprobs
    return first
