"""Hosted models through litellm (`rock[litellm]`): offline collection and evaluation.

Keys come from the environment, as litellm reads them (`OPENAI_API_KEY`, `ANTHROPIC_API_KEY`, …).
Nothing is trainable: hosted models give no token ids, and the answers are recorded as such.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any, Self

from rock.errors import ConfigError
from rock.modelservice.policies.answers import completion_of
from rock.modelservice.policies.asking import arguments_of, extras_of
from rock.modelservice.policies.hosted import Retries
from rock.modelservice.wire import Completion, Lease

PASSED_ON = frozenset({"logit_bias", "logprobs", "top_logprobs", "user", "verbosity"})
"""Extra fields that providers know; others, such as an engine's own, would be refused."""


class LitellmPolicy:
    """Answers leases with `litellm.acompletion`. Use as `async with`, which closes connections.

    Making one imports litellm, which takes seconds.
    """

    def __init__(
        self,
        model: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        timeout_seconds: float = 600.0,
        retries: Retries | None = None,
    ) -> None:
        """Raises ConfigError if litellm is not installed."""
        self._litellm = _load()
        self._model = model
        self._retries = retries or Retries()
        self._fixed: dict[str, Any] = {
            "model": model,
            "api_base": api_base,
            "api_key": api_key,
            "timeout": timeout_seconds,
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the connections; litellm keeps them for the whole process, so this ends all."""
        await self._litellm.close_litellm_async_clients()
        self._litellm.in_memory_llm_clients_cache.flush_cache()

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self._answer(lease) for lease in leases)))

    async def _answer(self, lease: Lease) -> Completion:
        extras = extras_of(lease.request)
        passed = {name: extras[name] for name in PASSED_ON & extras.keys()}
        arguments = {**passed, **arguments_of(lease.request), **self._fixed}

        async def ask() -> Any:
            return await self._litellm.acompletion(**arguments)

        response = await self._retries.run(ask, target=f"litellm {self._model}")
        return completion_of(lease, response.model_dump(), cost_usd=self._cost(response))

    def _cost(self, response: Any) -> float | None:
        """What the answer cost, null where litellm has no price for the model."""
        try:
            return float(
                self._litellm.completion_cost(completion_response=response, model=self._model)
            )
        except Exception:  # noqa: BLE001 - litellm raises a bare Exception for an unknown price
            return None


def _load() -> Any:
    try:
        litellm: Any = importlib.import_module("litellm")
    except ImportError as exc:
        raise ConfigError(
            "backend litellm: the package is not installed; pip install 'rock-rollout[litellm]'"
        ) from exc
    litellm.suppress_debug_info = True
    litellm.disable_aiohttp_transport = True
    return litellm
