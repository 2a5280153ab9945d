"""Compaction: sealed files become one base with what is still open, and an archive of what is closed.

`plan` is made between two events of the loop and says what to keep; `run` reads and writes files in a
thread and changes nothing that is in use; whoever called it takes the outcome over. The new base is
renamed into place last: until then a kill leaves the old files as they were.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from threading import Event as Flag
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from rock.errors import JournalError, ServiceUnavailable
from rock.modelservice.journal import records, segments
from rock.modelservice.journal.journal import sync_folder
from rock.modelservice.journal.segments import PREFIX_BYTES, Segment, framed
from rock.modelservice.journal.shelf import Shelf
from rock.modelservice.wire.interceptors import Interceptor


class Plan(Struct, frozen=True):
    """What one compaction does. Everything in it is its own or never changes."""

    folder: Path
    number: int
    files: list[Segment]
    """The sealed files, in order."""
    live: dict[str, array[int]]
    """Places of sessions that stay in the base."""
    closed: list[tuple[records.SessionArchived, array[int]]]
    """Sessions to archive, each with a draft of its marker."""
    others: dict[str, int]
    """Places of single records to keep, by a name: groups, boots, the policy."""
    head: list[records.Record]
    """Written first: markers of earlier archives, groups that were acknowledged,
    interceptors in their order."""

    @property
    def end(self) -> int:
        return self.files[-1].end


class Outcome(Struct, frozen=True):
    base: Segment
    live: dict[str, array[int]]
    """New places, as in the plan."""
    others: dict[str, int]
    archived: list[records.SessionArchived]


def plan(
    shelf: Shelf,
    files: list[Segment],
    folder: Path,
    number: int,
    acknowledged: Iterable[records.GroupAcknowledged],
    interceptors: Mapping[str, Interceptor],
) -> Plan:
    """Say what to keep of `files`. Sessions that the shelf has as retired are closed for good."""
    end = files[-1].end
    live: dict[str, array[int]] = {}
    closed: list[tuple[records.SessionArchived, array[int]]] = []
    for session_id, places in shelf.places.items():
        known = shelf.retired.get(session_id)
        if known is None:
            live[session_id] = places[: bisect_left(places, end)]
        elif places[-1] < end:
            marker = records.SessionArchived(
                session=session_id,
                key_sha256=known.key_sha256,
                reason=known.over.reason,
                limit=known.over.limit,
                bound=known.over.bound,
                at=known.at,
                counts=known.counts,
                archive=number,
                offset=0,
                length=0,
            )
            closed.append((marker, shelf.with_boots(places)))
        else:  # its last records are in the active file; the next compaction archives it
            live[session_id] = places[: bisect_left(places, end)]
    others = {f"group {name}": place for name, place in shelf.groups.items() if place < end}
    others |= {
        f"group-lease {name}": place for name, place in shelf.group_leases.items() if place < end
    }
    others |= {f"boot {n}": place for n, place in enumerate(shelf.boots) if place < end}
    if shelf.policy is not None and shelf.policy < end:
        others["policy"] = shelf.policy
    head: list[records.Record] = [*shelf.archived.values()]
    for acknowledgement in acknowledged:
        head.append(records.GroupPublished(group_id=acknowledgement.group_id, group=Raw(b"null")))
        head.append(acknowledgement)
    head += [records.InterceptorSet(name=name, spec=spec) for name, spec in interceptors.items()]
    return Plan(folder, number, files, live, closed, others, head)


def run(plan: Plan, stop: Flag) -> Outcome:
    """Write the archive and the base. Raises `OSError`, `JournalError`, and `ServiceUnavailable` if
    `stop` was set; nothing has changed then."""
    base = segments.base_path(plan.folder, plan.number)
    archive = segments.archive_path(plan.folder, plan.number)
    draft = base.with_name(f"{base.name}.new")
    try:
        with _Source(plan.files, stop) as source:
            archived = _write_archive(plan, source, archive)
            outcome = _write_base(plan, source, draft, base, archived)
        sync_folder(plan.folder)
        draft.rename(base)
    except BaseException:
        for path in (draft, archive):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise
    sync_folder(plan.folder)
    return outcome


class _Source:
    """The records of sealed files, by place."""

    def __init__(self, files: list[Segment], stop: Flag) -> None:
        self._files = files
        self._stop = stop
        self._maps: dict[Path, mmap.mmap] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Source:
        for one in self._files:
            with one.path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps[one.path] = self._stack.enter_context(content)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def frames(self, places: array[int] | list[int]) -> Iterator[bytes]:
        """Each record as it stands in its file."""
        if self._stop.is_set():
            raise ServiceUnavailable("the service is stopping")
        for path, offset in segments.spots(self._files, places):
            content = self._maps[path]
            try:
                length = int(content[offset : offset + 8], 16)
            except ValueError as exc:
                raise JournalError(f"{path} is damaged at byte {offset}") from exc
            yield content[offset : offset + PREFIX_BYTES + length + 1]


def _write_archive(plan: Plan, source: _Source, path: Path) -> list[records.SessionArchived]:
    markers: list[records.SessionArchived] = []
    if not plan.closed:
        return markers
    with _create(path) as file:
        file.write(segments.header(records.SCHEMA, segments.ORIGIN))
        for marker, places in plan.closed:
            offset = file.tell()
            file.writelines(source.frames(places))
            length = file.tell() - offset
            markers.append(msgspec.structs.replace(marker, offset=offset, length=length))
        _sync(file)
    return markers


def _write_base(
    plan: Plan,
    source: _Source,
    draft: Path,
    base: Path,
    archived: list[records.SessionArchived],
) -> Outcome:
    """Records keep their order. The base ends where the last of the files ended, so what follows it
    keeps its places."""
    head = framed(records.encode(record) for record in [*plan.head, *archived])
    keep = sorted([*plan.others.values(), *(p for places in plan.live.values() for p in places)])
    sizes = array("Q", (len(one) for one in source.frames(keep)))
    start = plan.end - sum(sizes) - len(head)
    header = segments.header(records.SCHEMA, start)
    with _create(draft) as file:
        file.write(header)
        file.write(head)
        file.writelines(source.frames(keep))
        _sync(file)
    fresh: dict[int, int] = {}
    place = start + len(head)
    for old, size in zip(keep, sizes, strict=True):
        fresh[old] = place
        place += size
    return Outcome(
        base=Segment(base, records.SCHEMA, start, plan.end, len(header)),
        live={name: array("Q", (fresh[p] for p in places)) for name, places in plan.live.items()},
        others={name: fresh[place] for name, place in plan.others.items()},
        archived=archived,
    )


def _create(path: Path) -> BinaryIO:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    return os.fdopen(fd, "wb", buffering=1 << 20)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fdatasync(file.fileno())
