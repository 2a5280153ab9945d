"""A trainer's worker in a process of its own: samples with the small model, over the trainer API.

    python -m tests.e2e.tiny_model.worker CONTROL_URL TOKENIZER LOG     (key in ROCK_TEST_KEY)

A model with made-up weights writes no tool calls, so answers are guided: their frame is given, and
thoughts and arguments are sampled. Whatever chose a token, its recorded log-probability is the
model's. Some answers use a second policy version, one of them from its middle on. LOG gets a line
per answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rock.modelservice.client.worker import serve
from rock.modelservice.policies.sampling import Sampled, SamplingPolicy
from rock.modelservice.render import TokenRenderer
from rock.modelservice.wire import CanonicalRequest, VersionSpan
from tests.e2e.tiny_model.llama import Cache, forward, make_weights, torch

SWITCH_IN_ANSWER = 2
"""The answer in whose middle the weights change, counted from 0."""
TOOL_CALLS = {"main": 4, "helper": 2}
"""How many calls each agent's model makes before it says it is done."""
LETTERS = set("abcdefghijklmnopqrstuvwxyz")
Piece = str | int
"""Given text, or how many tokens to sample."""

CALL: list[Piece] = [
    "<think>\n",
    6,
    '\n</think>\n\n<tool_call>\n{"name": "run",  "arguments" : {"command" :"',
    5,
    '"}}\n</tool_call><|im_end|>',
]
DONE: list[Piece] = ["<think>\n", 5, "\n</think>\n\nDone: ", 4, "<|im_end|>"]


class GuidedEngine:
    """Answers one prompt at a time."""

    def __init__(self, renderer: TokenRenderer, log: Path) -> None:
        self._chat = renderer.chat
        self._counts = renderer.counts
        self._log = log
        self._answers = 0
        vocabulary = self._chat.tokenizer.get_vocab_size()
        self._weights = {version: make_weights(version, vocabulary) for version in (1, 2)}
        self._free = [
            number for number in range(vocabulary) if set(self._chat.decode([number])) <= LETTERS
        ]
        self._random = torch.Generator().manual_seed(7)

    async def sample(self, ids: Sequence[int], request: CanonicalRequest) -> list[Sampled]:
        calls = sum(b'"tool"' in bytes(message)[:16] for message in request.messages)
        agent = "helper" if b"helper" in bytes(request.messages[0]) else "main"
        pieces = CALL if calls < TOOL_CALLS[agent] else DONE
        sampled = self._answer(list(ids), pieces)
        self._answers += 1
        line = {
            "prompt_count": len(ids),
            "ids": sampled.ids,
            "logprobs": sampled.logprobs,
            "versions": [[run.tokens, run.policy_version] for run in sampled.version_spans],
            "prompts": dict(self._counts),
        }
        with self._log.open("a") as log:
            log.write(json.dumps(line) + "\n")
        return [sampled]

    def _answer(self, prompt: list[int], pieces: list[Piece]) -> Sampled:
        version = 1 if self._answers <= SWITCH_IN_ANSWER else 2
        cache: Cache = []
        last = forward(self._weights[version], prompt, cache)[-1]
        ids: list[int] = []
        logprobs: list[float] = []
        runs: list[VersionSpan] = []
        for number, piece in enumerate(pieces):
            if number == 2 and self._answers == SWITCH_IN_ANSWER:
                # New weights: what was said so far is computed anew with them.
                runs.append(VersionSpan(tokens=len(ids), policy_version=version))
                version, cache = 2, []
                last = forward(self._weights[version], prompt + ids, cache)[-1]
            wanted = self._chat.encode(piece) if isinstance(piece, str) else [None] * piece
            for given in wanted:
                token = self._draw(last) if given is None else given
                ids.append(token)
                logprobs.append(min(0.0, float(last[token])))
                last = forward(self._weights[version], [token], cache)[-1]
        told = sum(run.tokens for run in runs)
        runs.append(VersionSpan(tokens=len(ids) - told, policy_version=version))
        return Sampled(ids, logprobs, policy_version=version, version_spans=tuple(runs))

    def _draw(self, last: object) -> int:
        among = torch.softmax(torch.as_tensor(last)[self._free], dim=-1)
        return self._free[int(torch.multinomial(among, 1, generator=self._random))]


async def main() -> None:
    url, tokenizer, log = sys.argv[1:]
    renderer = TokenRenderer.load(tokenizer)
    policy = SamplingPolicy(GuidedEngine(renderer, Path(log)), renderer, "hermes")
    await serve(policy, url=url, key=os.environ["ROCK_TEST_KEY"], concurrency=1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        asyncio.run(main())
