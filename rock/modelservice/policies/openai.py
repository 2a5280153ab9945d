"""Any OpenAI-compatible server through the openai package: a hosted model or an inference engine.

With `tokens="required"` it also asks for token ids and log-probabilities, in the form that vLLM takes,
and tries at the start whether the server gives them: one that strips them is refused with the reason.
Requests go out as the agent wrote them (`asking`); what an agent reads as it comes is streamed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Literal, Self

import msgspec
import openai

from rock.errors import ConfigError, RockError
from rock.modelservice.policies.answers import (
    Gathered,
    completion_of,
    reason_against_count,
    reason_against_tokens,
    text_completion_of,
)
from rock.modelservice.policies.asking import chat_body, completions_body, is_prompt
from rock.modelservice.policies.hosted import Retries, translated
from rock.modelservice.policies.streamed import Voice, relayed
from rock.modelservice.wire import CanonicalRequest, Completion, Lease

log = logging.getLogger(__name__)

Tokens = Literal["off", "required"]
CHAT, COMPLETIONS = "/chat/completions", "/completions"
_JSON: Any = {"headers": {"Content-Type": "application/json"}}
_ASK_TOKENS: dict[str, object] = {"return_token_ids": True, "logprobs": True}
_STREAM: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
_PROBE = CanonicalRequest(
    model="", messages=[msgspec.Raw(b'{"role":"user","content":"Hi"}')], max_tokens=1
)


class OpenAIPolicy:
    """Answers leases with one completion each. Use as `async with`, which tries the server's tokens and
    in the end closes connections."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        tokens: Tokens = "off",
        timeout_seconds: float = 600.0,
        probe_seconds: float = 20.0,
        retries: Retries | None = None,
    ) -> None:
        """`base_url` and `api_key` default to OPENAI_BASE_URL and OPENAI_API_KEY; `probe_seconds` bounds
        each of the two questions at the start."""
        self._model = model
        self._retries = retries or Retries()
        self._tokens = tokens == "required"
        self._probe_seconds = probe_seconds
        self._streams = True
        """Whether what the server streams is as good as what it says whole."""
        try:
            self._client = openai.AsyncOpenAI(
                base_url=base_url, api_key=api_key, timeout=timeout_seconds, max_retries=0
            )
        except openai.OpenAIError as exc:
            raise ConfigError(f"backend openai: {exc}") from exc

    async def __aenter__(self) -> Self:
        """Raises ConfigError for a server that does not give the tokens that are required."""
        if self._tokens:
            try:
                await self._probe()
            except BaseException:
                await self._client.close()
                raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self._answer(lease) for lease in leases)))

    async def speak(self, lease: Lease, voice: Voice) -> Completion:
        """Say the answer as it comes, where an agent reads it so and the server can."""
        request = lease.request
        if not lease.streams or not self._streams or request.n != 1 or is_prompt(request):
            return await self._answer(lease)
        gathered = Gathered()
        async with aclosing(await self._opened(lease)) as chunks:
            try:
                await relayed(chunks, gathered, voice, with_tokens=self._tokens)
            except openai.OpenAIError as exc:
                raise translated(exc, self._target) from exc
        return self._counted(gathered.completion(lease))

    def _counted(self, completion: Completion) -> Completion:
        """With the reason why its tokens cannot be trained on, if the server lost some."""
        if self._tokens and completion.untrainable is None:
            completion.untrainable = reason_against_count(completion)
        return completion

    @property
    def _target(self) -> str:
        return f"{self._client.base_url} {self._model}"

    async def _answer(self, lease: Lease) -> Completion:
        if not is_prompt(lease.request):
            more = _ASK_TOKENS if self._tokens else {}
            body = chat_body(lease.request, self._model, more)
            reply = await self._asked(CHAT, body)
            return self._counted(completion_of(lease, reply, cost_usd=None))
        more = {**_ASK_TOKENS, "logprobs": 0} if self._tokens else {}
        body = completions_body(lease.request, self._model, more)
        return self._counted(text_completion_of(lease, await self._asked(COMPLETIONS, body)))

    async def _asked(self, path: str, body: bytes) -> Any:
        async def ask() -> Any:
            return await self._client.post(path, content=body, cast_to=object, options=_JSON)

        return await self._retries.run(ask, target=self._target)

    async def _opened(self, lease: Lease) -> AsyncGenerator[Any, None]:
        """A stream whose first chunk is there: until then a failure is tried again."""
        more = {**_STREAM, **(_ASK_TOKENS if self._tokens else {})}
        body = chat_body(lease.request, self._model, more)

        async def begin() -> tuple[Any, AsyncGenerator[Any, None]]:
            chunks = self._chunks(body)
            try:
                return await anext(chunks, None), chunks
            except BaseException:
                await chunks.aclose()
                raise

        first, rest = await self._retries.run(begin, target=self._target)
        return _rejoined(first, rest)

    async def _chunks(self, body: bytes) -> AsyncGenerator[Any, None]:
        """Raises OpenAIError, whatever the HTTP library below raises while it reads."""
        stream = await self._client.post(
            CHAT,
            content=body,
            cast_to=object,
            options=_JSON,
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        try:
            async for chunk in stream:
                yield chunk
        except openai.OpenAIError:
            raise
        except Exception as exc:
            request = stream.response.request
            raise openai.APIConnectionError(message=f"{exc!r}", request=request) from exc
        finally:
            await stream.close()

    async def _probe(self) -> None:
        lease = Lease("probe", "probe", "probe", 1, 60.0, _PROBE)
        try:
            async with asyncio.timeout(self._probe_seconds):
                answer = await self._answer(lease)
                reason = reason_against_tokens(answer) or answer.untrainable
        except TimeoutError:
            reason = f"it gave no answer within {self._probe_seconds:g} s"
        except RockError as exc:
            reason = exc.message
        if reason is not None:
            raise ConfigError(f"backend openai: {self._target}: tokens are required, but {reason}")
        try:
            async with (
                asyncio.timeout(self._probe_seconds),
                aclosing(await self._opened(lease)) as chunks,
            ):
                answer = self._counted(await _read(chunks, lease))
                reason = reason_against_tokens(answer) or answer.untrainable
        except (openai.OpenAIError, RockError, TimeoutError) as exc:
            reason = str(exc)
        if reason is not None:
            self._streams = False
            log.warning("%s answers whole only: when it streams, %s", self._target, reason)


async def _rejoined(first: Any, rest: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(rest):
        if first is not None:
            yield first
            async for chunk in rest:
                yield chunk


async def _read(chunks: AsyncIterator[Any], lease: Lease) -> Completion:
    gathered = Gathered()
    async for chunk in chunks:
        gathered.add(chunk)
    return gathered.completion(lease)
