"""A policy on an engine that takes and gives token ids: render, sample, parse, complete.

    renderer = TokenRenderer.load("models/qwen3")
    policy = SamplingPolicy(engine, renderer, "hermes")
    await serve(policy, url=url, key=key)

`engine` is anything with `sample`; `CompletionsEngine` is one for servers whose `/v1/completions`
takes token ids and returns them (vLLM: `return_token_ids`). Ids go from the engine to the journal
and back into the next prompt unchanged; only new messages are tokenised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import openai

from rock.errors import UpstreamError
from rock.modelservice.policies.hosted import Retries
from rock.modelservice.render import TokenRenderer
from rock.modelservice.text import (
    Format,
    TextParser,
    answer_parts,
    finish_reason,
    format_named,
    message_of,
)
from rock.modelservice.wire import CanonicalRequest, Choice, Completion, Lease, VersionSpan


@dataclass(frozen=True, slots=True)
class Sampled:
    """One answer. `ids` include the control token that ended it, if one did."""

    ids: list[int]
    logprobs: list[float]
    truncated: bool = False
    """Sampling stopped at a limit."""
    policy_version: int | None = None
    """The weights that sampled; None takes the version given at claim."""
    version_spans: tuple[VersionSpan, ...] = ()
    """Which weights sampled which of `ids`, if not one version sampled all."""


class Engine(Protocol):
    """Samples from token ids."""

    async def sample(self, ids: Sequence[int], request: CanonicalRequest) -> list[Sampled]:
        """`request.n` answers to the prompt `ids`; the request has temperature, limits and so on.

        May raise any `RockError`: `ContextLengthExceeded` becomes the error that agents understand.
        """
        ...


class SamplingPolicy:
    """Answers leases by an engine. `format` names how the model writes tool calls and reasoning;
    `tokenizer` is the service's name of the tokenizer, if it is to hold answers against it."""

    def __init__(
        self,
        engine: Engine,
        renderer: TokenRenderer,
        format: str | Format,
        *,
        tokenizer: str | None = None,
    ) -> None:
        """Raises `ConfigError` for an unknown format."""
        self._tokenizer = tokenizer
        self._engine = engine
        self._renderer = renderer
        self._format = format_named(format) if isinstance(format, str) else format

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self._answer(lease) for lease in leases)))

    async def _answer(self, lease: Lease) -> Completion:
        prompt = await asyncio.to_thread(self._renderer.prompt, lease)
        sampled = await self._engine.sample(prompt.ids, lease.request)
        opening = self._format.reasoning.opening if self._format.reasoning else None
        thinks = opening is not None and prompt.new_text.rstrip().endswith(opening)
        return Completion(
            lease_id=lease.lease_id,
            choices=[self._choice(lease, answer, in_reasoning=thinks) for answer in sampled],
            prompt_token_ids=prompt.ids,
            prompt_parts=prompt.parts,
            tokenizer=self._tokenizer,
            policy_version=sampled[0].policy_version if sampled else None,
        )

    def _choice(self, lease: Lease, answer: Sampled, *, in_reasoning: bool) -> Choice:
        chat = self._renderer.chat
        parser = TextParser(self._format, tools=lease.request.tools, in_reasoning=in_reasoning)
        events = [*parser.feed(chat.decode(answer.ids)), *parser.finish()]
        message = message_of(events)
        starts = chat.starts(answer.ids)
        return Choice(
            message=message,
            finish_reason=finish_reason(message, truncated=answer.truncated),
            token_ids=answer.ids,
            logprobs=answer.logprobs,
            version_spans=list(answer.version_spans) or None,
            parts=None if starts is None else answer_parts(starts, events),
        )


class CompletionsEngine:
    """An inference server's `/v1/completions` with token ids. Use as `async with`."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        api_key: str = "none",
        timeout_seconds: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        self._model = model
        self._retries = retries or Retries()
        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key=api_key, timeout=timeout_seconds, max_retries=0
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def sample(self, ids: Sequence[int], request: CanonicalRequest) -> list[Sampled]:
        """Raises `UpstreamError` for a server that does not return token ids and log-probabilities."""
        body: dict[str, Any] = {
            name: value
            for name in ("temperature", "top_p", "max_tokens", "stop", "seed")
            if (value := getattr(request, name)) is not None
        }
        body |= {"return_token_ids": True, "skip_special_tokens": False, "logprobs": 0}

        async def ask() -> Any:
            return await self._client.completions.create(
                model=self._model, prompt=list(ids), n=request.n, extra_body=body
            )

        response = await self._retries.run(ask, target=f"{self._client.base_url} {self._model}")
        return [_sampled(choice) for choice in response.model_dump()["choices"]]


def _sampled(choice: dict[str, Any]) -> Sampled:
    given: dict[str, Any] = choice.get("logprobs") or {}
    logprobs = given.get("token_logprobs")
    if choice.get("token_ids") is None or logprobs is None:
        raise UpstreamError(
            "the engine returned no token ids or no log-probabilities; it needs return_token_ids"
        )
    return Sampled(choice["token_ids"], logprobs, choice.get("finish_reason") == "length")
