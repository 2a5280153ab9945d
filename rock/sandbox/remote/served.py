"""The sandboxes that a server answers for: those it makes for clients, or those of a harness.

A sandbox's name is the id that it had when the server first knew it; a reset that makes another box changes
the id and not the name.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from rock.errors import NotFound, NotSupported
from rock.sandbox.base import Provider
from rock.sandbox.box.channel_sandbox import ChannelSandbox


@dataclass
class Served:
    """One sandbox and its client's lease; 0 s is none."""

    sandbox: ChannelSandbox
    lease_seconds: float = 0.0
    seen: float = field(default_factory=time.monotonic)
    sockets: set[web.WebSocketResponse] = field(default_factory=set[web.WebSocketResponse])
    """The channels of its clients."""

    def expired(self, now: float) -> bool:
        return (
            bool(self.lease_seconds) and not self.sockets and now - self.seen > self.lease_seconds
        )


class Book(Protocol):
    """Who is served."""

    def check_may_create(self) -> None:
        """Raises `NotSupported` where clients make no sandboxes."""

    def add(self, served: Served) -> str: ...
    def find(self, name: str) -> Served | None: ...
    def forget(self, name: str) -> Served | None: ...
    def __iter__(self) -> Iterator[tuple[str, Served]]: ...


class OwnBook:
    """What clients have asked for."""

    def __init__(self) -> None:
        self._served: dict[str, Served] = {}

    def check_may_create(self) -> None:
        """They may."""

    def add(self, served: Served) -> str:
        self._served[served.sandbox.id] = served
        return served.sandbox.id

    def find(self, name: str) -> Served | None:
        return self._served.get(name)

    def forget(self, name: str) -> Served | None:
        return self._served.pop(name, None)

    def __iter__(self) -> Iterator[tuple[str, Served]]:
        return iter(list(self._served.items()))


class HouseBook:
    """The sandboxes of a harness in this process, which makes and ends them as it likes."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._served: dict[str, Served] = {}

    def check_may_create(self) -> None:
        raise NotSupported(
            "create: a harness makes its own sandboxes only; `rock sandbox serve` makes them for others"
        )

    def add(self, served: Served) -> str:
        raise NotSupported("a harness makes its own sandboxes only")

    def find(self, name: str) -> Served | None:
        self._look()
        return self._served.get(name)

    def forget(self, name: str) -> Served | None:
        self._look()
        return self._served.pop(name, None)

    def __iter__(self) -> Iterator[tuple[str, Served]]:
        self._look()
        return iter(list(self._served.items()))

    def _look(self) -> None:
        present = {id(one): one for one in self._provider.sandboxes()}
        known = {id(served.sandbox): name for name, served in self._served.items()}
        for gone in known.keys() - present.keys():
            del self._served[known[gone]]
        for key, sandbox in present.items():
            if key not in known and isinstance(sandbox, ChannelSandbox):
                self._served[sandbox.id] = Served(sandbox)


def get(book: Book, name: str) -> Served:
    """Raises `NotFound`."""
    served = book.find(name)
    if served is None:
        raise NotFound(f"there is no sandbox {name}")
    return served
