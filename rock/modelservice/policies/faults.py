"""Faults on purpose, around any policy: to see what an agent or a trainer makes of a bad day.

    await serve(FaultyPolicy(policy, [FaultRule("latency", seconds=2, every=3)]), url=url, key=key)

Which calls are hit is decided by counting, and by a seeded random number per count: the same calls in
the same order meet the same faults. The first rule that hits a call has it.

    latency   the answer comes `seconds` later
    drop      no answer comes; the agent's patience or the call's deadline ends it
    429 500   the agent gets that status
    cut       part of the answer is said, then the backend is gone: an error event in a stream, else 502
    abort     part of the answer is said, then the worker gives up: the call is handed out again
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal, Self

from rock.errors import ConfigError, ModelServiceError, QueueFull, UpstreamError, WorkAborted
from rock.modelservice.policies.streamed import Speaker, Voice, entered
from rock.modelservice.wire import Completion, Lease
from rock.modelservice.wire.partial import ToolCallDelta

Fault = Literal["latency", "drop", "429", "500", "cut", "abort"]
Answers = Callable[[list[Lease]], Awaitable[list[Completion]]]


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One kind of fault and whom it hits: every `every`-th matching call, or each with `probability`."""

    do: Fault
    probability: float | None = None
    """0 to 1."""
    every: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sessions that have all of these; none is every session."""
    at_most: int | None = None
    """How often, before the rule is used up."""
    seconds: float = 1.0
    """Of `latency`."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if (self.probability is None) == (self.every is None):
            raise ConfigError(f"fault {self.do}: expected one of probability and every")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ConfigError(f"fault {self.do}: probability: expected 0 to 1: {self.probability}")
        if self.every is not None and self.every < 1:
            raise ConfigError(f"fault {self.do}: every: expected at least 1: {self.every}")
        if self.seconds < 0:
            raise ConfigError(f"fault {self.do}: seconds: expected at least 0: {self.seconds}")

    def matches(self, lease: Lease) -> bool:
        return all(lease.labels.get(name) == value for name, value in self.labels.items())


class FaultyPolicy:
    """`policy` with faults. Takes leases like any policy; where `policy` can stream, so can this."""

    def __init__(self, policy: Answers, rules: Sequence[FaultRule], *, seed: int = 0) -> None:
        self._policy = policy
        self._rules = rules
        self._seed = seed
        self._matched = [0] * len(rules)
        self.hits: list[int] = [0] * len(rules)
        """How often each rule has hit."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await entered(self._stack, self._policy)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self.speak(lease, None) for lease in leases)))

    async def speak(self, lease: Lease, voice: Voice | None) -> Completion:
        """Without a voice nothing is said before the end, and `cut` and `abort` hit whole answers."""
        rule = self._hit(lease)
        if rule is None or rule.do == "latency":
            if rule is not None:
                await asyncio.sleep(rule.seconds)
            return await self._answer(lease, voice)
        if rule.do == "drop":
            await asyncio.get_running_loop().create_future()  # until somebody takes the lease away
        if rule.do == "429":
            raise QueueFull("fault injection: too many requests")
        if rule.do == "500":
            raise ModelServiceError("fault injection: internal error")
        await self._say_half(lease, voice)
        if rule.do == "abort":
            raise WorkAborted("fault injection: the worker gave up")
        raise UpstreamError("fault injection: the backend was cut off")

    def _hit(self, lease: Lease) -> FaultRule | None:
        hit: FaultRule | None = None
        for number, rule in enumerate(self._rules):
            if not rule.matches(lease):
                continue
            self._matched[number] += 1
            if hit is None and self._due(number, rule):
                self.hits[number] += 1
                hit = rule
        return hit

    def _due(self, number: int, rule: FaultRule) -> bool:
        if rule.at_most is not None and self.hits[number] >= rule.at_most:
            return False
        count = self._matched[number]
        if rule.every is not None:
            return count % rule.every == 0
        return random.Random(f"{self._seed} {number} {count}").random() < (rule.probability or 0)

    async def _answer(self, lease: Lease, voice: Voice | None) -> Completion:
        if voice is not None and isinstance(self._policy, Speaker):
            return await self._policy.speak(lease, voice)
        [completion] = await self._policy([lease])
        return completion

    async def _say_half(self, lease: Lease, voice: Voice | None) -> None:
        """The first half of what the policy answers, to an agent that reads along."""
        completion = await self._answer(lease, None)
        if voice is None or not lease.streams or lease.request.n != 1 or lease.prefix is not None:
            return
        choice = completion.choices[0]
        message, ids = choice.message, choice.token_ids
        content, reasoning = message.content or "", message.reasoning_content or ""
        calls = [
            ToolCallDelta(0, _half(call.function.arguments), call.function.name, call.id)
            for call in (message.tool_calls or [])[:1]
            if not content
        ]
        count = None if ids is None or choice.logprobs is None else max(1, len(ids) // 2)
        await voice.say(
            _half(content),
            reasoning_content=reasoning,
            tool_calls=calls,
            token_ids=None if ids is None or count is None else ids[:count],
            logprobs=None if choice.logprobs is None or count is None else choice.logprobs[:count],
            prompt_token_ids=completion.prompt_token_ids,
        )


def _half(text: str) -> str:
    return text[: len(text) // 2] or text
