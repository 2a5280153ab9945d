"""Policies that say their answer span by span.

    async def policy(lease: Lease, voice: Voice) -> Completion:
        async for token in engine.generate(...):
            await voice.say(token.text, token_ids=[token.id], logprobs=[token.logprob])
        return Completion(...)                      # the whole answer, what was said included

Run it with `worker.serve_streaming`. `say` returns once the span is on the service's disk; whoever
samples faster than that should say several tokens at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from rock.errors import error_for
from rock.modelservice.wire import Completion, Lease, PolicyState
from rock.modelservice.wire.partial import Partial, PartialReply, ToolCallDelta


class SpanDesk(Protocol):
    """Where spans go: a `TrainerClient`, or the service itself."""

    async def partial(
        self, partials: Sequence[Partial], *, worker_id: str | None = None
    ) -> PartialReply: ...


class Voice:
    """Says the answer to one lease."""

    def __init__(self, lease: Lease, desk: SpanDesk) -> None:
        self._lease_id = lease.lease_id
        self._desk = desk
        self._next = 0 if lease.prefix is None else lease.prefix.spans
        self.policy_state: PolicyState = "running"
        """As of the last span: `paused` asks to stop sampling soon."""

    async def say(
        self,
        content: str = "",
        *,
        reasoning_content: str = "",
        tool_calls: Sequence[ToolCallDelta] = (),
        token_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
        policy_version: int | None = None,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        """Add a span to what was said. Give ids and log-probabilities with all spans or with none.

        Raises `LeaseLost` once nobody wants the answer from here any more, `BadRequest` for a span
        that cannot be right.
        """
        partial = Partial(
            lease_id=self._lease_id,
            index=self._next,
            content=content,
            reasoning_content=reasoning_content,
            tool_calls=list(tool_calls) or None,
            token_ids=None if token_ids is None else list(token_ids),
            logprobs=None if logprobs is None else list(logprobs),
            policy_version=policy_version,
            prompt_token_ids=None if prompt_token_ids is None else list(prompt_token_ids),
        )
        reply = await self._desk.partial([partial])
        self.policy_state = reply.policy_state
        error = reply.results[0].error
        if error is not None:
            raise error_for(error.code, error.message)
        self._next += 1


StreamingPolicy: TypeAlias = Callable[[Lease, Voice], Awaitable[Completion]]
"""Says what it samples, and returns the whole. Raising fails the call."""


def one_by_one(
    policy: StreamingPolicy, desk: SpanDesk
) -> Callable[[list[Lease]], Awaitable[list[Completion]]]:
    """A streaming policy as one that the worker loop takes."""

    async def answer(leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(policy(lease, Voice(lease, desk)) for lease in leases)))

    return answer
