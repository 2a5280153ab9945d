"""A worker's completion, checked for what no record could hold, its tokens packed once."""

from __future__ import annotations

import math
import struct
import zlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice.graph import tokens
from rock.modelservice.wire import Completion, Usage

_plain = msgspec.msgpack.Encoder()
"""For fingerprints: twice as fast as JSON on numbers."""
_MARK = struct.Struct(">IQ")
MAX_COUNT = 2**53
"""Of tokens in `usage`: what every JSON reader still knows exactly."""


class Prepared(Struct, frozen=True):
    """A completion with its prompt's ids packed, once: they can be a hundred thousand."""

    completion: Completion
    """As sent, without `prompt_token_ids`."""
    prompt: bytes | None
    against_prompt: str | None
    """Why there is no packed prompt."""
    samples: list[tuple[bytes, bytes] | str]
    """For each choice its packed ids and log-probabilities, or why it has none."""
    fingerprint: bytes
    """Equal for two completions that say the same. CRC-32 and length, which tell a worker's mistake
    from a repetition as well as a digest would, and cost a quarter."""


def prepare(completion: Completion) -> Prepared:
    """Raises `BadRequest` for text that is not Unicode (a lone surrogate from a policy in Python),
    for numbers that nobody could store, and for a `usage` that no count is."""
    prompt, reason = tokens.pack_prompt(
        completion.prompt_token_ids, continues=completion.continues_parent
    )
    if prompt is not None:
        completion = replace(completion, prompt_token_ids=None)
    try:
        said = _plain.encode(completion)
    except UnicodeEncodeError as exc:
        raise BadRequest(f"the completion is not valid Unicode: {exc}", param="choices") from exc
    except OverflowError as exc:
        raise BadRequest("the completion has a number of more than 64 bits") from exc
    if completion.usage is not None:
        _check_usage(completion.usage)
    samples = [tokens.pack_sample(one.token_ids, one.logprobs) for one in completion.choices]
    fingerprint = _MARK.pack(zlib.crc32(prompt or b"", zlib.crc32(said)), len(said))
    return Prepared(completion, prompt, reason, samples, fingerprint)


def _check_usage(usage: Usage) -> None:
    """Limits are counted by it, and sums of it are shown."""
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
        count: int | None = getattr(usage, name)
        if count is not None and not 0 <= count <= MAX_COUNT:
            raise BadRequest(f"usage.{name}: expected 0 to 2**53, got {count}", param="usage")
    if usage.cost_usd is not None and not 0 <= usage.cost_usd < math.inf:
        raise BadRequest(
            f"usage.cost_usd: expected a number of 0 or more, got {usage.cost_usd}", param="usage"
        )
