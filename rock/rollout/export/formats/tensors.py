"""Padded tensors in one file that needs no pickle: an `.npz` with the rest as JSON beside them.

Each tensor is `NAME.npy` in the archive, so `numpy.load` reads it; `non_tensors.json` holds one
list per name with an entry per row, `meta_info.json` an object. The same samples give the same
bytes.
"""

from __future__ import annotations

import io
import zipfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from rock.errors import ExportError
from rock.rollout.export.formats.sink import Sink

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

NON_TENSORS = "non_tensors.json"
META_INFO = "meta_info.json"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(slots=True)
class Batch:
    """What verl and ROLL call a DataProto: tensors, object arrays and facts about the batch."""

    tensors: dict[str, NDArray[Any]]
    """Name -> [rows, width]."""
    non_tensors: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    meta_info: dict[str, Any] = field(default_factory=dict[str, Any])

    def object_arrays(self) -> dict[str, NDArray[np.object_]]:
        """`non_tensors` as those projects hold them: object arrays of one entry per row."""
        arrays: dict[str, NDArray[np.object_]] = {}
        for name, values in self.non_tensors.items():
            arrays[name] = np.empty(len(values), dtype=object)
            arrays[name][:] = values
        return arrays


def padded(
    rows: Sequence[array[Any]], width: int, dtype: DTypeLike, *, pad: float = 0, left: bool = False
) -> NDArray[Any]:
    """`rows` as one [rows, width] array. Raises `ExportError` for a row that does not fit."""
    result = np.full((len(rows), width), pad, dtype=dtype)
    for place, row in zip(result, rows, strict=True):
        if len(row) > width:
            raise ExportError(f"a sequence of {len(row)} tokens does not fit into {width}")
        if row:
            part = slice(width - len(row), width) if left else slice(0, len(row))
            place[part] = np.frombuffer(row, dtype=row.typecode)
    return result


def positions(attention_mask: NDArray[Any]) -> NDArray[np.int64]:
    """Place of each token in its row from 0; 0 where there is only padding."""
    counted = np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None)
    return (counted * attention_mask).astype(np.int64)


def to_parts(batch: Batch) -> Iterator[bytes]:
    """The archive, piece by piece. Tensors are let go of as they are written."""
    sink = Sink()
    with zipfile.ZipFile(cast(IO[bytes], sink), "w", zipfile.ZIP_STORED) as archive:
        for name in list(batch.tensors):
            with archive.open(
                zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True
            ) as file:
                np.lib.format.write_array(file, batch.tensors.pop(name), allow_pickle=False)
            yield sink.take()
        for name, value in ((NON_TENSORS, batch.non_tensors), (META_INFO, batch.meta_info)):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), msgspec.json.encode(value))
    yield sink.take()


def from_bytes(data: bytes) -> Batch:
    """Raises `ExportError` for anything else than what `to_parts` wrote."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            tensors = {
                name.removesuffix(".npy"): np.lib.format.read_array(
                    io.BytesIO(archive.read(name)), allow_pickle=False
                )
                for name in names
            }
            return Batch(
                tensors,
                msgspec.json.decode(archive.read(NON_TENSORS), type=dict[str, list[Any]]),
                msgspec.json.decode(archive.read(META_INFO), type=dict[str, Any]),
            )
    except (zipfile.BadZipFile, KeyError, ValueError) as exc:
        raise ExportError(f"not a batch of tensors: {exc}") from exc


def row_of(tensor: NDArray[Any], row: int, keep: NDArray[Any], typecode: str) -> array[Any]:
    """The entries of a row that are not padding, packed."""
    return array(typecode, tensor[row][keep[row] == 1].tolist())


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows of named values as one list per name."""
    return {name: [row[name] for row in rows] for name in rows[0]}
