"""`jsonl`: one sample per line, everything in it. docs/export.md has every field."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from rock.errors import ExportError
from rock.rollout.export.formats.base import Facts, Reloaded
from rock.rollout.export.formats.line import SCHEMA, line, reloaded
from rock.rollout.export.options import ExportOptions
from rock.rollout.export.sample import Sample


class Jsonl:
    """Own schema, for reading anywhere."""

    name: ClassVar[str] = "jsonl"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".jsonl"
    about: ClassVar[str] = "one sample per line, own schema"
    messages: ClassVar[bool] = False
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._messages = options.messages

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        encoder = msgspec.json.Encoder()
        for sample in samples:
            yield encoder.encode(line(sample, messages=self._messages)) + b"\n"

    def decode(self, data: bytes) -> list[Reloaded]:
        """Raises `ExportError` for a newer schema."""
        return [reloaded(_checked(msgspec.json.decode(text))) for text in data.splitlines()]


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    schema = fields.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise ExportError(f"schema {schema}; this rock reads up to {SCHEMA}")
    return fields


def packed(values: list[float | None]) -> array[float]:
    """A stream read back: NaN where nothing is known."""
    nan = float("nan")
    return array("f", [nan if value is None else value for value in values])
