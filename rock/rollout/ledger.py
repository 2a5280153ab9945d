"""The ledger: the one truth about groups and episodes, as a file of lines that is only appended to.

Each line is one JSON event, on disk (fsync) before `append` returns. What is pending, leased, done
or consumed is never stored; `State` derives it by replaying the events, in order. A torn last line,
which a killed harness leaves, never happened and is cut; anything else that does not parse is a
`LedgerError` naming the line.

    group  →  started → ended [→ started → ended …]  per episode  →  published → consumed
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

from rock.errors import LedgerError
from rock.rollout.durable import sync_folder, write_all
from rock.rollout.outcome import OutcomeClass
from rock.sandbox.ending import to_the_end
from rock.secrets import redact

SCHEMA = 1


class LedgerEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of the lines. `at` is UTC, for people; nothing is computed from it."""

    at: str = ""


class RunOpened(LedgerEvent, frozen=True, tag="run", kw_only=True):
    """First line: whose ledger this is."""

    run_id: str
    schema: int = SCHEMA


class GroupPlanned(LedgerEvent, frozen=True, tag="group", kw_only=True):
    """A task got its group: `size` episodes, numbered 0..size-1 for good."""

    group_id: str
    task_id: str
    size: int
    task_digest: str


class AttemptStarted(LedgerEvent, frozen=True, tag="started", kw_only=True):
    """An episode is leased to an attempt; attempts count from 1."""

    group_id: str
    index: int
    attempt: int


class AttemptEnded(LedgerEvent, frozen=True, tag="ended", kw_only=True):
    """An attempt ended. `final` says that the episode is done with it."""

    group_id: str
    index: int
    attempt: int
    cls: OutcomeClass = msgspec.field(name="class")
    final: bool
    reward: float | None = None


class GroupPublished(LedgerEvent, frozen=True, tag="published", kw_only=True):
    """The complete group is in the outbox."""

    group_id: str


class GroupConsumed(LedgerEvent, frozen=True, tag="consumed", kw_only=True):
    """The trainer acknowledged the group."""

    group_id: str


Event: TypeAlias = (
    RunOpened | GroupPlanned | AttemptStarted | AttemptEnded | GroupPublished | GroupConsumed
)
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


@dataclass(slots=True)
class EpisodeState:
    """One place in a group."""

    attempts: int = 0
    failures: int = 0
    """Attempts that ended by themselves without a final outcome (a stopped harness is not one)."""
    running: bool = False
    final_attempt: int | None = None
    cls: OutcomeClass | None = None
    reward: float | None = None

    @property
    def status(self) -> str:
        """`pending`, `leased` or `done`."""
        if self.final_attempt is not None:
            return "done"
        return "leased" if self.running else "pending"


@dataclass(slots=True)
class GroupState:
    """One group: its episodes and what became of it."""

    plan: GroupPlanned
    episodes: list[EpisodeState]
    published: bool = False
    consumed: bool = False

    @property
    def done(self) -> int:
        """k of `size`: episodes with a final outcome."""
        return sum(episode.final_attempt is not None for episode in self.episodes)

    @property
    def complete(self) -> bool:
        return self.done == self.plan.size

    @property
    def status(self) -> str:
        """`pending`, `leased`, `k of n`, `complete`, `published` or `consumed`."""
        if self.consumed:
            return "consumed"
        if self.published:
            return "published"
        if self.complete:
            return "complete"
        if self.done:
            return f"{self.done} of {self.plan.size}"
        return "leased" if any(episode.running for episode in self.episodes) else "pending"


