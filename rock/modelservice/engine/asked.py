"""What was asked, as the engine keeps it: places in the graph and parameters as JSON."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from msgspec import Struct

from rock.modelservice.graph.places import Located

Identity = tuple[str, int, int | None, bytes]
"""Dialect, messages, tools and parameters: equal for two requests that ask the same."""


class Original(Struct, frozen=True):
    """A request as it was asked: its place in the graph, its tools, its parameters as JSON."""

    leaf: int
    tools: int | None
    request: bytes


class Asked(Struct, frozen=True):
    """A request looked up in its session, before anything is changed."""

    located: Located
    parameters: bytes
    """The canonical request as JSON, without messages, tools and transport fields."""
    identity: Identity | None
    """None if nobody asked the same before."""


class Head(Struct, frozen=True):
    """What a claim and an answer need to know of the parameters."""

    model: str
    n: int = 1


_heads = msgspec.json.Decoder(Head)


@lru_cache(maxsize=256)
def head_of(request: bytes) -> Head:
    """Of a request as JSON."""
    return _heads.decode(request)  # agents ask turn after turn with the same parameters
