"""Work that a cancellation must not cut in half."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which runs to its end even if the caller is cancelled meanwhile.

    The cancellation is raised once `work` has ended. `work` must have a bound of its own.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.cancelled():
                raise
            cancelled = exc
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