@dataclass(slots=True)
class State:
    """Everything the ledger says, derived by `apply`."""

    run_id: str | None = None
    groups: dict[str, GroupState] = field(default_factory=dict[str, GroupState])

    def apply(self, event: Event) -> None:
        """Take one event in. Raises `LedgerError` for one that cannot follow what came before."""
        match event:
            case RunOpened():
                self._open(event)
            case GroupPlanned():
                self._refuse_if(event.group_id in self.groups, f"group {event.group_id} again")
                episodes = [EpisodeState() for _ in range(event.size)]
                self.groups[event.group_id] = GroupState(event, episodes)
            case AttemptStarted():
                episode = self._episode(event)
                started = episode.running or episode.final_attempt is not None
                self._refuse_if(started, f"{event.group_id} #{event.index} is not pending")
                self._refuse_if(event.attempt != episode.attempts + 1, "an attempt out of order")
                episode.attempts, episode.running = event.attempt, True
            case AttemptEnded():
                self._end(event)
            case GroupPublished():
                self._group(event.group_id).published = True
            case GroupConsumed():
                self._group(event.group_id).consumed = True

    def _open(self, event: RunOpened) -> None:
        if event.schema > SCHEMA:
            raise LedgerError(
                f"the ledger has schema {event.schema}; this rock reads up to {SCHEMA}"
            )
        self._refuse_if(self.run_id is not None, "a second run line")
        self.run_id = event.run_id

    def _end(self, event: AttemptEnded) -> None:
        episode = self._episode(event)
        current = episode.running and event.attempt == episode.attempts
        self._refuse_if(not current, f"the end of attempt {event.attempt}, which is not running")
        episode.running = False
        if event.cls not in (OutcomeClass.CANCELLED, OutcomeClass.INTERRUPTED):
            episode.failures += not event.final
        if event.final:
            episode.final_attempt = event.attempt
            episode.cls, episode.reward = event.cls, event.reward

    def _group(self, group_id: str) -> GroupState:
        self._refuse_if(group_id not in self.groups, f"an unknown group {group_id}")
        return self.groups[group_id]

    def _episode(self, event: AttemptStarted | AttemptEnded) -> EpisodeState:
        episodes = self._group(event.group_id).episodes
        self._refuse_if(not 0 <= event.index < len(episodes), f"episode {event.index}")
        return episodes[event.index]

    @staticmethod
    def _refuse_if(wrong: bool, what: str) -> None:
        if wrong:
            raise LedgerError(f"the ledger contradicts itself: {what}")

    def interrupted(self) -> Iterator[tuple[GroupState, int]]:
        """Attempts that started and never ended: the harness died in them."""
        for group in self.groups.values():
            for index, episode in enumerate(group.episodes):
                if episode.running:
                    yield group, index


class Ledger:
    """The open file and the state it adds up to. One writer; appends are durable on return."""

    def __init__(self, path: Path, state: State, fd: int) -> None:
        self.path = path
        self.state = state
        self._fd = fd
        self._lock = asyncio.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Replay `path` (made if it is not there), cut a torn last line, and go on appending."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise LedgerError(f"{path}: cannot be opened: {exc.strerror}") from exc
        try:
            data = path.read_bytes()
            state, good = replay(data, source=str(path))
            if good != len(data):
                os.ftruncate(fd, good)
            os.lseek(fd, 0, os.SEEK_END)
            sync_folder(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, state, fd)

    async def append(self, *events: Event) -> None:
        """Write `events` and wait until they are on disk; a cancellation waits for that too."""
        await to_the_end(self._append(events))

    async def _append(self, events: Iterable[Event]) -> None:
        async with self._lock:
            written = list(events)
            for event in written:
                self.state.apply(event)
            data = b"".join(msgspec.json.encode(event) + b"\n" for event in written)
            await asyncio.to_thread(self._write, redact(data))

    def _write(self, data: bytes) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError as exc:
            # Half a line with others after it could not be read again.
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, end, os.SEEK_SET)
            raise LedgerError(f"{self.path}: cannot be written: {exc.strerror}") from exc

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def replay(data: bytes, *, source: str) -> tuple[State, int]:
    """The state that `data` adds up to, and how many of its bytes are whole lines."""
    state = State()
    good = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:good].splitlines(), 1):
        try:
            state.apply(_DECODER.decode(line))
        except msgspec.DecodeError as exc:
            raise LedgerError(f"{source}:{number}: not a ledger line: {exc}") from exc
        except LedgerError as exc:
            raise LedgerError(f"{source}:{number}: {exc}") from exc
    if state.groups and state.run_id is None:
        raise LedgerError(f"{source}:1: expected the run line first")
    return state, good
