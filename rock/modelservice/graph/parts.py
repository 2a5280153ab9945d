"""What runs of tokens are: checking what a worker says of its prompt and of its answer. No I/O.

Like ids and log-probabilities, what is not exactly right gets a reason and is never patched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rock.modelservice.wire.messages import Choice, MessageTokens


def reason_against_parts(choice: Choice) -> str | None:
    """Why an answer's parts cannot be right; None if they can, or there are none."""
    if choice.parts is None:
        return None
    covered, count = sum(part.tokens for part in choice.parts), len(choice.token_ids or ())
    if covered != count or any(part.tokens < 1 for part in choice.parts):
        return f"parts cover {covered} of {count} token_ids"
    calls = len(choice.message.tool_calls or ())
    named = [number for part in choice.parts for number in part.tool_calls]
    if named != sorted(set(named)) or not all(0 <= number < calls for number in named):
        return f"parts name tool calls {named} of {calls}"
    if any(bool(part.tool_calls) != (part.kind == "tool_call") for part in choice.parts):
        return "parts name tool calls where there are none"
    return None


def reason_against_prompt_parts(
    parts: Sequence[MessageTokens] | None, count: int, messages: int
) -> str | None:
    """The same for a prompt of `count` tokens that were sent, in a request of `messages` messages."""
    if parts is None:
        return None
    covered = sum(part.tokens for part in parts)
    if covered > count or any(part.tokens < 1 for part in parts):
        return f"prompt_parts cover {covered} of {count} prompt_token_ids"
    named = [part.message for part in parts if part.message is not None]
    if named != sorted(set(named)) or not all(0 <= place <= messages for place in named):
        return f"prompt_parts name messages {named} of {messages}"
    return None


def first(parts: Iterable[MessageTokens], count: int) -> list[MessageTokens]:
    """What the parts say about the first `count` tokens, of those that they are about."""
    found: list[MessageTokens] = []
    for part in parts:
        taken = min(part.tokens, count)
        if taken:
            found.append(MessageTokens(tokens=taken, message=part.message))
        count -= taken
    return found


def last(parts: Iterable[MessageTokens], count: int) -> tuple[MessageTokens, ...]:
    """What the parts say about the last `count` tokens; what they say nothing about comes first."""
    left = count
    found: list[MessageTokens] = []
    for part in reversed(list(parts)):
        taken = min(part.tokens, left)
        if taken:
            found.append(MessageTokens(tokens=taken, message=part.message))
        left -= taken
    if left:
        found.append(MessageTokens(tokens=left))
    return tuple(reversed(found))
