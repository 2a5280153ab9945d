"""Agents for fault tests: conversations over raw sockets that go on through whatever happens.

Each turn has a nonce, which is its last message; the agent asks until it has an answer or an error
that ends the call. How an agent lets its retries be known is its manner:

- `keyed`: an Idempotency-Key per turn; `counted`: the SDKs' retry count; `plain`: nothing, the
  service must see that the connection of the same request broke.

Keyed and counted agents also hang up by themselves now and then and come back. Every turn is kept
in a log, with what was heard, to be compared with the journal's and the workers'.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Literal

from tests.modelservice.faults.connection import Broken, Connection, Heard, chat, text_in, text_of

Manner = Literal["keyed", "counted", "plain"]
MANNERS: tuple[Manner, ...] = ("keyed", "counted", "plain")
TURNS_PER_CONVERSATION = 4
ANSWER_SECONDS = 240.0
"""A connection that lives and says nothing for so long has been forgotten."""
AGAIN_SECONDS = 0.05
ENDED = {502: "call_failed", 504: "deadline_exceeded"}
"""Errors that are the end of a call, with a reason."""
COME_BACK = (429, 503)


@dataclass
class Turn:
    """One question of one agent and everything that came of it."""

    nonce: str
    manner: Manner
    stream: bool
    attempts: int = 0
    answers: list[str] = field(default_factory=list[str])
    """Whole answers heard; never more than one."""
    pieces: list[str] = field(default_factory=list[str])
    """What streams said that broke off."""
    error: str | None = None
    """Why it ended without an answer."""
    surprises: list[str] = field(default_factory=list[str])
    """What must not happen: a refused connection, an unknown status, no end."""

    @property
    def over(self) -> bool:
        return bool(self.answers) or self.error is not None


@dataclass
class Agent:
    """One session's program."""

    name: str
    url: str
    session_id: str
    key: str
    manner: Manner
    rng: random.Random
    turns: list[Turn] = field(default_factory=list[Turn])
    waiting: bool = False
    """A request is out and not answered."""
    _connection: Connection | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until `stop` is set, then finish the turn."""
        messages: list[dict[str, str]] = []
        try:
            while not stop.is_set():
                if len(messages) >= 2 * TURNS_PER_CONVERSATION:
                    messages = []
                nonce = f"{self.name}:{len(self.turns)}:{self.rng.getrandbits(48):x}"
                turn = Turn(nonce, self.manner, stream=self.rng.random() < 0.4)
                self.turns.append(turn)
                messages.append({"role": "user", "content": nonce})
                await self._finish(turn, messages)
                if turn.answers:
                    messages.append({"role": "assistant", "content": turn.answers[0]})
                else:
                    messages = []
        finally:
            await self._hang_up()

    async def _finish(self, turn: Turn, messages: list[dict[str, str]]) -> None:
        while not turn.over:
            await self._try(turn, messages)

    async def _try(self, turn: Turn, messages: list[dict[str, str]]) -> None:
        headers: dict[str, str] = {}
        if self.manner == "keyed":
            headers["Idempotency-Key"] = turn.nonce
        elif self.manner == "counted":
            headers["x-stainless-retry-count"] = str(turn.attempts)
        turn.attempts += 1
        request = chat(messages, key=self.key, stream=turn.stream, headers=headers)
        self.waiting = True
        try:
            heard = await self._exchange(request)
            if heard is not None:
                self._take(turn, heard)
        except Broken as exc:
            turn.pieces.append(text_in(exc.got))
            await self._hang_up()
        except TimeoutError:
            turn.surprises.append(f"no answer on a live connection in {ANSWER_SECONDS} s")
            turn.error = "gave up"
            await self._hang_up()
        except OSError as exc:  # the listening socket outlives the service: never refused
            turn.surprises.append(f"could not connect: {exc}")
            await self._hang_up()
        finally:
            self.waiting = False
        if not turn.over:
            await asyncio.sleep(AGAIN_SECONDS * self.rng.random())

    async def _exchange(self, request: bytes) -> Heard | None:
        """One request and its reply; None if this agent hung up on it.

        Raises Broken, TimeoutError, or another OSError if it cannot connect.
        """
        if self._connection is None:
            self._connection = await Connection.open(self.url)
        if self.manner == "plain" or self.rng.random() > 0.05:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._connection.ask(request)
        self._connection.send(request)
        try:
            async with asyncio.timeout(self.rng.random() * 0.3):
                return await self._connection.hear()
        except TimeoutError:
            await self._hang_up()
            return None

    def _take(self, turn: Turn, heard: Heard) -> None:
        if heard.status == 200:
            turn.answers.append(text_of(heard))
        elif heard.status in ENDED:
            code = heard.json()["error"]["code"]
            if code != ENDED[heard.status]:
                turn.surprises.append(f"{heard.status} with code {code}")
            turn.error = heard.json()["error"]["message"]
        elif heard.status not in COME_BACK:
            turn.surprises.append(f"{heard.status}: {heard.body[:300]!r}")
            turn.error = "surprise"

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self.rng.random() < 0.5:
            connection.abort()
        await connection.close()
