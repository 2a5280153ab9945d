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
from functools import lru_cache

_INT32_MAX = 2**31 - 1
_LOWEST = -1e30
"""Far below any real log-probability, safely inside float32."""
_NEGATIVE = bytes(range(0x80, 0xF1))
"""The top bytes of float32 below 0 and above `_LOWEST`."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """Raises `OverflowError` for what is no int32: check first."""
    try:
        return _layout(len(ids), "i").pack(*ids)  # a quarter of what filling an array costs
    except struct.error as exc:
        raise OverflowError(f"expected int32 ids: {exc}") from exc


def unpack_ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Raises `OverflowError` for what is no float32: check first."""
    return _layout(len(logprobs), "f").pack(*logprobs)


def unpack_logprobs(packed: bytes) -> list[float]:
    return array("f", packed).tolist()


@lru_cache(maxsize=4096)
def _layout(count: int, kind: str) -> struct.Struct:
    return struct.Struct(f"={count}{kind}")  # reading the format costs as much as packing by it


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


def pack_sample(
    ids: Sequence[int] | None, logprobs: Sequence[float] | None
) -> tuple[bytes, bytes] | str:
    """(packed ids, packed log-probabilities) of a sampled answer, or why it cannot be trained on."""
    if ids is None:
        return "no token_ids"
    if logprobs is None:
        return "no logprobs"
    if not ids:
        return "empty token_ids"
    if len(ids) != len(logprobs):
        return f"{len(ids)} token_ids but {len(logprobs)} logprobs"
    packed, reason = _pack_checked(ids, "token_ids")
    if packed is None:
        return reason or ""
    try:
        packed_logprobs = pack_logprobs(logprobs)
    except OverflowError:  # float32 has no room for them, and it has for all that are right
        return _reason_against_logprobs(logprobs) or ""
    # The good case is read off the top bytes, where a usual log-probability shows its sign and size.
    top = packed_logprobs[3::4] if sys.byteorder == "little" else packed_logprobs[::4]
    reason = _reason_against_logprobs(logprobs) if top.translate(None, _NEGATIVE) else None
    return (packed, packed_logprobs) if reason is None else reason


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
