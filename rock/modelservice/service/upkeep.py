"""What a service does with its journal beside the calls: reads retired sessions back, and compacts.

Nothing here holds a call up: files are read and written in threads, and a compaction that fails
leaves everything as it was and is tried again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from rock.errors import JournalError, NotFound, RockError
from rock.modelservice.engine.book import Book
from rock.modelservice.engine.engine import Engine
from rock.modelservice.journal import compaction, records, segments
from rock.modelservice.journal.compaction import Outcome, Plan
from rock.modelservice.journal.segments import Spot
from rock.modelservice.journal.shelf import Stretch
from rock.modelservice.states import Event, State

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
"""Between two tries of a compaction that failed."""
LOOK_SECONDS = 5.0
"""Between two looks at how much of a journal is of sessions that are over, while it is too little."""
READ_TRIES = 3


class Upkeep:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._folder: Path = engine.config.state_dir
        self._stop = threading.Event()
        self._running: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._not_before = 0.0
        self._left_over = any(not segments.is_base(one.path) for one in engine.journal.sealed)
        """A run before this one put files aside and did not compact them."""

    # --- reading ---

    def book_of(self, session_id: str) -> Book:
        """The book that has a session: the service's, or one made from the journal for this. Blocks
        while it reads. Raises `NotFound`."""
        if session_id not in self._engine.shelf:
            return self._engine.book
        return _rebuilt(self._locate(session_id))

    async def book_later(self, session_id: str) -> Book:
        """`book_of` without holding anything up."""
        for _ in range(READ_TRIES):
            if session_id not in self._engine.shelf:
                break
            where = self._locate(session_id)
            # Compacted away between looking and reading: look again.
            with contextlib.suppress(FileNotFoundError):
                return await asyncio.to_thread(_rebuilt, where)
        return self.book_of(session_id)

    def _locate(self, session_id: str) -> list[Spot] | Stretch:
        engine = self._engine
        return engine.shelf.locate(session_id, engine.journal.segments, self._folder)

    # --- compaction ---

    def tick(self) -> None:
        """Start a compaction if one is due."""
        if self._due():
            self._running = asyncio.create_task(self._compact_quietly())

    def _due(self) -> bool:
        engine = self._engine
        if engine.journal.error is not None or engine.stopping:
            return False
        if self._running is not None and not self._running.done():
            return False
        if engine.clock() < self._not_before:
            return False
        if self._left_over:
            return True
        base = sum(segment.end - segment.start for segment in engine.journal.sealed)
        if engine.journal.size_bytes <= max(engine.config.compact_bytes, base):
            return False
        share, shelf = engine.config.compact_share, engine.shelf
        if shelf.share_over() >= share or shelf.outlived(self._oldest(), share):
            return True
        self._not_before = engine.clock() + LOOK_SECONDS
        return False

    def _oldest(self) -> float:
        """When a session was closed at the earliest that is not forgotten, in seconds since 1970."""
        return self._engine.wall() - self._engine.config.keep_closed_seconds

    async def _compact_quietly(self) -> None:
        try:
            await self.compact()
        except Exception as exc:  # or it would be tried anew at every tick
            if not isinstance(exc, OSError | RockError):
                log.exception("unexpected error in a compaction")
            self._not_before = self._engine.clock() + RETRY_SECONDS
            self._left_over = True
            log.warning("the journal could not be compacted, it goes on as it is: %s", exc)

    async def compact(self) -> None:
        """Put the journal's files together: what is over goes into an archive, what is too old is
        forgotten. Raises `OSError`, `JournalError`."""
        async with self._one_at_a_time:
            await self._compact()

    async def _compact(self) -> None:
        engine = self._engine
        self._forget_old()
        aside = await engine.journal.seal()
        number = segments.number_of(aside[-1].path)
        plan = compaction.plan(
            engine.shelf,
            aside,
            self._folder,
            number,
            [
                records.GroupAcknowledged(group_id=name, step=end.step, lease_id=end.lease_id)
                for name, end in engine.outbox.consumed().items()
            ],
            engine.book.interceptors,
        )
        outcome = await asyncio.to_thread(compaction.run, plan, self._stop)
        self._take_over(plan, outcome)
        self._left_over = False
        await asyncio.to_thread(self._remove, self._unused(plan))

    def _take_over(self, plan: Plan, outcome: Outcome) -> None:
        shelf = self._engine.shelf
        self._engine.journal.replace_sealed(outcome.base, plan.end)
        shelf.move(outcome.live, outcome.others, plan.end)
        for marker in outcome.archived:
            shelf.archive(marker)
        log.info(
            "compacted %d files into %s, %d sessions archived",
            len(plan.files),
            outcome.base.path.name,
            len(outcome.archived),
        )

    def _forget_old(self) -> None:
        engine = self._engine
        oldest = self._oldest()
        for session_id, known in list(engine.shelf.retired.items()):
            # Not what has records in the base or in sealed files: those still say it is there.
            if known.at is not None and known.at < oldest and session_id in engine.shelf.archived:
                engine.shelf.forget(session_id)
                engine.book.sessions.forget(session_id, known.key_sha256)

    def _unused(self, plan: Plan) -> list[Path]:
        """Files that the new base stands for, and archives of which nothing is wanted any more."""
        wanted = {marker.archive for marker in self._engine.shelf.archived.values()}
        return [segment.path for segment in plan.files] + [
            path
            for number, path in segments.archives(self._folder)
            if number <= plan.number and number not in wanted
        ]

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as exc:  # the next start removes it
                log.warning("could not remove %s: %s", path, exc)

    async def close(self) -> None:
        """End a compaction that is going on; what it did is undone."""
        self._stop.set()
        if self._running is not None:
            await asyncio.wait({self._running})
        async with self._one_at_a_time:  # one that somebody asked for
            pass


def _payloads(where: list[Spot] | Stretch) -> Iterator[bytes]:
    if not isinstance(where, Stretch):
        yield from segments.read(where)
        return
    with where.path.open("rb") as file:
        file.seek(where.offset)
        read = 0
        for end, payload in segments.records(file):
            yield payload
            read = end
            if read >= where.length:
                break
    if read != where.length:
        raise JournalError(f"{where.path} is damaged after byte {where.offset + read}")


def _rebuilt(where: list[Spot] | Stretch) -> Book:
    book = Book()
    try:
        for payload in _payloads(where):
            book.apply(records.decoder.decode(payload), 0.0)
    except (msgspec.DecodeError, NotFound, LookupError) as exc:
        raise JournalError(f"the journal says what cannot have happened: {exc}") from exc
    for call in book.calls.values():
        if call.state is State.ANSWERED:  # nobody waits for a call that is not in memory
            call.move(Event.AGENT_LEFT)
    return book
