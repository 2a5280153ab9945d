"""Answers from a recording, by what is asked and not by when: parallel calls and retries get theirs.

A session follows the recorded session that its first call found, so that n recorded attempts at one
task are replayed as n attempts and not as one. The same call, handed out again, gets the same answer;
the same question asked again gets the next one that was recorded, and the last one from then on.

Strict, an unknown question is a 400. Lenient, it is answered by a call in which the model had said the
same so far (only tools or the clock answered something else); else by the fallback, if there is one;
else by whatever was recorded at that turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Literal, Self

from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice.policies.recording import Question, Recorded, Recording, question
from rock.modelservice.policies.streamed import Speaker, Voice, entered
from rock.modelservice.wire import Choice, Completion, Lease

Mode = Literal["strict", "lenient"]
Answers = Callable[[list[Lease]], Awaitable[list[Completion]]]
REMEMBERED_CALLS = 100_000
REMEMBERED_SESSIONS = 100_000


class ReplayPolicy:
    """Use as `async with` if there is a `fallback` that wants it."""

    def __init__(
        self, recording: Recording, *, mode: Mode = "strict", fallback: Answers | None = None
    ) -> None:
        """`fallback` answers what a lenient replay does not know."""
        self._recording = recording
        self._mode: Mode = mode
        self._fallback = fallback
        self._given: OrderedDict[str, Completion] = OrderedDict()
        """By call."""
        self._follows: OrderedDict[str, _Follower] = OrderedDict()
        """By session."""
        self._followed: Counter[int] = Counter()
        """By recorded session."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await entered(self._stack, self._fallback)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return list(await asyncio.gather(*(self.speak(lease, None) for lease in leases)))

    async def speak(self, lease: Lease, voice: Voice | None) -> Completion:
        """Recorded answers come whole; a fallback may stream. Raises BadRequest for what is unknown."""
        found = self._given.get(lease.call_id)
        if found is not None:
            return replace(found, lease_id=lease.lease_id)
        asked = question(lease.request)
        completion = self._recorded(lease, asked)
        if completion is None and self._mode == "lenient" and self._fallback is not None:
            if voice is not None and isinstance(self._fallback, Speaker):
                return await self._fallback.speak(lease, voice)
            [completion] = await self._fallback([lease])
            return completion
        if completion is None and self._mode == "lenient":
            at_turn = self._recording.at_turn(asked.turn)
            completion = self._resembling(lease, b"turn %d" % asked.turn, at_turn)
        if completion is None:
            raise BadRequest(self._unknown(asked))
        self._given[lease.call_id] = completion
        if len(self._given) > REMEMBERED_CALLS:
            self._given.popitem(last=False)
        return completion

    def _recorded(self, lease: Lease, asked: Question) -> Completion | None:
        if (same := self._recording.same(asked)) and (
            recorded := self._next(lease, asked.key, same)
        ) is not None:
            return Completion(
                lease.lease_id,
                recorded.choices,
                prompt_token_ids=recorded.prompt_token_ids,
                policy_version=recorded.policy_version,
                usage=recorded.usage,
            )
        if self._mode == "strict":
            return None
        return self._resembling(lease, asked.words, self._recording.alike(asked))

    def _resembling(
        self, lease: Lease, name: bytes, candidates: Sequence[Recorded]
    ) -> Completion | None:
        """An answer to another question: its words without its tokens, which had another prompt."""
        enough = [one for one in candidates if len(one.choices) >= lease.request.n]
        recorded = self._next(lease, name, enough)
        if recorded is None:
            return None
        choices = [
            Choice(choice.message, choice.finish_reason)
            for choice in recorded.choices[: lease.request.n]
        ]
        return Completion(lease.lease_id, choices)

    def _next(self, lease: Lease, name: bytes, candidates: Sequence[Recorded]) -> Recorded | None:
        """The one of `candidates` that is this session's, or else the least followed."""
        if not candidates:
            return None
        follower = self._follower(lease.session_id)
        own = [one for one in candidates if one.session == follower.session]
        if not own:
            session = min({one.session for one in candidates}, key=self._crowd)
            own = [one for one in candidates if one.session == session]
            if follower.session is None:
                follower.session = session
                self._followed[session] += 1
        count = follower.asked[name]
        follower.asked[name] += 1
        return own[min(count, len(own) - 1)]

    def _crowd(self, session: int) -> tuple[int, int]:
        return self._followed[session], session

    def _follower(self, session_id: str) -> _Follower:
        follower = self._follows.setdefault(session_id, _Follower())
        if len(self._follows) > REMEMBERED_SESSIONS:
            self._follows.popitem(last=False)
        return follower

    def _unknown(self, asked: Question) -> str:
        known = self._recording.known_messages(asked)
        size = len(asked.prefixes)
        difference = (
            "all its messages are known, its tools or n are not"
            if known == size
            else f"messages[{known}] is the first that no recorded call has there"
        )
        return (
            f"replay: none of the {self._recording.calls} recorded calls of "
            f"{self._recording.sessions} sessions asks this (turn {asked.turn}, {size} messages): "
            f"{difference}"
        )


class _Follower:
    """What a session has been given so far."""

    __slots__ = ("asked", "session")

    def __init__(self) -> None:
        self.session: int | None = None
        self.asked: Counter[bytes] = Counter()
