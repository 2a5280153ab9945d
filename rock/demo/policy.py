"""A stand-in for a model: it knows HumanEval's published solutions and spoils some on purpose.

It is a *scripted* policy, not a model, and says so wherever it appears. For each episode it draws,
from a seed, how it behaves: right at once, wrong and then right, or wrong to the end; so rewards
within a group differ and turns vary. What it returns is what a sampling engine would return: token
ids (a byte-level vocabulary: UTF-8 bytes, and 256 for "end of message"), and the true
log-probability of each token under this policy: log p of the drawn branch on the first token in
which the branches differ, 0.0 (certain) elsewhere.

The prompt's ids extend the parent's exact ids with the new messages, as a real worker should.
"""

from __future__ import annotations

import json
import math
import random
from itertools import takewhile
from typing import Any

import msgspec

from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    MessageTokens,
    Part,
    ToolCall,
    ToolFunction,
)
from rock.rollout.tasks.humaneval import Problem

END = 256
P_RIGHT = 0.4
P_RECOVER = 0.35
DONE = "solution.py is written."


class ScriptedSolver:
    """The policy: `async def (leases) -> completions`, for `rock.modelservice.client.worker.serve`."""

    def __init__(self, problems: list[Problem], *, seed: int, version: int = 1) -> None:
        self._problems = problems
        self._seed = seed
        self.version = version

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return [self.answer(lease) for lease in leases]

    def answer(self, lease: Lease) -> Completion:
        messages = [msgspec.json.decode(raw) for raw in lease.request.messages]
        problem = self._problem(messages)
        labels = lease.labels
        episode = f"{labels['task_id']}/{labels['index']}" if labels else lease.session_id
        draw = random.Random(f"{self._seed}/{episode}")
        right_at_once, recovers = draw.random() < P_RIGHT, draw.random() < P_RECOVER
        turn = sum(message["role"] == "assistant" for message in messages)
        right, wrong = _attempt(problem, spoiled=False), _attempt(problem, spoiled=True)
        if turn == 0:
            drawn, other, p = (
                (right, wrong, P_RIGHT) if right_at_once else (wrong, right, 1 - P_RIGHT)
            )
        elif turn == 1 and not right_at_once:
            done = _say(DONE)
            drawn, other, p = (right, done, P_RECOVER) if recovers else (done, right, 1 - P_RECOVER)
        else:
            drawn = other = _say(DONE)
            p = 1.0
        return self._completion(lease, messages, drawn, other, p)

    def _problem(self, messages: list[Any]) -> Problem:
        text = json.dumps(messages[1].get("content"), ensure_ascii=False)
        for problem in self._problems:
            if json.dumps(problem["prompt"].strip(), ensure_ascii=False)[1:-1] in text:
                return problem
        raise LookupError("the scripted policy knows only HumanEval's problems")

    def _completion(
        self,
        lease: Lease,
        messages: list[Any],
        drawn: AssistantMessage,
        other: AssistantMessage,
        p: float,
    ) -> Completion:
        ids, branch = _answer_ids(drawn), _answer_ids(other)
        logprobs = [0.0] * len(ids)
        if p < 1.0:
            at = sum(
                1
                for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, branch, strict=False))
            )
            logprobs[min(at, len(ids) - 1)] = math.log(p)
        parent = lease.parent
        known = list(parent.token_ids) if parent and parent.token_ids else []
        new = messages[parent.messages :] if parent and known else messages
        choice = Choice(
            message=drawn,
            finish_reason="tool_calls" if drawn.tool_calls else "stop",
            token_ids=ids,
            logprobs=logprobs,
            parts=_answer_parts(drawn),
        )
        return Completion(
            lease_id=lease.lease_id,
            choices=[choice],
            prompt_token_ids=known + [token for ids in _prompt_ids(new) for token in ids],
            prompt_parts=[
                MessageTokens(tokens=len(ids), message=place)
                for place, ids in enumerate(_prompt_ids(new), len(messages) - len(new))
            ],
            policy_version=self.version,
        )


def _say(text: str) -> AssistantMessage:
    return AssistantMessage(content=text)


def _attempt(problem: Problem, *, spoiled: bool) -> AssistantMessage:
    head, body = (
        problem["prompt"],
        "    return None\n" if spoiled else problem["canonical_solution"],
    )
    command = f"cat > solution.py <<'END_OF_FILE'\n{head}{body}\nEND_OF_FILE\n"
    command += "python3 -c 'import solution' && echo it imports"
    arguments = json.dumps({"command": command}, ensure_ascii=False)
    return AssistantMessage(
        content="Writing solution.py.",
        tool_calls=[ToolCall(function=ToolFunction(name="bash", arguments=arguments))],
    )


def _answer_ids(message: AssistantMessage) -> list[int]:
    """What was sampled after `assistant\\n`: the text, then the calls as JSON, then END."""
    return [*b"".join(_spelled(message)), END]


def _spelled(message: AssistantMessage) -> list[bytes]:
    """The bytes of its text, then of each call."""
    calls = [call.function for call in message.tool_calls or []]
    text = (message.content or "").encode()
    return [text, *(f"\n{call.name} {call.arguments}".encode() for call in calls)]


def _answer_parts(message: AssistantMessage) -> list[Part]:
    text, *calls = map(len, _spelled(message))
    content = [Part(tokens=text, kind="content")] if text else []
    made = [
        Part(tokens=count, kind="tool_call", tool_calls=[number])
        for number, count in enumerate(calls)
    ]
    return [*content, *made, Part(tokens=1, kind="markup")]


def _prompt_ids(messages: list[Any]) -> list[list[int]]:
    """Each new message in the byte vocabulary, and the head of the answer to come."""
    ids: list[list[int]] = []
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        ids.append([*f"{message['role']}\n{text}".encode(), END])
    return [*ids, list(b"assistant\n")]
