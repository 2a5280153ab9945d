"""What an export directory holds: the options, every finished file with its digest, the totals.

A file is in the manifest once it is whole and on disk. What is not in it never happened; a stopped
export goes on after the last file, at a group's border.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from rock.errors import ConfigError, ExportError
from rock.rollout.records.durable import write_atomically

SCHEMA = 1
FILE_NAME = "manifest.json"
BLOCK_BYTES = 1 << 20


class ExportedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was read for a file, and which of its attempts that was."""

    group_id: str
    digest: str


class ExportFile(msgspec.Struct, frozen=True, kw_only=True):
    """One finished file."""

    name: str
    bytes: int
    sha256: str


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """Whole groups, in one file; none where nothing of them was to be written."""

    file: ExportFile | None
    index: ExportFile | None
    groups: list[ExportedGroup]
    samples: int
    tokens: int
    sampled_tokens: int
    left_out: dict[str, int]


class Manifest(msgspec.Struct, kw_only=True):
    """`manifest.json`."""

    schema: int = SCHEMA
    format: str
    run_id: str
    options: dict[str, Any]
    complete: bool = False
    """Every group that was there to export is in it."""
    shards: list[Shard] = msgspec.field(default_factory=list[Shard])

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def sampled_tokens(self) -> int:
        return sum(shard.sampled_tokens for shard in self.shards)

    @property
    def left_out(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for shard in self.shards:
            for reason, count in shard.left_out.items():
                counts[reason] = counts.get(reason, 0) + count
        return dict(sorted(counts.items()))

    @property
    def files(self) -> list[ExportFile]:
        """All files, data before its index."""
        return [f for shard in self.shards for f in (shard.file, shard.index) if f is not None]

    @property
    def digest(self) -> str:
        """Of everything written: the same run and options give the same digest."""
        lines = "".join(f"{file.name} {file.sha256}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()


def load(out: Path) -> Manifest | None:
    """None when there is no export here yet. Raises `ExportError` for what cannot be gone on with."""
    path = out / FILE_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, OSError) as exc:
        raise ExportError(f"{path}: not a manifest: {exc}") from exc
    if manifest.schema > SCHEMA:
        raise ExportError(f"{path}: schema {manifest.schema}; this rock reads up to {SCHEMA}")
    return manifest


def save(out: Path, manifest: Manifest) -> None:
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    write_atomically(out / FILE_NAME, body + b"\n")


def require_same(old: Manifest, new: Manifest, out: Path) -> None:
    """Raises `ConfigError`, naming each difference, when `new` cannot go on where `old` stopped."""
    lines = [
        f"{name}: {getattr(old, name)!r} there, {getattr(new, name)!r} now"
        for name in ("format", "run_id")
        if getattr(old, name) != getattr(new, name)
    ]
    lines += [
        f"{name}: {old.options.get(name)!r} there, {new.options.get(name)!r} now"
        for name in sorted(old.options.keys() | new.options.keys())
        if old.options.get(name) != new.options.get(name)
    ]
    if lines:
        raise ConfigError(
            f"{out}: the export here was made with other options; give another directory:\n  "
            + "\n  ".join(lines)
        )


def verify(out: Path, manifest: Manifest) -> None:
    """Every file is there and unchanged. Raises `ExportError` naming the first that is not."""
    for file in manifest.files:
        path = out / file.name
        digest = hashlib.sha256()
        try:
            with path.open("rb") as opened:
                while block := opened.read(BLOCK_BYTES):
                    digest.update(block)
        except OSError as exc:
            raise _unreadable(path, exc) from exc
        if digest.hexdigest() != file.sha256:
            raise _changed(path, out)


def read(out: Path, file: ExportFile) -> bytes:
    """All of a file, as it was written. Raises `ExportError` if it is not."""
    path = out / file.name
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise _changed(path, out)
    return data


def _unreadable(path: Path, exc: OSError) -> ExportError:
    gone = isinstance(exc, FileNotFoundError)
    return ExportError(
        f"{path}: the manifest names it, but it "
        + ("is gone" if gone else f"cannot be read: {exc.strerror}")
    )


def _changed(path: Path, out: Path) -> ExportError:
    return ExportError(f"{path}: it is not what was exported; delete {out} to start anew")
