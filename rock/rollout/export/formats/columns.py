"""`parquet` and `hf`: a sample per row, token lists as typed columns, ready for memory mapping.

Columns are the fields of `jsonl`; what is nested and free there (outcome, sampling, spans'
conversation) is JSON text here where it has no fixed shape. `hf` is the same files in the layout
that `datasets.load_dataset(DIRECTORY)` takes.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import msgspec
import pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs]

from rock.rollout.export.formats.base import Facts, Reloaded
from rock.rollout.export.formats.line import SCHEMA, ids_fields, nullable, reloaded
from rock.rollout.export.formats.sink import Sink
from rock.rollout.export.formats.talk import messages_of, tools_of
from rock.rollout.export.options import ExportOptions
from rock.rollout.export.sample import Sample

# pyarrow has no types; from here on it is openly Any instead of unknown everywhere.
pa: Any = pyarrow
pq: Any = pyarrow.parquet

CHUNK_SAMPLES = 256
CHUNK_TOKENS = 250_000
"""A row group is written after the sample that reaches one of these; memory grows with them."""

_SPAN = pa.struct(
    [
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("kind", pa.string()),
        ("turn", pa.int32()),
        ("call_id", pa.string()),
        ("choice", pa.int32()),
        ("policy_version", pa.int64()),
        ("temperature", pa.float32()),
        ("top_p", pa.float32()),
        ("finish_reason", pa.string()),
        ("first_message", pa.int32()),
        ("roles", pa.list_(pa.string())),
        ("tool_call_ids", pa.list_(pa.string())),
        ("part", pa.string()),
    ]
)
_MISSING = pa.struct([("index", pa.int32()), ("reason", pa.string())])
_STREAM = pa.struct([("name", pa.string()), ("values", pa.list_(pa.float32()))])
_CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
Written by `rock export --format hf`; the columns are explained in rock's docs/export.md.
"""
JSON_COLUMNS = ("outcome", "sampling", "messages", "tools")
COLUMNS = pa.schema(
    [
        ("schema", pa.int32()),
        ("sample_id", pa.string()),
        ("run_id", pa.string()),
        ("task_id", pa.string()),
        ("group_id", pa.string()),
        ("group_size", pa.int32()),
        ("group_mean_reward", pa.float64()),
        ("missing", pa.list_(_MISSING)),
        ("episode_id", pa.string()),
        ("session_id", pa.string()),
        ("index", pa.int32()),
        ("attempt", pa.int32()),
        ("split", pa.int32()),
        ("chain", pa.string()),
        ("chain_class", pa.string()),
        ("branch", pa.string()),
        ("turns", pa.int32()),
        ("turn", pa.int32()),
        ("tokens", pa.int32()),
        ("sampled_tokens", pa.int32()),
        ("reward", pa.float64()),
        ("ending", pa.string()),
        ("outcome", pa.string()),
        ("policy_versions", pa.list_(pa.int64())),
        ("staleness", pa.int64()),
        ("sampling", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("rewards", pa.list_(pa.float32())),
        ("spans", pa.list_(_SPAN)),
        ("streams", pa.list_(_STREAM)),
        ("messages", pa.string()),
        ("tools", pa.string()),
    ]
)


class Parquet:
    """Columns of fixed types."""

    name: ClassVar[str] = "parquet"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".parquet"
    about: ClassVar[str] = "Parquet, typed token columns"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._messages = options.messages

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        sink = Sink()
        writer: Any = None
        for chunk in _chunks(samples):
            writer = writer or pq.ParquetWriter(sink, COLUMNS, compression="zstd")
            writer.write_table(_table(chunk, messages=self._messages))
            yield sink.take()
        if writer is not None:
            writer.close()
            yield sink.take()

    def decode(self, data: bytes) -> list[Reloaded]:
        rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(data)).to_pylist()
        return [reloaded(_plain(row)) for row in rows]


class HuggingFace(Parquet):
    """The same file; only names and layout differ."""

    name: ClassVar[str] = "hf"
    stem: ClassVar[str] = "data/train-"
    suffix: ClassVar[str] = ".parquet"
    about: ClassVar[str] = "Hugging Face dataset directory (Parquet)"
    card: ClassVar[str | None] = _CARD


def _chunks(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    chunk: list[Sample] = []
    tokens = 0
    for sample in samples:
        chunk.append(sample)
        tokens += len(sample.token_ids)
        if len(chunk) >= CHUNK_SAMPLES or tokens >= CHUNK_TOKENS:
            yield chunk
            chunk, tokens = [], 0
    if chunk:
        yield chunk


def _table(chunk: list[Sample], *, messages: bool) -> Any:
    rows = [_row(sample, messages=messages) for sample in chunk]
    packed: dict[str, Any] = {
        # Straight from the packed arrays: no object per token.
        "token_ids": _lists([sample.token_ids for sample in chunk], pa.int32()),
        "mask": _lists([sample.mask for sample in chunk], pa.int8()),
        "logprobs": _lists([sample.logprobs for sample in chunk], pa.float32()),
        "rewards": _lists([sample.rewards for sample in chunk], pa.float32()),
    }
    columns = [
        packed[field.name]
        if field.name in packed
        else pa.array([row[field.name] for row in rows], type=field.type)
        for field in COLUMNS
    ]
    return pa.Table.from_arrays(columns, schema=COLUMNS)


def _lists(values: Sequence[array[Any] | None], kind: Any) -> Any:
    """A column of lists; None is null."""
    ends = accumulate((len(value or ()) for value in values), initial=0)
    data = b"".join(value.tobytes() for value in values if value is not None)
    offsets = array("i", ends)
    items = pa.Array.from_buffers(kind, offsets[-1], [None, pa.py_buffer(data)])
    return pa.ListArray.from_arrays(
        pa.array(offsets, type=pa.int32()),
        items,
        mask=pa.array([value is None for value in values], type=pa.bool_()),
    )


def _row(sample: Sample, *, messages: bool) -> dict[str, Any]:
    row = ids_fields(sample)
    row["schema"] = SCHEMA
    row["messages"] = messages_of(sample) if messages else None
    row["tools"] = tools_of(sample) if messages else None
    for name in JSON_COLUMNS:
        row[name] = None if row[name] is None else msgspec.json.encode(row[name]).decode()
    row["missing"] = [msgspec.structs.asdict(item) for item in row["missing"]]
    row["spans"] = [msgspec.structs.asdict(span) for span in sample.spans]
    row["streams"] = [
        {"name": name, "values": nullable(values)} for name, values in sample.streams.items()
    ]
    return row


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row back in the shape of `jsonl`."""
    decode: Callable[[str], Any] = msgspec.json.decode
    for name in JSON_COLUMNS:
        row[name] = None if row[name] is None else decode(row[name])
    row["streams"] = {stream["name"]: stream["values"] for stream in row["streams"]}
    return row
