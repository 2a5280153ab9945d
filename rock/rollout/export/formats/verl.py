"""`verl`: the fields of the DataProto that verl's agent loop hands to its trainer.

`prompts` (left-padded) is everything before the first trained token, `responses` (right-padded) the
rest, tool results included; `response_mask` is 1 on trained tokens. `rm_scores` is there only when
every row of the file has a reward. Widths are those of the longest row of the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import numpy as np

from rock.rollout.export.formats.base import Facts, Reloaded
from rock.rollout.export.formats.line import ids
from rock.rollout.export.formats.talk import said_in
from rock.rollout.export.formats.tensors import (
    Batch,
    columns,
    from_bytes,
    padded,
    positions,
    row_of,
    to_parts,
)
from rock.rollout.export.options import ExportOptions
from rock.rollout.export.sample import Sample


class Verl:
    """DataProto fields; `Batch.object_arrays` gives the non-tensors as verl wants them."""

    name: ClassVar[str] = "verl"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".npz"
    about: ClassVar[str] = "verl DataProto fields (npz)"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._pad = options.pad_token_id
        self._messages = options.messages

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        rows = list(samples)
        if rows:
            yield from to_parts(self._batch(rows))

    def _batch(self, rows: list[Sample]) -> Batch:
        starts = [row.prompt_length for row in rows]
        prompts = [row.token_ids[:start] for row, start in zip(rows, starts, strict=True)]
        responses = [row.token_ids[start:] for row, start in zip(rows, starts, strict=True)]
        wide, long = max(map(len, prompts)), max(map(len, responses))
        prompt_ids = padded(prompts, wide, np.int64, pad=self._pad, left=True)
        response_ids = padded(responses, long, np.int64, pad=self._pad)
        attention = np.concatenate(
            [
                padded([_ones(part) for part in prompts], wide, np.int64, left=True),
                padded([_ones(part) for part in responses], long, np.int64),
            ],
            axis=1,
        )
        tensors = {
            "prompts": prompt_ids,
            "responses": response_ids,
            "response_mask": self._responses(rows, starts, "mask", long, np.int64),
            "input_ids": np.concatenate([prompt_ids, response_ids], axis=1),
            "attention_mask": attention,
            "position_ids": positions(attention),
            "rollout_log_probs": self._responses(rows, starts, "logprobs", long, np.float32),
        }
        if all(row.rewards is not None for row in rows):
            tensors["rm_scores"] = self._responses(rows, starts, "rewards", long, np.float32)
        return Batch(
            tensors,
            columns([self._non_tensors(row) for row in rows]),
            {"metrics": [{} for _ in rows], "reward_extra_keys": []},
        )

    def _responses(
        self, rows: list[Sample], starts: list[int], name: str, width: int, dtype: Any
    ) -> Any:
        parts = [getattr(row, name)[start:] for row, start in zip(rows, starts, strict=True)]
        return padded(parts, width, dtype)

    def _non_tensors(self, sample: Sample) -> dict[str, Any]:
        number = sample.group.first_episode + sample.index
        fields: dict[str, Any] = {
            "uid": sample.group.group_id,
            "index": number,
            "data_source": sample.task_id,
            "reward_model": {"style": "rule", "ground_truth": None},
            "extra_info": msgspec.to_builtins(ids(sample)),
            "agent_name": "rock",
            "__num_turns__": 2 * len({span.turn for span in sample.spans}),
        }
        if self._messages:
            fields["raw_prompt"] = [
                item.fields() for item in said_in(sample)[: _prompt_messages(sample)]
            ]
        return fields

    def decode(self, data: bytes) -> list[Reloaded]:
        batch = from_bytes(data)
        keep = batch.tensors["attention_mask"]
        wide = batch.tensors["prompts"].shape[1]
        scores = batch.tensors.get("rm_scores")
        extra = batch.non_tensors["extra_info"]
        found: list[Reloaded] = []
        for row, info in enumerate(extra):
            start = int(keep[row, :wide].sum())
            own = keep[:, wide:]

            def whole(
                tensor: Any, code: str, row: int = row, start: int = start, own: Any = own
            ) -> Any:
                return array(code, [0]) * start + row_of(tensor, row, own, code)

            found.append(
                Reloaded(
                    token_ids=row_of(batch.tensors["input_ids"], row, keep, "i"),
                    mask=whole(batch.tensors["response_mask"], "b"),
                    logprobs=whole(batch.tensors["rollout_log_probs"], "f"),
                    sample_id=info["sample_id"],
                    group_id=batch.non_tensors["uid"][row],
                    index=info["index"],
                    reward=info["reward"],
                    rewards=None if scores is None else whole(scores, "f"),
                    other={name: values[row] for name, values in batch.non_tensors.items()},
                )
            )
        return found


def _ones(part: array[int]) -> array[int]:
    return array("b", b"\1" * len(part))


def _prompt_messages(sample: Sample) -> int:
    return len(sample.conversation[0].messages) if sample.conversation else 0
