"""A policy that plays a script: for tests, demonstrations and trying things without a model.

    ScriptedPolicy(["let me look", tool_call("bash", command="ls"), "done"])   turn by turn
    ScriptedPolicy(lambda lease: ...)                                          decided per call

It speaks in *byte tokens*: the ids of a message are the bytes of its JSON and an end mark, a prompt
extends its parent's exact ids by the messages that are new, and log-probabilities are made up but
fixed. So everything downstream of a real engine (rows, masks, versions) can be exercised; nothing
is meant to be learned from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw, Struct

from rock.errors import CallFailed
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    Completion,
    Lease,
    ToolCall,
    ToolFunction,
    Usage,
)

Line: TypeAlias = str | AssistantMessage | Exception
"""One answer: text, a whole message, or an error to raise."""
Script: TypeAlias = Callable[[Lease], Line | Awaitable[Line]] | Sequence[Line]

END_OF_MESSAGE = 256
"""The id after the last byte of a message."""


def tool_call(name: str, /, **arguments: Any) -> AssistantMessage:
    """A message that calls one tool."""
    text = msgspec.json.encode(arguments).decode()
    return AssistantMessage(tool_calls=[ToolCall(function=ToolFunction(name=name, arguments=text))])


def tokens_of(message: bytes) -> list[int]:
    """Byte tokens of one message's JSON."""
    return [*message, END_OF_MESSAGE]


def turn_of(lease: Lease) -> int:
    """How many assistant messages the prompt has: 0 on an agent's first call."""
    return sum(_role(message) == "assistant" for message in lease.request.messages)


class ScriptedPolicy:
    """Answers from a script. A list is read by turn, so it holds for any number of sessions at once;
    past its end the call fails."""

    def __init__(self, script: Script, *, policy_version: int | None = None) -> None:
        self._script = script
        self.policy_version = policy_version
        self.seen: list[Lease] = []
        """Every lease that came, in order."""

    async def __call__(self, leases: list[Lease]) -> list[Completion]:
        return [await self._answer(lease) for lease in leases]

    async def _answer(self, lease: Lease) -> Completion:
        self.seen.append(lease)
        line = await self._line(lease)
        if isinstance(line, Exception):
            raise line
        message = AssistantMessage(content=line) if isinstance(line, str) else line
        return complete(lease, [message] * lease.request.n, policy_version=self.policy_version)

    async def _line(self, lease: Lease) -> Line:
        if callable(self._script):
            line = self._script(lease)
            return await line if inspect.isawaitable(line) else line
        turn = turn_of(lease)
        if turn >= len(self._script):
            raise CallFailed(f"the script has {len(self._script)} lines; this is turn {turn + 1}")
        return self._script[turn]


def complete(
    lease: Lease, messages: Sequence[AssistantMessage], *, policy_version: int | None = None
) -> Completion:
    """An answer with byte tokens for everything."""
    prompt = _prompt(lease)
    choices = [_choice(message) for message in messages]
    sampled = sum(len(choice.token_ids or ()) for choice in choices)
    return Completion(
        lease_id=lease.lease_id,
        choices=choices,
        prompt_token_ids=prompt,
        policy_version=policy_version,
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=sampled),
    )


def _choice(message: AssistantMessage) -> Choice:
    ids = tokens_of(msgspec.json.encode(message))
    return Choice(
        message=message,
        finish_reason="tool_calls" if message.tool_calls else "stop",
        token_ids=ids,
        logprobs=[-(1 + token % 7) / 8 for token in ids],
    )


def _prompt(lease: Lease) -> list[int]:
    parent = lease.parent
    known = parent.token_ids if parent is not None else None
    if parent is None or known is None:
        return _tokens(lease.request.messages)
    return known + _tokens(lease.request.messages[parent.messages :])


def _tokens(messages: Sequence[Raw]) -> list[int]:
    return [token for message in messages for token in tokens_of(bytes(message))]


class _Head(Struct):
    role: str


def _role(message: Raw) -> str:
    return msgspec.json.decode(message, type=_Head).role
