"""The clients without asyncio: the same methods, each waiting for its answer.

    with SyncTrainerClient(url, key) as trainer:
        reply = trainer.claim("worker-1", max_leases=8)

A private thread runs an event loop for each client; any thread may call. The methods are the
asynchronous ones, not copies of them: same arguments, same results, same errors.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from rock.errors import ServiceUnavailable
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.client.control import ControlClient

CLOSED = "the client is closed; use it inside `with`"

C = TypeVar("C", bound=ControlClient)
P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for as long as the `with` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rock", daemon=True)
        self._lock = threading.Lock()
        self._ending = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; an interrupt of the waiting thread cancels it. Raises `ServiceUnavailable`
        if another thread ends the block meanwhile."""
        with self._lock:  # what is begun under it is ended by `__exit__`, so nobody waits for ever
            if self._ending:
                work.close()
                raise ServiceUnavailable(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as exc:
            raise ServiceUnavailable(CLOSED) from exc
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._ending = True
        asyncio.run_coroutine_threadsafe(_end_the_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Blocking(Generic[C]):
    """Owns the thread and one asynchronous client in it."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: LoopThread | None = None

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise ServiceUnavailable(CLOSED)
        return self._thread.run(work)

    @property
    def client(self) -> C:
        return self._client

    def __enter__(self) -> Self:
        self._thread = LoopThread().__enter__()
        try:
            self.wait(self._client.__aenter__())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        thread = self._thread
        if thread is None:
            return
        try:
            self.wait(self._client.close())
        finally:
            self._thread = None
            thread.__exit__()


class Waiting(Generic[C, P, T]):
    """Turns an asynchronous method of the client into a blocking one of its twin."""

    def __init__(self, method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, owner: Blocking[C], kind: type[Blocking[C]]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return owner.wait(self._method(owner.client, *args, **kwargs))

        return call


class SyncTrainerClient(Blocking[TrainerClient]):
    """`TrainerClient`, blocking."""

    def __init__(self, url: str, key: str, *, retry_seconds: float = 30.0) -> None:
        super().__init__(TrainerClient(url, key, retry_seconds=retry_seconds))

    claim = Waiting(TrainerClient.claim)
    leases = Waiting(TrainerClient.leases)
    complete = Waiting(TrainerClient.complete)
    partial = Waiting(TrainerClient.partial)
    cancelled = Waiting(TrainerClient.cancelled)
    renew = Waiting(TrainerClient.renew)
    release = Waiting(TrainerClient.release)
    fail = Waiting(TrainerClient.fail)
    policy = Waiting(TrainerClient.policy)
    stats = Waiting(TrainerClient.stats)
    claim_rollouts = Waiting(TrainerClient.claim_rollouts)
    ack_rollouts = Waiting(TrainerClient.ack_rollouts)
    renew_rollouts = Waiting(TrainerClient.renew_rollouts)
    release_rollouts = Waiting(TrainerClient.release_rollouts)


class SyncAdminClient(Blocking[AdminClient]):
    """`AdminClient`, blocking."""

    def __init__(self, url: str, key: str, *, retry_seconds: float = 30.0) -> None:
        super().__init__(AdminClient(url, key, retry_seconds=retry_seconds))

    create_session = Waiting(AdminClient.create_session)
    close_session = Waiting(AdminClient.close_session)
    session = Waiting(AdminClient.session)
    trajectory = Waiting(AdminClient.trajectory)
    interceptors = Waiting(AdminClient.interceptors)
    set_interceptor = Waiting(AdminClient.set_interceptor)
    remove_interceptor = Waiting(AdminClient.remove_interceptor)
    publish_group = Waiting(AdminClient.publish_group)
    group_status = Waiting(AdminClient.group_status)
    pulse = Waiting(AdminClient.pulse)
    health = Waiting(AdminClient.health)
