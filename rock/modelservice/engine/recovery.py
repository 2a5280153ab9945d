"""What a service finds in its journal when it starts: every record, in order, into book and shelf.

Sessions that are closed and in which nothing is open are put out of memory as soon as their last record
says so: a long journal of finished work does not have to fit.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rock.errors import JournalError, RockError
from rock.modelservice.engine.book import Book
from rock.modelservice.engine.outbox import Outbox, freshness_of
from rock.modelservice.journal import records
from rock.modelservice.journal.shelf import Retired, Shelf
from rock.modelservice.sessions import Session
from rock.modelservice.states import State
from rock.types import Clock


class Recovery:
    """Replays one journal. `clock` is this run's; `wall` is what it shares with earlier ones."""

    def __init__(
        self, state_dir: Path, book: Book, shelf: Shelf, *, clock: Clock, wall: Clock
    ) -> None:
        self._state_dir = state_dir
        self._book = book
        self._shelf = shelf
        self._clock = clock
        self._wall = wall
        self._groups: dict[str, records.GroupPublished | records.GroupAcknowledged] = {}
        """The last record of each."""
        self._group_leases: dict[str, records.GroupLeased] = {}

    def replay(self, payload: bytes, place: int) -> None:
        """Apply the record at `place`. Raises `JournalError` for what cannot have happened."""
        try:
            record = records.decoder.decode(payload)
            self._shelf.index(record, place)
            if isinstance(record, records.GroupLeased):
                self._group_leases[record.group_id] = record
            elif isinstance(record, records.GroupPublished | records.GroupAcknowledged):
                self._groups[record.group_id] = record  # after its acknowledgement comes nothing
                self._group_leases.pop(record.group_id, None)
            else:
                self._replay_session(record)
        except (msgspec.DecodeError, RecursionError, RockError, LookupError) as exc:
            raise JournalError(
                f"the journal in {self._state_dir} says what cannot have happened: {exc}"
            ) from exc

    def fill(self, outbox: Outbox) -> None:
        """Offer the groups that nobody has acknowledged. Whoever had one before the restart still has
        it, until it is handed out again."""
        for group_id, record in self._groups.items():
            if isinstance(record, records.GroupAcknowledged):
                outbox.publish(group_id, b"")
                outbox.restore(group_id, lease_id=record.lease_id)
                outbox.acknowledge(group_id, step=record.step)
                outbox.settle(group_id)
            else:
                outbox.publish(group_id, content := bytes(record.group), freshness_of(content))
                outbox.offer(group_id)
                if (lease := self._group_leases.get(group_id)) is not None:
                    outbox.restore(group_id, lease_id=lease.lease_id, delivery=lease.delivery)
        self._groups.clear()
        self._group_leases.clear()

    def retire(self, session: Session) -> None:
        """Put a closed session out of memory; its records stay where the shelf says."""
        over = self._book.retire(session)
        counts = {state: count for state, count in session.counts.items() if count}
        self._shelf.retired[session.id] = Retired(
            session.key_sha256, over, session.closed_at, counts
        )

    def _replay_session(self, record: records.Record) -> None:
        session_id = records.session_of(record)
        archived = isinstance(record, records.SessionArchived)
        if session_id is not None and session_id in self._shelf and not archived:
            return  # such as `sent`, after it was closed
        self._book.apply(record, self._moment(record))
        if session_id is not None and session_id in self._book.sessions:
            session = self._book.sessions.get(session_id)
            if not session.open and not session.parked and not session.counts[State.ANSWERED]:
                self.retire(session)  # at once: what is over is not read into memory

    def _moment(self, record: records.Record) -> float:
        """When a record was written, on this run's clock; now, if it does not say."""
        now = self._clock()
        if isinstance(record, records.SessionOpened | records.CallQueued) and record.at is not None:
            # A wall clock that was set back must not lengthen anything.
            return now - max(0.0, self._wall() - record.at)
        return now
