"""Recorded calls, found again by what was asked. No I/O.

A call's key is its conversation in normalised form (`graph.messages.describe`), its tools and its `n`:
what clients change on the way, and in which order calls come, makes no difference. Its *words* are
what the model had said so far, which stay the same where tools answered something else.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

import msgspec
from msgspec import Raw, Struct

from rock.modelservice.graph.messages import describe
from rock.modelservice.wire import CanonicalRequest, Choice, Trajectory, TrajectoryCall, Usage


class Recorded(Struct, frozen=True):
    """One answered call of a recording."""

    session: int
    """Number of the recorded session."""
    choices: list[Choice]
    prompt_token_ids: list[int] | None
    policy_version: int | None
    usage: Usage | None


class Question(Struct, frozen=True):
    """What a request is looked up by."""

    key: bytes
    words: bytes
    turn: int
    """How many messages of the model it has."""
    prefixes: list[bytes]
    """A digest for each beginning of the conversation."""


def question(request: CanonicalRequest) -> Question:
    whole, words = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    turn = 0
    prefixes: list[bytes] = []
    for message in request.messages:
        described = describe(bytes(message))
        digest = b"%d," % described.digest
        whole.update(digest)
        prefixes.append(whole.digest())
        if described.role == "assistant":
            words.update(digest)
            turn += 1
    for tool in request.tools or ():
        whole.update(_one_spelling(tool))
    whole.update(b"n%d" % request.n)
    return Question(whole.digest(), words.digest(), turn, prefixes)


class Recording:
    """Calls of any number of sessions."""

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self.calls = self.sessions = 0
        self._by_key: dict[bytes, list[Recorded]] = defaultdict(list)
        self._by_words: dict[bytes, list[Recorded]] = defaultdict(list)
        self._by_turn: dict[int, list[Recorded]] = defaultdict(list)
        self._prefixes: set[bytes] = set()
        for trajectory in trajectories:
            self.add(trajectory)

    def add(self, trajectory: Trajectory) -> None:
        """Add a session's answered calls."""
        prompts = _prompts(trajectory)
        number, self.sessions = self.sessions, self.sessions + 1
        for call in trajectory.calls:
            if call.choices:
                self._add(number, call, prompts.get(call.call_id))

    def _add(self, session: int, call: TrajectoryCall, prompt: list[int] | None) -> None:
        choices = call.sampled or call.choices
        recorded = Recorded(session, choices, prompt, call.policy_version, call.usage)
        asked = question(call.request)
        self._by_key[asked.key].append(recorded)
        self._by_words[asked.words].append(recorded)
        self._by_turn[asked.turn].append(recorded)
        self._prefixes.update(asked.prefixes)
        self.calls += 1

    def same(self, asked: Question) -> list[Recorded]:
        """Calls that asked this."""
        return self._by_key.get(asked.key, [])

    def alike(self, asked: Question) -> list[Recorded]:
        """Calls in which the model had said the same."""
        return self._by_words.get(asked.words, []) if asked.turn else []

    def at_turn(self, turn: int) -> list[Recorded]:
        return self._by_turn.get(turn, [])

    def known_messages(self, asked: Question) -> int:
        """How many leading messages some recorded call shares."""
        known = 0
        for digest in asked.prefixes:
            if digest not in self._prefixes:
                break
            known += 1
        return known


def _prompts(trajectory: Trajectory) -> dict[str, list[int]]:
    """The exact prompt of each call that has tokens: what stands before its answer in a row."""
    found: dict[str, list[int]] = {}
    for row in trajectory.rows:
        for span in row.spans:
            if span.kind == "sampled" and span.call_id not in found:
                found[span.call_id] = row.token_ids[: span.start]
    return found


def _one_spelling(tool: Raw) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(tool), order="sorted")
    except (msgspec.DecodeError, RecursionError):
        return bytes(tool)
