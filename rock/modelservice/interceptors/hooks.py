"""Hooks written in Python: plain functions that the service was started with, by name.

    def mask(event: HookEvent) -> dict[str, Any] | None: ...

A hook gets a copy of the request, or of the choices of an answer, as JSON values; it returns the
edited value, or None for no change, or raises `Block`. It runs in a thread of its own pool, bounded
in time: one that hangs costs a thread, never the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rock.errors import BadRequest, ConfigError
from rock.modelservice.interceptors.rules import Blocked

__all__ = ["Block", "Hook", "HookEvent", "Hooks"]

MAX_THREADS = 32
"""Also of hooks that hang: once all do, every further hook fails as too slow."""


class Block(Blocked):
    """Raised by a hook to end the call; `code` is a `wire.interceptors.BlockCode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """What a hook is about. Its values are copies: changing them changes nothing."""

    session_id: str
    labels: dict[str, str]
    dialect: str
    kind: str | None
    turn: int
    """Calls that the session made before."""
    request: dict[str, Any]
    """The canonical request (OpenAI chat), as it is after the interceptors before this one."""
    choices: list[dict[str, Any]] | None
    """The answer's choices (`message`, `finish_reason`); None for a hook on requests."""


Hook: TypeAlias = Callable[[HookEvent], Any]


class Hooks:
    """The functions that may be named, and the threads they run in."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """Imports them. Raises ConfigError for one that cannot be."""
        self._functions = {name: _load(name) for name in allowed}
        self._threads = _Threads()

    @property
    def names(self) -> list[str]:
        return sorted(self._functions)

    def check(self, name: str) -> None:
        """Raises BadRequest for a hook that was not allowed at start."""
        if name not in self._functions:
            known = ", ".join(self.names) or "none"
            raise BadRequest(
                f"hook: {name[:100]!r} is not among those this service was started with ({known}); "
                "see the setting `hooks`",
                param="hook",
            )

    async def run(self, name: str, event: HookEvent, *, timeout_seconds: float) -> Any:
        """What the hook returned. Raises what it raised, and TimeoutError."""
        self.check(name)
        function = self._functions[name]
        async with asyncio.timeout(timeout_seconds):
            return await self._threads.run(lambda: function(event))


def _load(name: str) -> Hook:
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ConfigError(f"hooks: {name!r}: expected MODULE:FUNCTION")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as exc:
        raise ConfigError(f"hooks: {name}: cannot import {module}: {exc}") from exc
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise ConfigError(f"hooks: {name}: {attribute} is no plain function of {module}")
    return found


class _Threads:
    """Daemon threads, started when needed: `concurrent.futures` would wait for a hook that hangs
    when the process ends."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._count = 0
        self._busy = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                if not future.done():
                    result = work()
            except BaseException as exc:  # noqa: BLE001 - whatever a hook raises is its caller's
                error = exc
            with contextlib.suppress(RuntimeError):  # the loop is closed, nobody waits
                loop.call_soon_threadsafe(self._settle, future, result, error)

        self._busy += 1
        if self._busy > self._count and self._count < MAX_THREADS:
            self._count += 1
            threading.Thread(target=self._serve, name="rock-hook", daemon=True).start()
        self._jobs.put(job)
        return await future

    def _settle(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._busy -= 1
        if future.done():
            return
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        elif error is not None:
            future.set_exception(RuntimeError(f"the hook ended with {type(error).__name__}"))
        else:
            future.set_result(result)

    def _serve(self) -> None:
        while True:
            self._jobs.get()()
