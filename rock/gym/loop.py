"""Gymnasium's interface waits; sandboxes are asynchronous. Their loop runs in one thread per process.

Environments of a process share it and their providers. A process that was forked off makes its own: of
a thread, a fork takes nothing along. What is left open ends with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rock.config import read_environment
from rock.errors import ProviderUnavailable
from rock.sandbox.base import Provider
from rock.sandbox.doctor import choose_provider, providers
from rock.sandbox.remote import door

T = TypeVar("T")

CLOSE_SECONDS = 30.0
QUIT_SECONDS = 5.0
_lock = threading.Lock()
_loops: dict[int, Loop] = {}


class Loop:
    """An event loop in a thread of its own, and the providers that live on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._providers: dict[str, asyncio.Task[Provider]] = {}
        self._doors: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rock", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, which has its own bounds. An interrupt cancels it and waits for its end."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                concurrent.futures.wait([future], timeout=CLOSE_SECONDS)
            raise

    async def _make(self, name: str) -> Provider:
        made = await _make(name)
        task = asyncio.ensure_future(_with_a_door(made))
        self._doors.add(task)
        return made

    async def provider(self, name: str) -> Provider:
        """The process's one provider of that name. Raises `ProviderUnavailable`. On the loop only."""
        task = self._providers.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._providers[name] = asyncio.ensure_future(self._make(name))
        return await asyncio.shield(task)

    def quit(self) -> None:
        """At the end of the process: stop everything here, without a word.

        Python lets no thread begin any more, so nothing can be asked of an engine. Nor need it be: the
        kernel ends local sandboxes with this process, and containers end when their lease does.
        """
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(QUIT_SECONDS)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=QUIT_SECONDS)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # seen, and of no more interest


async def _with_a_door(provider: Provider) -> None:
    """Until the loop quits."""
    async with door.opened(provider):
        await asyncio.get_running_loop().create_future()


async def _make(name: str) -> Provider:
    docker_host = read_environment().docker_host
    if name == "auto":
        return await choose_provider(docker_host)
    for candidate in providers(docker_host):
        if candidate.name == name:
            return candidate
        await candidate.close()
    raise ProviderUnavailable(f"provider: there is no provider {name!r}")


def loop() -> Loop:
    """This process's loop, made when it is first asked for."""
    with _lock:
        pid = os.getpid()
        if pid not in _loops:
            _loops.clear()  # a parent's, whose thread is not here
            _loops[pid] = made = Loop()
            atexit.register(_quit_own, made, pid)
        return _loops[pid]


def _quit_own(made: Loop, pid: int) -> None:
    if os.getpid() == pid:
        made.quit()
