"""Token ids and log-probabilities: packing and checking. int32 and float32, in machine order.

A Python list costs some 36 bytes per token, a packed array 4. Checks are all or nothing: an answer
whose tokens are not exactly right gets a reason, and is never patched.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence

_INT32_MAX = 2**31 - 1
_LOWEST = -1e30
"""Far below any real log-probability, safely inside float32."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """Raises `OverflowError` for what is no int32: check first."""
    try:
        return struct.pack(f"={len(ids)}i", *ids)  # half of what filling an array costs
    except struct.error as exc:
        raise OverflowError(f"expected int32 ids: {exc}") from exc


def unpack_ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    return struct.pack(f"={len(logprobs)}f", *logprobs)


def unpack_logprobs(packed: bytes) -> list[float]:
    return array("f", packed).tolist()


def count(packed: bytes) -> int:
    """How many ids or log-probabilities are packed."""
    return len(packed) // 4


def common(one: bytes, other: bytes) -> int:
    """How many leading ids two packed sequences have in common."""
    # Halves are compared in C: as fast as comparing the whole once or twice.
    low, high = 0, min(count(one), count(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[4 * low : 4 * middle] == other[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def pack_prompt(
    ids: Sequence[int] | None, *, continues: bool = False
) -> tuple[bytes | None, str | None]:
    """(packed ids, None), or (None, why these cannot be a prompt's ids, or with `continues` the
    end of them)."""
    if ids is None:
        return None, "no prompt_token_ids"
    if not ids and not continues:
        return None, "empty prompt_token_ids"
    return _pack_checked(ids, "prompt_token_ids")


def reason_against_sample(
    ids: Sequence[int] | None, logprobs: Sequence[float] | None
) -> str | None:
    """Why a sampled answer cannot be trained on; None if it can."""
    return pack_sample(ids, logprobs)[1]


def pack_sample(
    ids: Sequence[int] | None, logprobs: Sequence[float] | None
) -> tuple[bytes | None, str | None]:
    """(packed ids, None) of a sampled answer, or (None, why it cannot be trained on)."""
    if ids is None:
        return None, "no token_ids"
    if logprobs is None:
        return None, "no logprobs"
    if not ids:
        return None, "empty token_ids"
    if len(ids) != len(logprobs):
        return None, f"{len(ids)} token_ids but {len(logprobs)} logprobs"
    packed, reason = _pack_checked(ids, "token_ids")
    reason = reason or _reason_against_logprobs(logprobs)
    return (packed, None) if reason is None else (None, reason)


def _pack_checked(ids: Sequence[int], name: str) -> tuple[bytes | None, str | None]:
    # All in C, for prompts of a hundred thousand ids: the top bytes of packed ids are below 0x80
    # unless an id is negative.
    try:
        packed = pack_ids(ids)
    except OverflowError:
        packed = b"\xff" * 4
    top = packed[3::4] if sys.byteorder == "little" else packed[::4]
    return (packed, None) if top.isascii() else (None, f"{name} outside 0..{_INT32_MAX}")


def _reason_against_logprobs(logprobs: Sequence[float]) -> str | None:
    # Two passes in C for the good case: a NaN or an infinity makes the sum not finite, and where none
    # is above 0, none is below the sum.
    total = sum(logprobs)
    highest = max(logprobs)
    if not math.isfinite(total) or ((highest > 0 or total < _LOWEST) and min(logprobs) < _LOWEST):
        return "logprobs that are not finite"
    if highest > 0:
        return "logprobs above 0"
    return None
