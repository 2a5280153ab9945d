"""Where the journal has the records of each session, so that a closed one need not stay in memory.

Live sessions are in the book as well; of a session that was put out of memory (`retire`) only its
places are kept, and its calls are rebuilt from them when somebody asks. Compaction moves the records
of retired sessions into archives, of which one marker is left. No I/O.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from msgspec import Struct

from rock.modelservice.journal import records, segments
from rock.modelservice.journal.segments import Segment, Spot
from rock.modelservice.sessions import Over
from rock.modelservice.states import State


class Retired(Struct, frozen=True):
    """What is known of a closed session without reading it."""

    key_sha256: bytes
    over: Over
    at: float | None
    """When it was closed, in seconds since 1970."""
    counts: dict[State, int]
    """Its calls, by state."""


class Stretch(Struct, frozen=True):
    """A session's records in an archive, one after the other."""

    path: Path
    offset: int
    length: int


class Shelf:
    """Places of records, by session and by group."""

    def __init__(self) -> None:
        self.places: defaultdict[str, array[int]] = defaultdict(_no_places)
        self.retired: dict[str, Retired] = {}
        self.archived: dict[str, records.SessionArchived] = {}
        self.groups: dict[str, int] = {}
        """Where each group that is not acknowledged was published."""
        self.group_leases: dict[str, int] = {}
        """Where each of these was last handed out, in its last revision."""
        self.boots = array("Q")
        self.policy: int | None = None
        """Where the policy was last changed."""
        self.replaced = array("Q")
        """Where the records of groups and of the policy are that stand no longer."""

    def __contains__(self, session_id: str) -> bool:
        """Whether a session is out of memory and can be rebuilt."""
        return session_id in self.retired

    def index(self, record: records.Record, place: int) -> None:
        """A record was, or is about to be, written at `place`."""
        session_id = records.session_of(record)
        if session_id is not None and not isinstance(record, records.SessionArchived):
            self.add(session_id, place)
            return
        match record:
            case records.Booted():
                self.boots.append(place)
            case records.PolicyChanged():
                self._replace(self.policy)
                self.policy = place
            case records.GroupPublished():
                self._replace(self.groups.pop(record.group_id, None))
                self._replace(self.group_leases.pop(record.group_id, None))
                if (
                    bytes(record.group) != b"null"
                ):  # what compaction writes before an acknowledgement
                    self.groups[record.group_id] = place  # a later revision stands
            case records.GroupLeased():
                self._replace(self.group_leases.get(record.group_id))
                self.group_leases[record.group_id] = place
            case records.GroupAcknowledged():
                self._replace(self.groups.pop(record.group_id, None))
                self._replace(self.group_leases.pop(record.group_id, None))
            case records.SessionArchived():
                self.archive(record)
            case records.InterceptorSet() | records.InterceptorRemoved():
                pass  # few and small: compaction writes those that stand anew
            case _:
                pass

    def add(self, session_id: str, place: int) -> None:
        """`index` for a record that is known to be about a session or one of its calls."""
        self.places[session_id].append(place)

    def _replace(self, place: int | None) -> None:
        if place is not None:
            self.replaced.append(place)

    def archive(self, marker: records.SessionArchived) -> None:
        """The session is in an archive now, and nowhere else."""
        self.places.pop(marker.session, None)
        self.archived[marker.session] = marker
        self.retired[marker.session] = Retired(
            marker.key_sha256,
            Over(marker.reason, marker.limit, marker.bound),
            marker.at,
            marker.counts,
        )

    def forget(self, session_id: str) -> Retired:
        """Nobody can ask for a retired session any more."""
        self.places.pop(session_id, None)
        self.archived.pop(session_id, None)
        return self.retired.pop(session_id)

    def share_over(self) -> float:
        """Which part of the records outside archives is of retired sessions, or replaced, from 0 to 1:
        what a compaction takes out of the base. O(sessions outside archives)."""
        sizes = {session_id: len(places) for session_id, places in self.places.items()}
        over = sum(size for session_id, size in sizes.items() if session_id in self.retired)
        over += len(self.replaced)
        standing = len(self.groups) + len(self.group_leases)
        return over / max(1, sum(sizes.values()) + standing + len(self.replaced))

    def outlived(self, oldest: float, share: float) -> bool:
        """Whether that share of the archived sessions was closed before `oldest`, in seconds since 1970:
        by the one that stands there, as they were archived in about that order."""
        last = max(0, math.ceil(share * len(self.archived)) - 1)
        marker = next(islice(self.archived.values(), last, None), None)
        return marker is not None and marker.at is not None and marker.at < oldest

    def with_boots(self, places: array[int]) -> array[int]:
        """A session's records and the restarts between them, which are part of its story."""
        if not places:
            return places
        low = bisect_right(self.boots, places[0])
        high = bisect_left(self.boots, places[-1])
        return array("Q", sorted([*places, *self.boots[low:high]])) if low < high else places

    def locate(self, session_id: str, files: list[Segment], folder: Path) -> list[Spot] | Stretch:
        """Where the records of a session are at this moment."""
        marker = self.archived.get(session_id)
        if marker is None:
            return segments.spots(files, self.with_boots(self.places[session_id]))
        path = segments.archive_path(folder, marker.archive)
        return Stretch(path, marker.offset, marker.length)

    def move(self, moved: Mapping[str, array[int]], others: Mapping[str, int], until: int) -> None:
        """Records before `until` have new places: `moved` by session, `others` by name."""
        boots = [place for name, place in others.items() if name.startswith("boot ")]
        self.boots = array("Q", sorted(boots)) + self.boots[bisect_left(self.boots, until) :]
        self.replaced = array("Q", (place for place in self.replaced if place >= until))
        if self.policy is not None and "policy" in others:
            if self.policy < until:
                self.policy = others["policy"]
            else:  # changed meanwhile
                self._replace(others["policy"])
        for name, place in others.items():
            kind, _, of = name.partition(" ")
            known = {"group": self.groups, "group-lease": self.group_leases}.get(kind)
            if known is None:
                continue
            if of in known and known[of] < until:
                known[of] = place
            else:  # acknowledged or published anew meanwhile
                self._replace(place)
        for session_id, fresh in moved.items():
            old = self.places.get(session_id)
            if old is not None:
                self.places[session_id] = fresh + old[bisect_left(old, until) :]


def _no_places() -> array[int]:
    return array("Q")
