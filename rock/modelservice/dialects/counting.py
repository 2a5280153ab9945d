"""How many tokens a request has, for clients that ask before they send.

ModelService has no tokenizer of its own: the policy's lives with the trainer. The estimate here is
high rather than low, because clients compact on it and an overflow costs more than an early
compaction. `planes.counted` knows better where it can.
"""

from __future__ import annotations

import math

from rock.modelservice.wire import CanonicalRequest

BYTES_PER_TOKEN = 3.5
"""JSON of English text and code has about four; other scripts have fewer."""
TOKENS_PER_MESSAGE = 4
INLINE_DATA_TOKENS = 1600
"""One image or document, whatever its size in bytes."""
_DATA = b";base64,"


def estimate_tokens(request: CanonicalRequest) -> int:
    """At least 1. An estimate from the size of messages and tools; never raises."""
    pieces = [*map(bytes, request.messages), *map(bytes, request.tools or ())]
    data = sum(piece.count(_DATA) for piece in pieces)
    size = sum(len(_without_data(piece)) if _DATA in piece else len(piece) for piece in pieces)
    tokens = size / BYTES_PER_TOKEN + len(pieces) * TOKENS_PER_MESSAGE + data * INLINE_DATA_TOKENS
    return max(1, math.ceil(tokens))


def _without_data(piece: bytes) -> bytes:
    """The piece without its inline files, which are not read as text."""
    first, *rest = piece.split(_DATA)
    return first + b"".join(part.partition(b'"')[2] for part in rest)
