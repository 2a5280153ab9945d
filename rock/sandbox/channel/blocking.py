"""Blocking work beside the event loop: in a thread, unless it is over before a thread has begun."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

_INLINE_BYTES = 1024 * 1024
"""Files up to this size are read and written on the event loop: a thread would take longer."""
T = TypeVar("T")


async def in_thread(work: Callable[[], T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """`work` in a thread. A cancelled caller waits for it too: the thread uses its descriptors."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # the other end is gone: nothing keeps the thread
            on_cancel()
        while not task.done():  # however often the caller is cancelled meanwhile
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # retrieved: what the cancellation broke off is no news
        raise


async def read_descriptor(fd: int, size: int, bound: int) -> bytes:
    """At most `bound` bytes. A `size` that the sandbox tells may be less than there is."""
    if size > _INLINE_BYTES:
        return await in_thread(lambda: _read_up_to(fd, bound))
    data = _read_up_to(fd, min(bound, _INLINE_BYTES))
    if len(data) < min(bound, _INLINE_BYTES):
        return data
    return data + await in_thread(lambda: _read_up_to(fd, bound - len(data)))


def _read_up_to(fd: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (data := os.read(fd, min(size, _INLINE_BYTES))):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


async def write_descriptor(fd: int, data: bytes) -> None:
    """All of `data`."""
    if len(data) <= _INLINE_BYTES:
        _write_all(fd, data)
    else:
        await in_thread(lambda: _write_all(fd, data))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
