"""Do an answer's tokens spell its text? For workers and sessions that name their tokenizer.

The service reads tokenizers when it starts (setting `tokenizers`, extra `rock[tokenizers]`) and decodes
only what was sampled, in a thread: a long answer does not hold other agents up.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from rock.errors import BadRequest, ConfigError
from rock.modelservice.render import ChatTokenizer, load
from rock.modelservice.wire import AssistantMessage, Completion


class Spelling:
    """The tokenizers of one service, by name."""

    def __init__(self, given: Sequence[str]) -> None:
        """`given` are NAME=DIRECTORY. Raises `ConfigError` for what is no tokenizer."""
        self._known: dict[str, ChatTokenizer] = {}
        for item in given:
            name, equals, directory = item.partition("=")
            if not name or not equals:
                raise ConfigError(f"tokenizers: {item!r}; expected NAME=DIRECTORY")
            self._known[name] = load(Path(directory))

    def check_known(self, name: str) -> None:
        """Raises `BadRequest` for a tokenizer that the service was not started with."""
        if name not in self._known:
            known = ", ".join(self._known) or "none; see the setting `tokenizers`"
            raise BadRequest(
                f"tokenizer: {name!r} is not one of this service's: {known}", param="tokenizer"
            )

    def of(self, name: str | None) -> ChatTokenizer | None:
        """The tokenizer of that name; without one, the only one there is."""
        if name is None and len(self._known) == 1:
            return next(iter(self._known.values()))
        return None if name is None else self._known.get(name)

    async def reasons(
        self, completions: Sequence[Completion], named: Callable[[Completion], set[str]]
    ) -> Mapping[str, str]:
        """Lease id -> why the tokens of a completion are not its text; `named` says by which
        tokenizers it is checked. What has no ids is left to other checks."""
        if not self._known:
            return {}
        wanted = [
            (item, [self._known[name] for name in sorted(named(item)) if name in self._known])
            for item in completions
        ]
        if not any(tokenizers for _, tokenizers in wanted):
            return {}
        return await asyncio.to_thread(_reasons, wanted)


def _reasons(wanted: Sequence[tuple[Completion, list[ChatTokenizer]]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for item, tokenizers in wanted:
        for chat in tokenizers:
            for choice in item.choices:
                reason = reason_against_text(chat, choice.token_ids or (), choice.message)
                if reason is not None:
                    found[item.lease_id] = reason
    return found


def reason_against_text(
    chat: ChatTokenizer, ids: Sequence[int], message: AssistantMessage
) -> str | None:
    """Why the tokens cannot be this message; None if they can.

    A template decides how tool calls are written: as JSON, as JSON in a JSON text, or between tags. So
    texts, names, and the texts and whole numbers in arguments are looked for, with and without
    escapes, and space only where the tokenizer keeps it.
    """
    if not ids:
        return None
    try:
        decoded = chat.decode(ids)
    except OverflowError:
        return None  # ids that no tokenizer has: other checks refuse them
    text = _plain(chat, decoded)
    wanted = [("content", message.content), ("reasoning", message.reasoning_content)]
    wanted += [("tool name", call.function.name) for call in message.tool_calls or ()]
    for what, part in wanted:
        if part and _plain(chat, part.strip()) not in text:
            return f"decoded tokens without the message's {what}"
    values = [
        value for call in message.tool_calls or () for value in _values(call.function.arguments)
    ]
    if values:
        once = _unescaped(decoded)
        spelt = [text, *(_plain(chat, one) for one in (once, _unescaped(once)))]
        if not all(any(_plain(chat, value) in one for one in spelt) for value in values):
            return "decoded tokens without the message's tool arguments"
    return None


def _values(arguments: str) -> list[str]:
    """Texts and whole numbers in a tool call's arguments; all of them as one text if they are no JSON."""
    try:
        left: list[object] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return [arguments.strip()]
    found: list[str] = []
    while left:
        value = left.pop()
        if isinstance(value, str):
            found.append(value.strip())
        elif isinstance(value, list):
            left += cast("list[object]", value)
        elif isinstance(value, dict):
            left += cast("dict[str, object]", value).values()
        elif isinstance(value, int) and not isinstance(value, bool):
            found.append(str(value))  # fractions, true and null have several notations
    return found


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def _unescaped(text: str) -> str:
    """`text` with JSON's escapes (RFC 8259, section 7) taken away wherever they stand."""
    plain = _ESCAPE.sub(
        lambda one: chr(int(one[1], 16)) if one[1] else _SHORT.get(one[2], one[2]), text
    )
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _plain(chat: ChatTokenizer, text: str) -> str:
    return text if chat.keeps_space else "".join(text.split())
