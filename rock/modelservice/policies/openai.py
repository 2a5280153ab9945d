"""Any OpenAI-compatible server through the openai package: a hosted model or an inference engine.

With `ask_tokens` it also asks for token ids and log-probabilities, in the form that vLLM takes;
where the engine gives them the answers are trainable.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import openai

from rock.errors import ConfigError
from rock.modelservice.policies.hosted import Retries, arguments_of, completion_of, extras_of
from rock.modelservice.wire import Completion, Lease


class OpenAIPolicy:
    """Answers leases with one chat completion each. Use as `async with`, which closes connections."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        ask_tokens: bool = False,
        timeout_seconds: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        """`base_url` and `api_key` default to OPENAI_BASE_URL and OPENAI_API_KEY."""
        self._model = model
        self._retries = retries or Retries()
        self._tokens = {"return_token_ids": True, "logprobs": True} if ask_tokens else {}
        try:
            self._client = openai.AsyncOpenAI(
                base_url=base_url, api_key=api_key, timeout=timeout_seconds, max_retries=0
            )
        except openai.OpenAIError as exc:
            raise ConfigError(f"backend openai: {exc}") from exc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self._answer(lease) for lease in leases)))

    async def _answer(self, lease: Lease) -> Completion:
        body: dict[str, Any] = {
            **extras_of(lease.request),
            **arguments_of(lease.request),
            **self._tokens,
        }
        messages = body.pop("messages")

        async def ask() -> Any:
            return await self._client.chat.completions.create(
                model=self._model, messages=messages, extra_body=body
            )

        response = await self._retries.run(ask, target=f"{self._client.base_url} {self._model}")
        return completion_of(lease, response.model_dump(), cost_usd=None)
