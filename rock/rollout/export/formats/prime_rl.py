"""`prime-rl`: files that its msgpack decoder reads as a `TrainingBatch` of `TrainingSample`s.

Both are arrays. A sample's places are token_ids, mask, logprobs, temperatures, env_name,
ref_logprobs, mm_kwargs, routed_experts, mm_token_type_ids, rl_weights, ce_weights,
ref_kl_weights, advantages; what stands at the end and is null is left out. The trainer there wants
advantages, which are an algorithm's business: they are only written when asked for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from rock.rollout.export.formats.base import Facts, Reloaded, flags_of, floats_of, ids_of
from rock.rollout.export.options import Advantage, ExportOptions
from rock.rollout.export.sample import Sample

ADVANTAGES = 12
DEFAULT_TEMPERATURE = 1.0
"""What engines sample with when nobody says; the OpenAI API's documented default."""


class PrimeRl:
    """One batch per file; ids and rewards stand in the index beside it."""

    name: ClassVar[str] = "prime-rl"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".msgpack"
    about: ClassVar[str] = "prime-rl TrainingBatch (msgpack)"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = True
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._advantage = options.advantage

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        # One array of unknown length cannot be written as it comes, so a file is held in memory,
        # packed: the shard limits bound it.
        encoder = msgspec.msgpack.Encoder()
        parts = [encoder.encode(self._sample(sample)) for sample in samples]
        if not parts:
            return
        yield b"\x92" + _array_header(len(parts))
        yield from parts
        yield encoder.encode(0)  # the step, which the reader's trainer counts

    def _sample(self, sample: Sample) -> list[Any]:
        values: list[Any] = [
            sample.token_ids.tolist(),
            [bool(flag) for flag in sample.mask],
            sample.logprobs.tolist(),
            _temperatures(sample).tolist(),
            sample.task_id,
        ]
        advantages = self._advantages(sample)
        if advantages is not None:
            values += [None] * (ADVANTAGES - len(values))
            values.append(advantages)
        return values

    def _advantages(self, sample: Sample) -> list[float] | None:
        mean = sample.group.mean_reward
        if self._advantage is Advantage.NONE or sample.reward is None or mean is None:
            return None
        value = sample.reward - mean
        return [value if flag else 0.0 for flag in sample.mask]

    def decode(self, data: bytes) -> list[Reloaded]:
        examples, _ = msgspec.msgpack.decode(data, type=tuple[list[list[Any]], int])
        return [
            Reloaded(
                token_ids=ids_of(example[0]),
                mask=flags_of(example[1]),
                logprobs=floats_of(example[2]),
                other={
                    "temperatures": example[3],
                    "env_name": example[4],
                    "advantages": example[ADVANTAGES] if len(example) > ADVANTAGES else None,
                },
            )
            for example in examples
        ]


def _temperatures(sample: Sample) -> array[float]:
    """Per token, that of the answer it is in or stands before."""
    values = array("f", [DEFAULT_TEMPERATURE]) * len(sample.token_ids)
    for span in sample.spans:
        if span.kind == "sampled" and span.temperature is not None:
            values[span.start : span.end] = array("f", [span.temperature]) * (span.end - span.start)
    return values


def _array_header(length: int) -> bytes:
    if length < 16:
        return bytes([0x90 | length])
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2)
    return b"\xdd" + length.to_bytes(4)
