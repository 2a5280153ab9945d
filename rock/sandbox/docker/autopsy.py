"""Why a container does not answer: what its engine shows now, and what it remembers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from rock.errors import SandboxError
from rock.sandbox.command import Death, DeathCause
from rock.sandbox.docker.engine import Engine, Event
from rock.sandbox.spec import SandboxSpec

_BOUND_SECONDS = 10.0
_NOTICE_SECONDS = 2.0
_SIGTERM = ("15", "terminated", "SIGTERM")


async def diagnose(
    engine: Engine, name: str, spec: SandboxSpec, began: float, now: Callable[[], float]
) -> Death:
    """Ask the engine. `began` and `now` are in seconds since 1970. Never raises what the engine does."""
    try:
        async with asyncio.timeout(_BOUND_SECONDS):
            paused = await _paused_in_the_end(engine, name)
            if paused is not None:
                return _of_a_running_one(paused)
            ended = now()
            events = await engine.history(name, since=began, until=ended)
    except (SandboxError, TimeoutError) as exc:
        words = exc.message if isinstance(exc, SandboxError) else "it takes too long"
        return Death(DeathCause.ENGINE_GONE, f"its engine cannot say why: {words}")
    return read(events, lived_seconds=ended - began, lifetime_seconds=spec.lifetime_seconds)


async def _paused_in_the_end(engine: Engine, name: str) -> bool | None:
    """As `Engine.paused`; an engine takes a moment to notice that a container has ended."""
    deadline = time.monotonic() + _NOTICE_SECONDS
    while True:
        paused = await engine.paused(name)
        if paused is not False or time.monotonic() > deadline:
            return paused
        await asyncio.sleep(0.1)


def _of_a_running_one(paused: bool) -> Death:
    if paused:
        return Death(DeathCause.PAUSED, "its container is paused")
    return Death(DeathCause.UNKNOWN, "its container runs, but the helper in it does not answer")


def read(events: Sequence[Event], *, lived_seconds: float, lifetime_seconds: float) -> Death:
    """What a container's last events say of its end. No I/O."""
    signals = [event.attributes.get("signal", "") for event in events if event.action == "kill"]
    codes = [event.attributes.get("exitCode", "?") for event in events if event.action == "die"]
    if not codes:
        return Death(
            DeathCause.GONE,
            "its container is gone and the engine remembers nothing of its end: "
            "it was removed long ago, or the engine was started again",
        )
    if signals:
        what = "stopped" if signals[-1] in _SIGTERM else "killed"
        return Death(
            DeathCause.KILLED, f"somebody {what} its container (signal {signals[-1] or '?'})"
        )
    if codes[-1] == "0" and lived_seconds >= lifetime_seconds:
        return Death(DeathCause.LIFETIME, f"its lifetime of {lifetime_seconds:g} s is over")
    if codes[-1] == "137" and any(event.action == "oom" for event in events):
        return Death(DeathCause.OUT_OF_MEMORY, "the kernel ended it for want of memory")
    return Death(DeathCause.KILLED, f"its first process has ended with code {codes[-1]}")
