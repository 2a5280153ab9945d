"""What a journal says about each call, read without the service's help, and held against the logs.

The reader knows the file's frame and the records' shapes and nothing else of the service; it walks
every call through the state table by itself.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rock.modelservice.graph import tokens
from rock.modelservice.journal import records
from rock.modelservice.states import ENDED_WITHOUT, Event, State, next_state

PREFIX_BYTES = 18


@dataclass
class Story:
    """One call as the journal tells it."""

    call: str
    session: str
    nonce: str
    idempotency_key: str | None
    state: State = State.QUEUED
    events: list[Event] = field(default_factory=list[Event])
    answered: records.CallAnswered | None = None
    reason: str | None = None
    leases: list[str] = field(default_factory=list[str])
    said: list[int] = field(default_factory=list[int])
    """Tokens of the spans that came before the answer, as far as they still count."""
    said_text: str = ""
    ever_said: set[int] = field(default_factory=set[int])
    dropped: set[int] = field(default_factory=set[int])
    """Of these, what an answer could leave out because no agent had read it."""
    read: bool = False
    """An agent was sent of the spans."""
    said_before: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """By lease: what was said when it was given, which its answer must begin with."""
    follows_unsent: bool = False
    """When it was asked, an earlier call for the same nonce had no answer sent and no end."""

    def move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        self.events.append(event)

    def lease(self, lease: str) -> None:
        if self.state is State.LEASED:
            self.move(Event.EXPIRE)  # or released: the next lease is what says so
        self.move(Event.CLAIM)
        assert lease not in self.leases, f"lease {lease} was given twice"
        self.leases.append(lease)
        self.said_before[lease] = list(self.said)

    def span(self, record: records.CallPartial | records.SpansDropped | records.SpansRead) -> None:
        match record:
            case records.CallPartial():
                self.say(record)
            case records.SpansRead():
                self.read = True
            case records.SpansDropped():
                self.drop()

    def say(self, record: records.CallPartial) -> None:
        assert self.state is State.LEASED, f"{self.call}: said while {self.state}"
        assert record.lease == self.leases[-1], f"{self.call}: said by an old lease"
        ids = tokens.unpack_ids(record.ids or b"")
        self.said += ids
        self.said_text += record.content
        self.ever_said.update(ids)

    def drop(self) -> None:
        assert not self.read, f"{self.call}: what an agent had read was dropped"
        self.dropped.update(self.said)
        self.said.clear()
        self.said_text = ""

    def answer(self, record: records.CallAnswered) -> None:
        assert self.answered is None, f"{self.call} was answered twice"
        assert record.lease == self.leases[-1], f"{self.call}: answered by an old lease"
        ids = tokens.unpack_ids(record.choices[0].packed_ids or b"")
        assert ids[: len(self.said)] == self.said, f"{self.call}: what was said is gone"
        self.move(Event.COMPLETE)
        self.answered = record

    def end(self, record: records.CallFailedRecord | records.CallMoved) -> None:
        self.move(record.event)
        if isinstance(record, records.CallFailedRecord):
            self.reason = record.message

    @property
    def sampled(self) -> set[int]:
        """The answer's tokens."""
        if self.answered is None:
            return set()
        return set(tokens.unpack_ids(self.answered.choices[0].packed_ids or b""))

    @property
    def text(self) -> str | None:
        return None if self.answered is None else self.answered.choices[0].message.content


def payloads(path: Path) -> Iterator[bytes]:
    """The records of a journal. Raises AssertionError for a damaged one."""
    content = path.read_bytes()
    at = 0
    while at < len(content):
        length, crc = int(content[at : at + 8], 16), int(content[at + 9 : at + 17], 16)
        payload = content[at + PREFIX_BYTES : at + PREFIX_BYTES + length]
        assert zlib.crc32(payload) == crc, f"bad record at byte {at}"
        at += PREFIX_BYTES + length + 1
        yield payload


def files_of(folder: Path) -> list[Path]:
    """The files that make up a journal, in order: the newest base, what was sealed since, the rest."""
    base = sorted(folder.glob("base-*.log"))[-1:]
    newest = int(base[0].name[5:13]) if base else 0
    sealed = [path for path in folder.glob("journal-*.log") if int(path.name[8:16]) > newest]
    return [*base, *sorted(sealed), folder / "journal.log"]


class Chronicle:
    """Every call of a journal, whichever files it has; none of its sessions may be archived."""

    def __init__(self, folder: Path) -> None:
        self.stories: dict[str, Story] = {}
        self.by_nonce: defaultdict[str, list[Story]] = defaultdict(list)
        self.boots = 0
        self._messages: defaultdict[str, _Messages] = defaultdict(_Messages)
        for path in files_of(folder):
            for number, payload in enumerate(payloads(path)):
                if number > 0:  # the first is the file's header
                    self._tell(records.decoder.decode(payload))

    def _tell(self, record: records.Record) -> None:
        match record:
            case records.Booted():
                self.boots += 1
                for story in self.stories.values():
                    if story.state is State.LEASED:
                        story.move(Event.RELEASE)
            case records.CallQueued():
                self._asked(record)
            case records.CallLeased():
                self.stories[record.call].lease(record.lease)
            case records.CallPartial() | records.SpansDropped() | records.SpansRead():
                self.stories[record.call].span(record)
            case records.CallAnswered():
                self.stories[record.call].answer(record)
            case records.CallFailedRecord() | records.CallMoved():
                self.stories[record.call].end(record)
            case _:
                pass

    def _asked(self, record: records.CallQueued) -> None:
        session = record.call.rpartition(".")[0]
        messages = self._messages[session]
        nonce = json.loads(messages.last(record))["content"]
        earlier = self.by_nonce[nonce]
        story = Story(record.call, session, nonce, record.idempotency_key)
        story.follows_unsent = any(
            Event.SENT not in one.events and one.state not in ENDED_WITHOUT for one in earlier
        )
        assert record.call not in self.stories, f"{record.call} was asked twice"
        self.stories[record.call] = story
        earlier.append(story)


class _Messages:
    """One session's messages, as the records number them."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []
        self._last: list[int] = [-1]
        """By node: the number of its message; node 0 is the root."""
        self._children: dict[tuple[int, int], int] = {}

    def last(self, record: records.CallQueued) -> bytes:
        """The last message of a request, which is added."""
        self._blobs.extend(bytes(blob) for blob in record.blobs)
        node = record.base
        for number in record.path:
            child = self._children.setdefault((node, number), len(self._last))
            if child == len(self._last):
                self._last.append(number)
            node = child
        return self._blobs[self._last[node]]


def worker_lines(logs: Iterable[Path]) -> list[dict[str, Any]]:
    """What all workers wrote."""
    return [json.loads(line) for log in logs for line in log.read_text().splitlines()]
