"""Hooks that the interceptors' tests allow a service to run."""

from __future__ import annotations

import threading
from typing import Any

from rock.modelservice.interceptors.hooks import Block, HookEvent

RELEASE = threading.Event()
"""Lets hooks that hang go, at the end of a test."""


def shout(event: HookEvent) -> dict[str, Any]:
    """Append one message to the request, which says what the hook was told."""
    said = f"{event.labels.get('team')} {event.dialect} {event.turn}"
    event.request["messages"].append({"role": "user", "content": said})
    return event.request


def redact(event: HookEvent) -> list[dict[str, Any]]:
    assert event.choices is not None
    for choice in event.choices:
        choice["message"]["content"] = choice["message"]["content"].upper()
    return event.choices


def look(event: HookEvent) -> None:
    event.request["messages"].clear()


def broken(event: HookEvent) -> None:
    raise KeyError(event.session_id)


def stop(event: HookEvent) -> None:
    raise StopIteration


def hang(event: HookEvent) -> None:
    RELEASE.wait(20)


def refuse(event: HookEvent) -> None:
    raise Block("not today", "context_length_exceeded")


def nonsense(event: HookEvent) -> object:
    return {"model": 3}


def unsendable(event: HookEvent) -> object:
    return {"model": object()}


async def not_plain(event: HookEvent) -> None:
    pass


ALLOWED = ",".join(
    f"tests.modelservice.hooked:{function.__name__}"
    for function in (shout, redact, look, broken, stop, hang, refuse, nonsense, unsendable)
)
