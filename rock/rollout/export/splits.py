"""Which critic sees which member: disjoint, even inside every group, the same every time.

A member's share follows from the group's id, its size and the member's index alone. Retries,
cancelled members and resumed exports change nothing.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache


@lru_cache(maxsize=4096)
def split_of_group(group_id: str, size: int, splits: int) -> tuple[int, ...]:
    """The split of each index. The numbers of members per split differ by at most one."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{group_id}\0{index}".encode()).digest()

    # Where the odd members go is drawn per group too, so no split is favoured over many groups.
    first = int.from_bytes(hashlib.sha256(group_id.encode()).digest()[:8]) % splits
    result = [0] * size
    for place, index in enumerate(sorted(range(size), key=rank)):
        result[index] = (first + place) % splits
    return tuple(result)
