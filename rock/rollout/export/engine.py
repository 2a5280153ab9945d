"""The export: a run directory in, a directory of files and a manifest out.

    export(Path("runs/mine"), Path("out"), "parquet")

Groups are read one after the other and written to files of bounded size; each file is on disk
before the manifest names it. Killed at any moment, the same call goes on after the last whole file.
On a finished export it verifies every file and adds what the run has finished since.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rock.errors import ExportError
from rock.rollout.export import manifest as manifests
from rock.rollout.export.formats import Facts, Format, Reloaded, format_class
from rock.rollout.export.formats.line import ids
from rock.rollout.export.manifest import ExportedGroup, ExportFile, Manifest, Shard
from rock.rollout.export.options import ExportOptions, options_of
from rock.rollout.export.sample import Sample
from rock.rollout.export.source import Group, open_run
from rock.rollout.export.stream import Reader
from rock.rollout.records.durable import sync_folder, write_atomically


@dataclass(frozen=True, slots=True)
class Progress:
    """After each file: how far the export is."""

    groups_done: int
    groups: int
    samples: int
    tokens: int


CARD = "README.md"
UNNAMED = manifests.FILE_NAME + ".part"
"""What an export leaves that was killed before it had a manifest."""
OnProgress = Callable[[Progress], None]


def export(
    run: Path,
    out: Path,
    format_name: str,
    options: ExportOptions | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Export `run` to `out`, or go on with the export there; the manifest of what `out` then holds.

    Raises `ConfigError` for options that do not fit (the format, or the export in `out`),
    `LedgerError` for a run that cannot be read, and `ExportError` for an `out` that cannot be used or
    is full: once there is room, the same call goes on.
    """
    chosen = options or ExportOptions()
    source = open_run(run)
    kind = format_class(format_name)
    format_ = kind(chosen, Facts(source.run_id, source.agent))
    reader = Reader(source, chosen, messages=chosen.messages or kind.messages)
    with _directory(out):
        manifest = _start_or_continue(
            out,
            Manifest(
                format=format_name,
                run_id=source.run_id,
                options=chosen.model_dump(mode="json"),
            ),
        )
        wanted = reader.wanted()
        waiting = _not_exported(manifest, wanted, out)
        if waiting:
            manifest.complete = False
        while waiting:
            shard, waiting = _write_shard(out, len(manifest.shards), format_, reader, waiting)
            manifest.shards.append(shard)
            manifest.complete = not waiting
            manifests.save(out, manifest)
            if on_progress is not None:
                done = len(wanted) - len(waiting)
                on_progress(Progress(done, len(wanted), manifest.samples, manifest.tokens))
        if not manifest.complete:
            manifest.complete = True
            manifests.save(out, manifest)
    return manifest


@contextmanager
def _directory(out: Path) -> Generator[None]:
    """`out`, made and locked: two exports into one directory would mix."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        fd = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise ExportError(f"{out}: cannot be used as an export directory: {exc.strerror}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as exc:
        raise ExportError(f"{out}: another export is writing here") from exc
    except OSError as exc:  # what is read says what is wrong with it itself
        raise ExportError(f"{out}: cannot be written: {exc.strerror}") from exc
    finally:
        os.close(fd)


def _start_or_continue(out: Path, fresh: Manifest) -> Manifest:
    found = manifests.load(out)
    if found is not None:
        manifests.require_same(found, fresh, out)
        manifests.verify(out, found)
    elif any(path.name != UNNAMED for path in out.iterdir()):
        raise ExportError(f"{out}: it holds something else; give another directory")
    else:
        manifests.save(out, fresh)
    card = format_class(fresh.format).card
    if card is not None and not (out / CARD).exists():  # or killed before it was written
        write_atomically(out / CARD, card.encode())
    return found or fresh


def _not_exported(manifest: Manifest, wanted: list[Group], out: Path) -> list[Group]:
    """What is left to do. Raises `ExportError` when an exported group has changed since."""
    done = {group.group_id: group.digest for shard in manifest.shards for group in shard.groups}
    for group in wanted:
        if done.get(group.group_id, group.digest) != group.digest:
            raise ExportError(
                f"{out}: group {group.group_id} has other attempts than when it was exported; "
                "give another directory"
            )
    return [group for group in wanted if group.group_id not in done]


class _Feed:
    """Samples of one group after the other, until a file is full."""

    def __init__(self, reader: Reader, groups: list[Group]) -> None:
        self._reader = reader
        self._groups = groups
        self.taken = 0
        self.samples = 0
        self.tokens = 0
        self.sampled_tokens = 0
        self.index: list[bytes] = []

    def __call__(self, *, index: bool) -> Iterator[Sample]:
        limits = self._reader.options
        for group in self._groups:
            self.taken += 1
            for sample in self._reader.group(group):
                self.samples += 1
                self.tokens += len(sample.token_ids)
                self.sampled_tokens += sample.mask.count(1)
                if index:
                    self.index.append(msgspec.json.encode(ids(sample)) + b"\n")
                yield sample
            if self.samples >= limits.shard_samples or self.tokens >= limits.shard_tokens:
                return


def _write_shard(
    out: Path, number: int, format_: Format, reader: Reader, groups: list[Group]
) -> tuple[Shard, list[Group]]:
    """One file of whole groups, on disk; and the groups that are left."""
    feed = _Feed(reader, groups)
    reader.left_out.clear()
    name = f"{format_.stem}{number:05d}"
    file = _write(out, name + format_.suffix, format_.encode(feed(index=format_.indexed)))
    index = _write(out, f"{name}.index.jsonl", iter(feed.index))
    shard = Shard(
        file=file,
        index=index,
        groups=[
            ExportedGroup(group_id=group.group_id, digest=group.digest)
            for group in groups[: feed.taken]
        ],
        samples=feed.samples,
        tokens=feed.tokens,
        sampled_tokens=feed.sampled_tokens,
        left_out={reason: count for reason, count in sorted(reader.left_out.items()) if count},
    )
    return shard, groups[feed.taken :]


def _write(out: Path, name: str, parts: Iterator[bytes]) -> ExportFile | None:
    """`parts` as a file, durable on return; None, and no file, when there are none."""
    path = out / name
    path.parent.mkdir(exist_ok=True)
    part_path = path.with_name(path.name + ".part")
    digest = hashlib.sha256()
    size = 0
    try:
        with part_path.open("wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # most likely the disk is full
        part_path.unlink(missing_ok=True)
        raise
    if not size:
        part_path.unlink()
        return None
    part_path.replace(path)
    sync_folder(path.parent)
    return ExportFile(name=name, bytes=size, sha256=digest.hexdigest())


def reload(out: Path) -> Iterator[Reloaded]:
    """What an export holds, sequence by sequence, in its order. Raises `ExportError`, `ConfigError`."""
    manifest = manifests.load(out)
    if manifest is None:
        raise ExportError(f"{out}: not an export: it has no {manifests.FILE_NAME}")
    options = options_of(**manifest.options)
    format_ = format_class(manifest.format)(options, Facts(manifest.run_id, ""))
    for shard in manifest.shards:
        if shard.file is not None:
            yield from format_.decode(manifests.read(out, shard.file))
