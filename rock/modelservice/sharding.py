"""Several services as one: which shard an id belongs to, and how their figures add up. No I/O.

`rock serve --shards N` runs N processes, each with its own journal and its own calls. A session is
placed when it is opened; its id begins with its shard's number (`s2-…`), and so do the ids of its
calls and leases, so that any client finds the shard of any id without asking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rock.errors import NotFound, shown
from rock.modelservice.wire import PolicyStatus, Stats

T = TypeVar("T")
_SHARD = re.compile(r"s(\d{1,4})-")


def id_prefix(shard: int | None) -> str:
    """What session ids begin with."""
    return "s" if shard is None else f"s{shard}-"


def shard_of(id: str, shards: int) -> int:
    """The shard of a session, call or lease. Raises `NotFound` for an id of another service."""
    if shards == 1:
        return 0
    match = _SHARD.match(id)
    if match is None or int(match[1]) >= shards:
        raise NotFound(f"{shown(id)} is of none of the {shards} shards")
    return int(match[1])


def split(items: Sequence[T], id_of: Callable[[T], str], shards: int) -> dict[int, list[int]]:
    """Places of the items by shard; those of no shard are with the first, which will refuse them."""
    found: dict[int, list[int]] = {}
    for place, item in enumerate(items):
        try:
            shard = shard_of(id_of(item), shards)
        except NotFound:
            shard = 0
        found.setdefault(shard, []).append(place)
    return found


def shares(room: int, shards: Sequence[int]) -> dict[int, int]:
    """Equal parts of `room`; the first shards get what does not divide."""
    each, left = divmod(room, len(shards))
    parts = {shard: each + (place < left) for place, shard in enumerate(shards)}
    return {shard: part for shard, part in parts.items() if part}


def one_policy(parts: Sequence[PolicyStatus]) -> PolicyStatus:
    """Running only if all are; the oldest version that is in use."""
    versions = [part.version for part in parts if part.version is not None]
    paused = any(part.state == "paused" for part in parts)
    return PolicyStatus(
        version=min(versions, default=None),
        state="paused" if paused else "running",
        leased=sum(part.leased for part in parts),
    )


def one_stats(parts: Sequence[Stats]) -> Stats:
    def total(name: str) -> int:
        return sum(getattr(part, name) for part in parts)

    return Stats(
        queued=total("queued"),
        leased=total("leased"),
        waiting_workers=total("waiting_workers"),
        open_sessions=total("open_sessions"),
        answered=total("answered"),
        failed=total("failed"),
        cancelled=total("cancelled"),
        redelivered=total("redelivered"),
        policy=one_policy([part.policy for part in parts]),
    )
