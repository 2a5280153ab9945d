"""The session table: who may call the model, with what limits, and how many calls came of it.

A key is the only secret and is handed out once; the table, like the journal, keeps its SHA-256.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rock.errors import (
    ContextLengthExceeded,
    NotFound,
    RockError,
    SessionClosed,
    Unauthorized,
    shown,
)
from rock.modelservice.states import State
from rock.modelservice.wire import CloseReason, LimitName, SessionSpec, Usage
from rock.types import Labels, PolicyVersion, SessionId, SessionKey, WorkerId


def new_key() -> SessionKey:
    """256 random bits; safe in a URL path and in a header."""
    return SessionKey(secrets.token_urlsafe(32))


def new_id(prefix: str = "s") -> SessionId:
    return SessionId(f"{prefix}{secrets.token_hex(6)}")


def key_hash(key: str) -> bytes:
    # Keys are random, so a plain hash cannot be guessed back.
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Session:
    """One agent's right to call the model."""

    __slots__ = (
        "arrival",
        "calls",
        "close_reason",
        "closed_at",
        "completion_tokens",
        "counts",
        "first_sampled_version",
        "id",
        "key_sha256",
        "last_call_at",
        "limit",
        "opened_at",
        "priority",
        "prompt_tokens",
        "restarted",
        "spec",
        "totals",
        "worker",
    )

    def __init__(
        self,
        id: SessionId,
        spec: SessionSpec,
        *,
        arrival: int = 0,
        now: float = 0.0,
        totals: dict[State, int] | None = None,
    ) -> None:
        self.id = id
        self.spec = spec
        self.priority = _number(spec.labels.get("priority", "0"))
        """The label `priority` as a number; 0 if it is missing or none."""
        self.arrival = arrival
        """Place in the order in which sessions were opened."""
        self.opened_at = now
        self.last_call_at: float | None = None
        self.close_reason: CloseReason | None = None
        self.key_sha256 = b""
        self.closed_at: float | None = None
        """In seconds since 1970."""
        self.limit: LimitName | None = None
        """Which limit closed it, if one did."""
        self.restarted = False
        """A process ended while the session was open, and with it every connection."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Both over all answers that said how many they had."""
        self.worker: WorkerId | None = None
        """Who was handed a call of this session last, and so has its prefix."""
        self.calls = 0
        """Calls ever made; retries that re-attached do not count."""
        self.counts: dict[State, int] = dict.fromkeys(State, 0)
        """Calls by the state they are in."""
        self.totals = totals if totals is not None else dict.fromkeys(State, 0)
        """The same over all sessions of a table."""
        self.first_sampled_version: PolicyVersion | None = None

    @property
    def open(self) -> bool:
        return self.close_reason is None

    @property
    def labels(self) -> Labels:
        return self.spec.labels

    @property
    def active_at(self) -> float:
        """When its agent was last heard of."""
        return self.opened_at if self.last_call_at is None else self.last_call_at

    @property
    def parked(self) -> int:
        return self.counts[State.QUEUED] + self.counts[State.LEASED]

    def count(self, before: State | None, after: State) -> None:
        """A call came to be in state `after`; it was in `before`, or is new."""
        counts, totals = self.counts, self.totals
        if before is not None:
            counts[before] -= 1
            totals[before] -= 1
        counts[after] += 1
        totals[after] += 1

    def use(self, usage: Usage | None) -> None:
        """An answer came; one that does not say what it used counts as nothing."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens

    def stale_at(self, version: PolicyVersion | None, bound: int | None) -> bool:
        """Whether a worker with `version` is too far ahead of the session's first sampled tokens."""
        first = self.first_sampled_version
        if version is None or bound is None or first is None:
            return False
        return version - first > bound


def _number(label: str) -> int:
    try:
        return int(label)
    except ValueError:
        return 0


_SAID: dict[str, str] = {
    "max_calls": "{bound} calls",
    "max_prompt_tokens": "{bound} prompt tokens",
    "max_completion_tokens": "{bound} completion tokens",
    "max_wall_seconds": "{bound} seconds",
}


class Over(NamedTuple):
    """Why a session is closed."""

    reason: CloseReason
    limit: LimitName | None = None
    bound: float | None = None
    """How much of the limit there was."""

    def refusal(self) -> RockError:
        """What its agent hears."""
        if self.reason != "limit":
            return SessionClosed(f"this session is closed: {self.reason}")
        said = _SAID[self.limit or "max_calls"].format(bound=self.bound)
        return ContextLengthExceeded(
            "This model's maximum context length is used up: "
            f"the session's limit of {said} is reached."
        )


class Sessions:
    """Every session of the service, by id and by key."""

    def __init__(self) -> None:
        self._by_id: dict[SessionId, Session] = {}
        self._by_key: dict[bytes, Session | SessionId] = {}
        self._retired: dict[SessionId, Over] = {}
        """Closed sessions that are no longer in memory."""
        self._added = 0
        self.open_count = 0
        self.totals: dict[State, int] = dict.fromkeys(State, 0)
        """Calls of all sessions by state."""

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())

    def add(self, id: SessionId, key_sha256: bytes, spec: SessionSpec, *, now: float) -> Session:
        session = Session(id, spec, arrival=self._added, now=now, totals=self.totals)
        session.key_sha256 = key_sha256
        self._added += 1
        self._by_id[id] = session
        self._by_key[key_sha256] = session
        self.open_count += 1
        return session

    def __contains__(self, session_id: str) -> bool:
        return SessionId(session_id) in self._by_id

    def get(self, session_id: str) -> Session:
        """Raises `NotFound`, and what an agent hears for a session that is out of memory."""
        session = self._by_id.get(SessionId(session_id))
        if session is None:
            self.check_retired(session_id)
            raise NotFound(f"there is no session {shown(session_id)}")
        return session

    def with_key(self, key: str) -> Session:
        """Raises `Unauthorized`."""
        # A lookup by hash: how long it takes says nothing about how much of a key was right.
        session = self._by_key.get(key_hash(key))
        if session is None:
            raise Unauthorized("this key opens no session of this service")
        if not isinstance(session, Session):
            self.check_retired(session)
            raise Unauthorized("this key opens no session of this service any more")
        return session

    def check_retired(self, session_id: str) -> None:
        """Raises what an agent hears if the session is closed and out of memory."""
        over = self._retired.get(SessionId(session_id))
        if over is not None:
            raise over.refusal()

    def retire(self, session_id: str, key_sha256: bytes, over: Over) -> None:
        """A closed session is no longer in memory; its key still says that it is closed."""
        gone = SessionId(session_id)
        self._by_id.pop(gone, None)
        self._by_key[key_sha256] = gone
        self._retired[gone] = over

    def count(self, counts: Mapping[State, int]) -> None:
        """Calls of a session that was never in memory in this run."""
        for state, count in counts.items():
            self.totals[state] += count

    def forget(self, session_id: str, key_sha256: bytes) -> None:
        """A retired session is gone from the disk too: its key opens nothing."""
        self._retired.pop(SessionId(session_id), None)
        self._by_key.pop(key_sha256, None)

    def close(
        self,
        session: Session,
        reason: CloseReason,
        limit: LimitName | None = None,
        *,
        at: float | None = None,
    ) -> None:
        """The first reason stands."""
        if session.close_reason is None:
            session.close_reason = reason
            session.limit = limit
            session.closed_at = at
            self.open_count -= 1
