"""Does a session grow with what is new in it? Memory and journal of long conversations.

    python benchmarks/graph.py [--turns 200] [--context 100000] [--sessions 8] [--anew] [--json] [--check]

Each session is a tool-using agent whose context grows to `--context` tokens in `--turns` turns; every
request re-sends the whole history, and the worker gives the whole prompt's ids, as without deltas.
*raw* is what is new: each message once, 4 bytes per token id and per sampled log-probability.
*quadratic* is what storing each call as it was sent would take. Memory is what the process grows by
per session, after the sessions' calls are over; *trajectory* is the file that an episode leaves in its
run directory. With `--anew` the worker tokenises each last answer anew, so that each call is a chain of
its own. `--check` fails above the bounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from rock.modelservice.graph.stored import encode
from rock.modelservice.service.service import AgentRequest, ModelService, ServiceConfig
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    Choice,
    ClaimRequest,
    CompleteRequest,
    Completion,
    SessionSpec,
    ToolCall,
    ToolFunction,
)
from rock.types import SessionId

CHARS_PER_TOKEN = 4
SAMPLED_SHARE = 0.2
MEMORY_BOUND, JOURNAL_BOUND, TRAJECTORY_BOUND = 4.0, 2.0, 4.0
"""Times the raw size; checked with `--check`."""
WORDS = [f"{word}{n}" for word in ("file", "line", "error", "test", "path") for n in range(200)]


@dataclass
class Result:
    turns: int
    context_tokens: int
    sessions: int
    raw_bytes: int
    """Per session, as the others."""
    memory_bytes: int
    journal_bytes: int
    quadratic_bytes: int
    trajectory_bytes: int
    trajectory_seconds: float
    """To make and encode it."""
    milliseconds_per_turn: float
    replay_seconds: float
    """For the whole journal."""
    memory_by_raw: float = 0.0
    journal_by_raw: float = 0.0
    trajectory_by_raw: float = 0.0
    quadratic_by_journal: float = 0.0


class Talk:
    """One session of the benchmark."""

    def __init__(self, seed: int, turns: int, context: int, *, anew: bool) -> None:
        self._anew = anew
        self._random = random.Random(seed)
        self._new = context // turns
        self.messages: list[Raw] = [self._message("system"), self._message("user")]
        self.ids = array("i")
        self.raw = sum(len(bytes(message)) for message in self.messages)
        self.quadratic = 0
        self.session_id = SessionId("")

    def _text(self, tokens: int) -> str:
        words = self._random.choices(WORDS, k=tokens)
        return " ".join(words)[: tokens * CHARS_PER_TOKEN]

    def _message(self, role: str, tokens: int = 400, **more: Any) -> Raw:
        return Raw(msgspec.json.encode({"role": role, "content": self._text(tokens), **more}))

    async def turn(self, service: ModelService, number: int) -> None:
        body = CanonicalRequest(model="m", messages=list(self.messages))
        self.quadratic += sum(len(bytes(message)) for message in self.messages)
        session = service.session(self.session_id)
        call = await service.submit(session, AgentRequest(dialect="chat", request=body, body=b""))
        (lease,) = (await service.claim(ClaimRequest("w", wait_seconds=0.0))).leases
        sampled = int(self._new * SAMPLED_SHARE)
        self._add(self._new - sampled, 4)
        prompt = self.ids.tolist()
        answer = self._random.choices(range(150_000), k=sampled)
        arguments = json.dumps({"command": self._text(sampled // 2)})
        tool = ToolCall(id=f"call_{number}", function=ToolFunction("run", arguments))
        message = AssistantMessage(content=self._text(sampled // 2), tool_calls=[tool])
        choice = Choice(message, token_ids=answer, logprobs=[-0.5] * sampled)
        done = Completion(lease.lease_id, [choice], prompt_token_ids=prompt, policy_version=1)
        (result,) = (await service.complete(CompleteRequest([done]))).results
        assert result.error is None
        assert result.untrainable is None
        await call.answer()
        service.sent(call)
        self.quadratic += 4 * len(prompt) + 8 * sampled
        self.ids.extend(answer)
        if self._anew:
            self.ids[-1] += 1
        self.raw += 8 * sampled
        said = msgspec.structs.asdict(message)
        echo = Raw(msgspec.json.encode({**said, "role": "assistant"}))
        found = self._message("tool", self._new - sampled, tool_call_id=f"call_{number}")
        self.messages += [echo, found]
        self.raw += len(bytes(echo)) + len(bytes(found))

    def _add(self, count: int, size: int) -> None:
        self.ids.extend(self._random.choices(range(150_000), k=count))
        self.raw += count * size


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def talk(service: ModelService, seed: int, turns: int, context: int, *, anew: bool) -> Talk:
    made = await service.create_session(SessionSpec())
    one = Talk(seed, turns, context, anew=anew)
    one.session_id = SessionId(made.session_id)
    for number in range(turns):
        await one.turn(service, number)
    one.messages.clear()
    one.ids = array("i")
    return one


async def measure(turns: int, context: int, sessions: int, folder: Path, *, anew: bool) -> Result:
    config = ServiceConfig.model_validate({"state_dir": folder})
    async with ModelService.open(config) as service:
        await talk(
            service, 0, turns, context, anew=anew
        )  # whatever is only once is there afterwards
        before, journal = resident_bytes(), directory_bytes(folder)
        start = time.perf_counter()
        talks = [await talk(service, 1 + n, turns, context, anew=anew) for n in range(sessions)]
        seconds = time.perf_counter() - start
        memory = resident_bytes() - before
        journal = directory_bytes(folder) - journal
        start = time.perf_counter()
        trajectory = len(encode(service.trajectory(talks[0].session_id)))
        made = time.perf_counter() - start
    start = time.perf_counter()
    async with ModelService.open(config):
        replay = time.perf_counter() - start
    raw = sum(one.raw for one in talks) // sessions
    quadratic = sum(one.quadratic for one in talks) // sessions
    return Result(
        turns=turns,
        context_tokens=context,
        sessions=sessions,
        raw_bytes=raw,
        memory_bytes=memory // sessions,
        journal_bytes=journal // sessions,
        quadratic_bytes=quadratic,
        trajectory_bytes=trajectory,
        trajectory_seconds=made,
        milliseconds_per_turn=1e3 * seconds / turns / sessions,
        replay_seconds=replay,
        memory_by_raw=memory / sessions / raw,
        journal_by_raw=journal / sessions / raw,
        trajectory_by_raw=trajectory / talks[0].raw,
        quadratic_by_journal=quadratic * sessions / journal,
    )


def directory_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a long session takes.")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--context", type=int, default=100_000, help="tokens at the end")
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--anew", action="store_true", help="re-tokenise each last answer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail above the bounds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rock-graph-") as folder:
        result = asyncio.run(
            measure(args.turns, args.context, args.sessions, Path(folder), anew=args.anew)
        )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        print(f"{result.turns} turns to {result.context_tokens} tokens, per session:")
        print(f"  raw        {result.raw_bytes:>14,} bytes")
        print(f"  memory     {result.memory_bytes:>14,} bytes  {result.memory_by_raw:.2f} x raw")
        print(f"  journal    {result.journal_bytes:>14,} bytes  {result.journal_by_raw:.2f} x raw")
        size, ratio = result.trajectory_bytes, result.trajectory_by_raw
        print(
            f"  trajectory {size:>14,} bytes  {ratio:.2f} x raw, in {result.trajectory_seconds:.2f} s"
        )
        print(
            f"  quadratic  {result.quadratic_bytes:>14,} bytes  "
            f"{result.quadratic_by_journal:.0f} x the journal"
        )
        print(
            f"  {result.milliseconds_per_turn:.2f} ms per turn, replay {result.replay_seconds:.2f} s"
        )
    bounds = {
        "memory": (result.memory_by_raw, MEMORY_BOUND),
        "journal": (result.journal_by_raw, JOURNAL_BOUND),
        "trajectory": (result.trajectory_by_raw, TRAJECTORY_BOUND),
    }
    over = [
        f"{name}: {found:.2f} x raw, above {bound}"
        for name, (found, bound) in bounds.items()
        if found > bound
    ]
    if args.check and over:
        sys.exit("; ".join(over))


if __name__ == "__main__":
    main()
