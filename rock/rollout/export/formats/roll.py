"""`roll`: the fields of the DataProto that ROLL's agentic pipeline trains on.

Rows are right-padded to `max_tokens` (ROLL's sequence_length) or to the longest of the file.
`infer_logprobs` is shifted by one, as ROLL keeps it: entry i belongs to token i+1. With
`rows=turn` this is what its agent-native environments make, with `rows=chain` what its
trajectory environments do. An episode's trajectory, messages and tools stand in its last row only.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import numpy as np

from rock.errors import ConfigError
from rock.rollout.export.formats.base import Facts, Reloaded, by_episode
from rock.rollout.export.formats.line import ids
from rock.rollout.export.formats.talk import messages_of, tools_of
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

STRING_COLUMNS = ("trajectory_data", "messages", "tools", "exp_name")


class Roll:
    """Agentic DataProto fields."""

    name: ClassVar[str] = "roll"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".npz"
    about: ClassVar[str] = "ROLL agentic DataProto fields (npz)"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        if not options.only_in_loss:
            raise ConfigError("roll: its scores cannot be null; only episodes in the loss fit")
        self._options = options
        self._facts = facts

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        rows: list[Sample] = []
        non_tensors: list[dict[str, Any]] = []
        for episode in by_episode(samples):
            rows += episode
            non_tensors += [self._non_tensors(row, last=row is episode[-1]) for row in episode]
        if rows:
            yield from to_parts(Batch(self._tensors(rows), columns(non_tensors), _META))

    def _tensors(self, rows: list[Sample]) -> dict[str, Any]:
        width = self._options.max_tokens or max(len(row.token_ids) for row in rows)
        attention = padded([_flags(len(row.token_ids)) for row in rows], width, np.int64)
        logprobs = padded([row.logprobs for row in rows], width, np.float32)
        zero = array("f")
        return {
            "input_ids": padded(
                [row.token_ids for row in rows], width, np.int64, pad=self._options.pad_token_id
            ),
            "attention_mask": attention,
            "position_ids": positions(attention),
            "response_mask": padded([row.mask for row in rows], width, np.bool_),
            "prompt_mask": padded([_flags(row.prompt_length) for row in rows], width, np.bool_),
            "scores": padded([row.rewards or zero for row in rows], width, np.float32),
            "infer_logprobs": logprobs[:, 1:],
        }

    def _non_tensors(self, sample: Sample, *, last: bool) -> dict[str, Any]:
        prompt = sample.token_ids[: sample.prompt_length]
        text = self._options.messages and last
        return {
            "env_ids": sample.group.first_episode + sample.index,
            "group_ids": sample.group.ordinal,
            "traj_group_id": sample.group.group_id,
            "traj_id": sample.episode_id,
            "tags": self._facts.agent,
            "step_scores": sum(sample.rewards or ()),
            "episode_scores": sample.reward,
            "state_hash": hashlib.sha256(prompt.tobytes()).hexdigest(),
            "step": sample.turn or 0,
            "trajectory_data": _json(ids(sample)) if last else None,
            "messages": _json([messages_of(sample)]) if text else None,
            "tools": _json(tools_of(sample) or []) if text else None,
            "exp_name": sample.run_id,
            "sample_id": sample.sample_id,
            "split": sample.split,
        }

    def decode(self, data: bytes) -> list[Reloaded]:
        batch = from_bytes(data)
        tensors = batch.tensors
        keep = tensors["attention_mask"]
        first = np.zeros((len(keep), 1), dtype=np.float32)
        logprobs = np.concatenate([first, tensors["infer_logprobs"]], axis=1)
        return [
            Reloaded(
                token_ids=row_of(tensors["input_ids"], row, keep, "i"),
                mask=row_of(tensors["response_mask"], row, keep, "b"),
                logprobs=row_of(logprobs, row, keep, "f"),
                sample_id=batch.non_tensors["sample_id"][row],
                group_id=batch.non_tensors["traj_group_id"][row],
                reward=batch.non_tensors["episode_scores"][row],
                rewards=row_of(tensors["scores"], row, keep, "f"),
                other={name: values[row] for name, values in batch.non_tensors.items()},
            )
            for row in range(len(keep))
        ]


_META: dict[str, Any] = {
    "metrics": {},
    # ROLL's own spelling.
    "COLUMMNS_CONFIG": [[name, "string"] for name in STRING_COLUMNS],
}


def _flags(count: int) -> array[int]:
    return array("b", b"\1" * count)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
