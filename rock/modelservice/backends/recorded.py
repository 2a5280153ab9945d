"""Recordings on disk: a run directory, trajectories, or the journal of a service.

A journal is read as it stands, also while its service runs, and is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from rock.errors import ConfigError, RockError
from rock.modelservice.engine.book import Book
from rock.modelservice.graph import stored
from rock.modelservice.journal import records, segments
from rock.modelservice.policies.recording import Recording
from rock.modelservice.service import export
from rock.modelservice.wire import Trajectory

TRAJECTORIES = ("*.json", "*.jsonl")
TRAJECTORY = "trajectory.json"
"""Its name in a run directory."""


def load_recording(path: Path) -> Recording:
    """Raises ConfigError for what is no recording, or has no answered call."""
    recording = Recording(_trajectories(path))
    if not recording.calls:
        raise ConfigError(
            f"{path}: expected a run directory, trajectories (.json, .jsonl) or the state directory of "
            "a service, with at least one answered call"
        )
    return recording


def _trajectories(path: Path) -> Iterator[Trajectory]:
    if path.is_file():
        yield from _of_file(path)
    elif (path / segments.FILE_NAME).exists():
        yield from _of_journal(path)
    elif path.is_dir():
        found = sorted(path.rglob(TRAJECTORY))
        if not found:
            found = sorted(file for kind in TRAJECTORIES for file in path.glob(kind))
        for file in found:
            yield from _of_file(file)


def _of_file(path: Path) -> Iterator[Trajectory]:
    try:
        data = path.read_bytes()
        for text in data.splitlines() if path.suffix == ".jsonl" else [data]:
            if text.strip():
                yield stored.decode(text)
    except (OSError, msgspec.DecodeError) as exc:
        raise ConfigError(f"{path}: expected a trajectory: {exc}") from exc


def _of_journal(folder: Path) -> Iterator[Trajectory]:
    files = [folder / segments.FILE_NAME]
    sealed = [path for path in folder.glob("*-*.log") if segments.number_of(path)]
    bases = sorted(path for path in sealed if segments.is_base(path))
    newest = segments.number_of(bases[-1]) if bases else 0
    later = [p for p in sealed if p.name.startswith("journal-") and segments.number_of(p) > newest]
    yield from _of_files([*bases[-1:], *sorted(later), *files])
    for number, path in segments.archives(folder):
        if number <= newest:
            yield from _of_files([path])


def _of_files(paths: list[Path]) -> Iterator[Trajectory]:
    book = Book()

    def apply(payload: bytes, place: int) -> None:
        del place
        book.apply(records.decoder.decode(payload), 0.0)

    try:
        for path in paths:
            segments.replay(path, schema=records.SCHEMA, on_record=apply)
    except (OSError, msgspec.DecodeError, RockError, LookupError) as exc:
        raise ConfigError(f"{paths[-1].parent}: the journal cannot be read: {exc}") from exc
    for session in book.sessions:
        yield export.trajectory(book, session.id)
