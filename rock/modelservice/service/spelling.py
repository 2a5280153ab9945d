"""Do an answer's tokens spell its text? For workers and sessions that name their tokenizer.

The service reads tokenizers when it starts (setting `tokenizers`, extra `rock[tokenizers]`) and decodes
only what was sampled, in a thread: a long answer does not hold other agents up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

    A template decides how tool calls are written, so only texts and names are looked for, and space
    only where the tokenizer keeps it.
    """
    if not ids:
        return None
    try:
        text = _plain(chat, chat.decode(ids))
    except OverflowError:
        return None  # ids that no tokenizer has: other checks refuse them
    wanted = [("content", message.content), ("reasoning", message.reasoning_content)]
    wanted += [("tool name", call.function.name) for call in message.tool_calls or ()]
    for what, part in wanted:
        if part and _plain(chat, part.strip()) not in text:
            return f"decoded tokens without the message's {what}"
    return None


def _plain(chat: ChatTokenizer, text: str) -> str:
    return text if chat.keeps_space else "".join(text.split())
