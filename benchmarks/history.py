"""Conversations that grow to 100,000 tokens: does a turn cost what is new in it?

Every session asks 30 times and its body grows to 400 KB, as an agent's history does; all sessions go
turn by turn together, so that the CPU of each turn is known. Before and after each turn the same
bodies are sent with an Idempotency-Key that was used for the first turn, and refused: what that costs
is reading the body (HTTP, JSON, the checks of each message, the comparison with what is known),
which no server that is sent the whole history can avoid. What is left is the cost of the turn itself.
Both, because who comes first finds cold caches, small socket buffers and no memory to reuse, and the
larger the body the more of that: with only the one after, part of reading counts as the turn's.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from load import Rounds, post, rounds
from proc import cpu_seconds, pin, resident_bytes
from side import SERVER_CORE
from targets import PATH, rock_service, trainer
from trainer import ANSWER

from rock.modelservice.client.client import AdminClient

TURNS = 30
BODY_BYTES = 400_000
REPEATS = 5
"""A round is some ten milliseconds of CPU, which others on the machine easily double."""
ROUND_SECONDS = 60.0
EARLY, LATE = slice(4, 10), slice(24, 30)


@dataclass(frozen=True)
class Turn:
    turn: int
    body_bytes: int
    cpu_us: float
    """Of the service, per call."""
    read_cpu_us: float
    """Of the service, for a request with the same body that is refused once it is read: the mean of
    one before and one after; 0 for the first turn."""
    per_second: float


@dataclass(frozen=True)
class History:
    sessions: int
    turns: list[Turn]
    errors: int
    per_second: float
    """Over all turns, wall clock."""
    per_cpu_second: float
    """Turns per second of the service process's own CPU time: what one core gives."""
    early_cpu_us: float
    late_cpu_us: float
    """A turn without reading the body: medians of turns 5 to 10 and 25 to 30."""
    memory_bytes_per_session: float


class Talk:
    """One session's conversation as its client sends it."""

    def __init__(self, number: int, key: str) -> None:
        self._key = key
        said = json.dumps({"role": "assistant", "content": ANSWER}).encode()
        heard = "x" * (BODY_BYTES // TURNS - len(said) - 60)
        self._messages: list[bytes] = []
        self._said = said
        self._heard = [
            json.dumps(
                {"role": "user", "content": f"session {number} turn {turn} {heard}"}
            ).encode()
            for turn in range(TURNS)
        ]

    def request(self, turn: int) -> bytes:
        self._messages += [self._said] * (turn > 0) + [self._heard[turn]]
        return self._post(keyed=turn == 0)

    def refused(self) -> bytes:
        return self._post(keyed=True)

    def _post(self, *, keyed: bool) -> bytes:
        body = b'{"model":"policy","messages":[%b]}' % b", ".join(self._messages)
        more = "Idempotency-Key: first\r\n" if keyed else ""
        return post(PATH, body, key=self._key, headers=more)


async def growing(sessions: int, folder: Path) -> History:
    async with (
        rock_service(folder, "rock-history") as (target, service),
        trainer(service, "long"),
        AdminClient(service.control_url, service.keys.admin_key) as admin,
        rounds("127.0.0.1", target.port, sessions) as load,
    ):
        pin([target.pid], SERVER_CORE)
        memory = resident_bytes(target.pid)
        told: list[list[Turn]] = []
        errors = 0
        for _ in range(REPEATS):
            talks = [Talk(n, (await admin.create_session()).key) for n in range(sessions)]
            turns, bad = await _told(load, talks, target.pid)
            told.append(turns)
            errors += bad
        memory = (resident_bytes(target.pid) - memory) // REPEATS
    return _summed(sessions, [_median(same) for same in zip(*told, strict=True)], errors, memory)


async def _told(load: Rounds, talks: list[Talk], pid: int) -> tuple[list[Turn], int]:
    """(conversations from first turn to last, what was answered as it should not have been)"""
    turns: list[Turn] = []
    errors = 0
    for turn in range(TURNS):
        asked = [talk.request(turn) for talk in talks]
        refused = [talk.refused() for talk in talks] if turn > 0 else []
        before, bad_before = await _read(load, refused, pid)
        cpu, per_second, bad = await _round(load, asked, pid)
        after, bad_after = await _read(load, refused, pid)
        errors += bad_before + bad + bad_after
        turns.append(Turn(turn + 1, len(asked[0]), cpu, (before + after) / 2, per_second))
    return turns, errors


def _median(same: tuple[Turn, ...]) -> Turn:
    """One turn of all repeats. Its own cost is the median of what each repeat found."""
    cpu = statistics.median(turn.cpu_us for turn in same)
    own = statistics.median(turn.cpu_us - turn.read_cpu_us for turn in same)
    per_second = statistics.median(turn.per_second for turn in same)
    return Turn(same[0].turn, same[0].body_bytes, cpu, cpu - own, per_second)


async def _read(load: Rounds, refused: list[bytes], pid: int) -> tuple[float, int]:
    """(CPU microseconds per request, how many were not refused)"""
    if not refused:
        return 0.0, 0
    cpu, _, answered = await _round(load, refused, pid)
    return cpu, len(refused) - answered


async def _round(load: Rounds, requests: list[bytes], pid: int) -> tuple[float, float, int]:
    """(CPU microseconds per request, requests per second, replies that were no 200)"""
    before = cpu_seconds(pid)
    load.send(requests)
    result = await load.answered(seconds=ROUND_SECONDS)
    used = cpu_seconds(pid) - before
    done = len(result.latencies_seconds) + result.errors
    return 1e6 * used / len(requests), done / result.wall_seconds, result.errors


def _summed(sessions: int, turns: list[Turn], errors: int, memory: int) -> History:
    def own(part: slice) -> float:
        return statistics.median(turn.cpu_us - turn.read_cpu_us for turn in turns[part])

    return History(
        sessions=sessions,
        turns=turns,
        errors=errors,
        per_second=TURNS / sum(1 / turn.per_second for turn in turns),
        per_cpu_second=1e6 * TURNS / sum(turn.cpu_us for turn in turns),
        early_cpu_us=own(EARLY),
        late_cpu_us=own(LATE),
        memory_bytes_per_session=memory / sessions,
    )
