"""`slime`: one line per sample with the fields of its `Sample`, for `Sample.from_dict`.

`index` and `rollout_id` are the episode's number in the run (sequences of one episode share it),
`group_index` the group's. slime splits a sequence once, before the first trained token: `loss_mask`
and `rollout_log_probs` have `response_length` entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from rock.rollout.export.formats.base import (
    Facts,
    Reloaded,
    after,
    flags_of,
    floats_of,
    ids_of,
    versions_text,
)
from rock.rollout.export.formats.line import ids
from rock.rollout.export.formats.talk import messages_of, text_of
from rock.rollout.export.options import ExportOptions
from rock.rollout.export.sample import Ending, Sample


class Slime:
    """Lines that slime's `Sample.from_dict` takes."""

    name: ClassVar[str] = "slime"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".jsonl"
    about: ClassVar[str] = "slime Sample.to_dict() lines"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._messages = options.messages

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        encoder = msgspec.json.Encoder()
        for sample in samples:
            yield encoder.encode(self._fields(sample)) + b"\n"

    def _fields(self, sample: Sample) -> dict[str, Any]:
        number = sample.group.first_episode + sample.index
        start = sample.prompt_length
        said = messages_of(sample) if self._messages else []
        return {
            "group_index": sample.group.ordinal,
            "index": number,
            "rollout_id": number,
            "prompt": list(said[:-1]),
            "tokens": sample.token_ids.tolist(),
            "response": text_of(sample.conversation[-1].answer.content) if said else "",
            "response_length": len(sample.token_ids) - start,
            "label": None,
            "reward": sample.reward,
            "loss_mask": after(sample.mask, start),
            "weight_versions": versions_text(sample.versions),
            "rollout_log_probs": after(sample.logprobs, start),
            "remove_sample": not sample.outcome.in_loss,
            "status": _status(sample),
            "session_id": sample.session_id,
            "metadata": ids(sample),
        }

    def decode(self, data: bytes) -> list[Reloaded]:
        return [_reloaded(msgspec.json.decode(text)) for text in data.splitlines()]


def _status(sample: Sample) -> str:
    if sample.ending is Ending.ABORTED:
        return "aborted"
    return "truncated" if sample.cut_short else "completed"


def _reloaded(fields: dict[str, Any]) -> Reloaded:
    before = len(fields["tokens"]) - fields["response_length"]
    metadata = fields["metadata"]
    return Reloaded(
        token_ids=ids_of(fields["tokens"]),
        mask=flags_of([0] * before + fields["loss_mask"]),
        logprobs=floats_of([0.0] * before + fields["rollout_log_probs"]),
        sample_id=metadata["sample_id"],
        group_id=metadata["group_id"],
        index=metadata["index"],
        reward=fields["reward"],
        other=fields,
    )
