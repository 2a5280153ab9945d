"""One client per shard: who has which id, and batches that are split and joined again.

`shards` has the two that are used; here is what they share. Items of a shard that is away have that as
their error, each; only when all shards are away is it an error of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from yarl import URL

from rock.errors import JournalError, ServiceUnavailable
from rock.modelservice import wire
from rock.modelservice.client.control import ControlClient
from rock.modelservice.sharding import shard_of, split

C = TypeVar("C", bound=ControlClient)
T = TypeVar("T")
R = TypeVar("R")

AWAY = (ServiceUnavailable, JournalError)
"""What is said of a shard that must be started again."""


class Shards(Generic[C]):
    """One client per shard. Use as `async with`."""

    def __init__(
        self, urls: str | Sequence[str], connect: Callable[[str], C], *, first: ControlClient
    ) -> None:
        self._urls = [urls] if isinstance(urls, str) else list(urls)
        if not self._urls:
            raise ValueError("urls: expected at least one")
        self._connect = connect
        self._first = first
        self._clients: list[C] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            if len(self._urls) == 1:
                async with self._first:
                    self._urls = _neighbours(self._urls[0], await self._first.shards())
            for url in self._urls:
                client = self._connect(url)
                self._clients.append(await self._stack.enter_async_context(client))
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Idempotent."""
        await self._stack.aclose()
        self._clients = []

    @property
    def urls(self) -> list[str]:
        """Control planes, by shard."""
        return list(self._urls)

    def _of(self, id: str) -> C:
        """The client of an id's shard. Raises `NotFound`."""
        self._check_open()
        return self._clients[shard_of(id, len(self._clients))]

    def _check_open(self) -> None:
        if not self._clients:
            raise ServiceUnavailable("the client is closed; use it inside `async with`")

    async def _each(self, ask: Callable[[C], Awaitable[R]]) -> list[R]:
        """What every shard says, in order. The first error is raised once all have answered."""
        self._check_open()
        results = await asyncio.gather(*map(ask, self._clients), return_exceptions=True)
        return [_or_raise(result) for result in results]

    async def _batch(
        self,
        items: Sequence[T],
        id_of: Callable[[T], str],
        send: Callable[[C, list[T]], Awaitable[Sequence[wire.ItemResult]]],
        *,
        bound_seconds: float | None = None,
    ) -> list[wire.ItemResult]:
        """Send every item to its shard; the results in the items' order. Items of a shard that is away,
        or does not answer within the bound, have that as their error; raised if all are."""
        self._check_open()
        parts = split(items, id_of, len(self._clients))
        answers = await asyncio.gather(
            *(
                _within(
                    bound_seconds,
                    partial(send, self._clients[shard], [items[n] for n in places]),
                )
                for shard, places in parts.items()
            ),
            return_exceptions=True,
        )
        results: dict[int, wire.ItemResult] = {}
        alone = all(isinstance(answer, BaseException) for answer in answers)
        for places, answer in zip(parts.values(), answers, strict=True):
            if isinstance(answer, AWAY) and not alone:
                error = wire.ItemError(answer.status, answer.code, answer.message)
                answer = [wire.ItemResult(id_of(items[place]), error=error) for place in places]
            results.update(zip(places, _or_raise(answer), strict=True))
        return [results[place] for place in range(len(items))]


async def _within(seconds: float | None, ask: Callable[[], Awaitable[R]]) -> R:
    """Raises `ServiceUnavailable` if the answer takes longer. Asks only once it runs: what is cancelled
    before that leaves nothing that was never awaited."""
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except TimeoutError as exc:
        raise ServiceUnavailable(f"the shard did not answer within {seconds:g} s") from exc


def _or_raise(result: R | BaseException) -> R:
    if isinstance(result, BaseException):
        raise result
    return result


def _neighbours(url: str, ports: Sequence[int]) -> list[str]:
    """The control planes of all shards, on the host of the one that is known."""
    if len(ports) < 2:
        return [url]
    return [str(URL(url).with_port(port)).rstrip("/") for port in ports]
