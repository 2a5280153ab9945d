"""What a format is: samples to the bytes of one file, and back. No I/O.

A new format is one class here and one line in the registry (`rock.rollout.export.formats`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Protocol

from rock.rollout.export.options import ExportOptions
from rock.rollout.export.sample import Sample


@dataclass(frozen=True, slots=True)
class Facts:
    """What a format may say about the run."""

    run_id: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """One sequence as a format holds it. None is what the format has no place for."""

    token_ids: array[int]
    mask: array[int]
    logprobs: array[float]
    sample_id: str | None = None
    group_id: str | None = None
    index: int | None = None
    reward: float | None = None
    rewards: array[float] | None = None
    other: dict[str, Any] = field(default_factory=dict[str, Any])
    """The remaining fields, by the format's own names."""


class Format(Protocol):
    """One way to write samples. Made per export with its options; raises `ConfigError` for
    options that it cannot honour."""

    name: ClassVar[str]
    stem: ClassVar[str]
    """What a file's path in the export directory starts with; a number and `suffix` follow."""
    suffix: ClassVar[str]
    about: ClassVar[str]
    messages: ClassVar[bool]
    """It is made of text: samples must carry their conversation."""
    indexed: ClassVar[bool]
    """It has no place for ids and rewards, so each file gets a second one with a line per sample."""
    card: ClassVar[str | None]
    """A README.md to put into the directory."""

    def __init__(self, options: ExportOptions, facts: Facts) -> None: ...

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        """The bytes of one file; none when it would hold nothing."""
        ...

    def decode(self, data: bytes) -> list[Reloaded]:
        """What `encode` wrote, in its order."""
        ...


def by_episode(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """The samples of one episode at a time; they come together in the stream."""
    for _, found in groupby(samples, key=lambda sample: sample.episode_id):
        yield list(found)


def by_group(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    for _, found in groupby(samples, key=lambda sample: sample.group.group_id):
        yield list(found)


def ids_of(values: Iterable[int]) -> array[int]:
    return array("i", values)


def flags_of(values: Iterable[int]) -> array[int]:
    return array("b", values)


def floats_of(values: Iterable[float]) -> array[float]:
    return array("f", values)


def after(values: array[Any], start: int) -> list[Any]:
    return values[start:].tolist()


def versions_text(versions: Sequence[int]) -> list[str]:
    return [str(version) for version in versions]
