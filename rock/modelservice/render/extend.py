"""Extend the exact tokens of a conversation by its new messages, and say how well that went.

What was sampled is never tokenised again: the parent's ids stay as they are, and only the text that
the template puts after its answer is tokenised and appended. To find that text, the conversation is
rendered with marks in place of the answers: what stands after the last mark is the end of the turn
and the new messages, whatever the model said and however its client spelled it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rock.errors import BadRequest
from rock.modelservice.render.parts import message_ends, prompt_parts
from rock.modelservice.render.talk import Mark, Talk, marked
from rock.modelservice.render.tokenizer import ChatTokenizer
from rock.modelservice.wire import MessageTokens

Status = Literal["root", "clean", "realigned", "fork"]
Cause = Literal["template", "request", "answer", "stop_token", "no_parent_tokens"]
SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids to sample from, and how they relate to the parent's.

    `root`: there is no parent. `clean`: the parent's ids go on, and the text is what the template
    writes for these messages. `realigned`: the parent's ids go on, though the template would write
    an answer in them otherwise; the model sees what it said. `fork`: the parent's ids cannot go on;
    everything was rendered anew, a new chain.

    Causes: `template`, it writes earlier messages otherwise once others follow; `request`, its
    earlier messages or tools are not the parent's; `answer`, the answer came back in other words;
    `stop_token`, the model ended its turn as the template does not; `no_parent_tokens`.
    """

    ids: list[int]
    status: Status
    cause: Cause | None = None
    detail: str = ""
    """The difference, for people."""
    new_text: str = ""
    """The text that was tokenised for this prompt: what is new in it, or all of it."""
    parts: list[MessageTokens] | None = None
    """Which of the new tokens are which message."""


@dataclass(frozen=True, slots=True)
class _Marks:
    """A conversation rendered with marks: what the template writes between the answers."""

    before: list[str]
    """The text before each answer; the first starts the conversation."""
    after: str
    """The text after the last one."""


class _CannotExtend(Exception):
    """Why the parent's tokens cannot go on. Never leaves this module."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause: Cause = cause
        self.detail = detail


def root(chat: ChatTokenizer, talk: Talk) -> Prompt:
    """The conversation rendered as a whole. Raises `BadRequest`."""
    text = chat.render(talk.messages, talk.tools, ask=True, **talk.more)
    ids, parts = _anew(chat, talk, text)
    return Prompt(ids, "root", new_text=text, parts=parts)


def _anew(chat: ChatTokenizer, talk: Talk, text: str) -> tuple[list[int], list[MessageTokens]]:
    ids, starts = chat.encode_with_starts(text)
    ends = message_ends(chat, talk, text, 0, _turns(chat, talk).every)
    return ids, prompt_parts(starts, ends, 0)


def extend(chat: ChatTokenizer, talk: Talk, sequence: Sequence[int] | None, covers: int) -> Prompt:
    """The prompt after `sequence`, the tokens of the first `covers` messages, None if unknown.

    Raises `BadRequest` for messages that the template refuses.
    """
    text = chat.render(talk.messages, talk.tools, ask=True, **talk.more)
    try:
        if sequence is None:
            raise _CannotExtend("no_parent_tokens", "the parent's tokens are unknown")
        return _extended(chat, talk, sequence, covers, text)
    except _CannotExtend as why:
        ids, parts = _anew(chat, talk, text)
        return Prompt(ids, "fork", why.cause, why.detail, text, parts)


def _extended(
    chat: ChatTokenizer, talk: Talk, sequence: Sequence[int], covers: int, text: str
) -> Prompt:
    messages, marks = marked(talk.messages, covers, text)
    if not marks or marks[-1].message != covers - 1:
        raise _CannotExtend("request", f"message {covers - 1} is no answer")
    between = _between(chat.render(messages, talk.tools, ask=True, **talk.more), marks)
    known = chat.decode(sequence)
    turns = _turns(chat, talk)
    _check_prompts(chat, talk, covers, between, known, text, turns.answer)
    ending = chat.specials.get(sequence[-1]) if sequence else None
    own = _own_ending(chat, talk, messages[:covers], marks[-1])
    rest, replaced, closing = _rest(between.after, own, ending, tuple(chat.specials.values()))
    new, starts = _encode_after(chat, sequence, ending, rest)
    ids = [*sequence, *new]
    parts = None
    if text.endswith(rest):
        ends = message_ends(chat, talk, text, covers, turns.every, after=len(text) - len(rest))
        parts = prompt_parts(starts, [closing, *ends], covers - 1)
    if _same(chat, known + rest, text) or ids == chat.encode(text):
        return Prompt(ids, "clean", new_text=rest, parts=parts)
    cause: Cause = "answer"
    if not _stable(chat, talk, covers, text):
        cause = "template"
    elif replaced:
        cause = "stop_token"
    return Prompt(ids, "realigned", cause, difference(known + rest, text), rest, parts)


def _between(text: str, marks: Sequence[Mark]) -> _Marks:
    """Cut the text at the marks. Raises `_CannotExtend` if the template lost or moved one."""
    before: list[str] = []
    position = 0
    for mark in marks:
        found = mark.where(text, position)
        if found is None:
            raise _CannotExtend(
                "template", f"it does not write the answer in message {mark.message}"
            )
        before.append(text[position : found[0]])
        position = found[1]
    return _Marks(before, text[position:])


def _check_prompts(
    chat: ChatTokenizer,
    talk: Talk,
    covers: int,
    between: _Marks,
    known: str,
    text: str,
    opener: str,
) -> None:
    """Raise `_CannotExtend` unless `known` has what the template writes around the answers."""
    where = 0
    known = _plain(chat, known)
    for number, part in enumerate(between.before):
        core = part[: part.rfind(opener)] if opener and opener in part else part.rstrip()
        if number:
            # What ends the answer before is the model's to write.
            end = _first_special(chat, core)
            core = core[core.find(end) + len(end) :] if end else core
        core = _plain(chat, core)
        found = known.find(core, where)
        if found < 0 or (number == 0 and found > 0):
            stable = _stable(chat, talk, covers, text)
            detail = difference(known[where:], core)
            raise _CannotExtend("request" if stable else "template", detail)
        where = found + len(core)


@dataclass(frozen=True, slots=True)
class _Turns:
    """How a template begins turns; empty texts for what cannot be told."""

    answer: str
    """The control token that begins an answer."""
    every: str
    """The same, if it begins the turns of others, too."""


def _turns(chat: ChatTokenizer, talk: Talk) -> _Turns:
    asks: list[str] = []
    for ask in (True, False):
        try:
            asks.append(chat.render([{"role": "user", "content": "x"}], None, ask=ask, **talk.more))
        except BadRequest:
            return _Turns("", "")  # it wants more than one message from a user
    opener = _first_special(chat, asks[0].removeprefix(asks[1]))
    return _Turns(opener, opener if opener and opener in asks[1] else "")


def _own_ending(
    chat: ChatTokenizer, talk: Talk, messages: list[dict[str, object]], mark: Mark
) -> str:
    """What the template writes after the last answer when nothing follows it."""
    text = chat.render(messages, talk.tools, ask=False, **talk.more)
    found = mark.where(text)
    return "" if found is None else text[found[1] :]


def _rest(
    after: str, own: str, ending: str | None, specials: tuple[str, ...]
) -> tuple[str, bool, int]:
    """(the text to append, whether the template ends a turn otherwise than the model did, how many
    characters of the text still belong to the answer).

    `after` follows the answer's text, `own` is the part of it that belongs to the answer, and
    `ending` is the control token that the model ended with, if it did.
    """
    if not after.startswith(own):
        # As the last message it was written otherwise; its end is then the first control token.
        at, token = _first_of(after, specials)
        own = after[: at + len(token)]
    if ending is not None and ending in own:
        cut = own.rindex(ending) + len(ending)
        return after[cut:], False, len(own) - cut
    new = after[len(own) :]
    if ending is not None and new.startswith(ending):
        return new[len(ending) :], False, 0  # a turn ends where the next one begins
    at, token = _last_of(own, specials)
    if not token:
        return new, ending is not None, 0
    cut = at + len(token) if ending is not None else at
    return after[cut:], ending is not None, len(own) - cut


def _encode_after(
    chat: ChatTokenizer, sequence: Sequence[int], ending: str | None, rest: str
) -> tuple[list[int], list[int]]:
    """The ids of `rest`, as they are after `sequence` (some tokenizers treat a beginning apart), and
    the character of `rest` that each begins at."""
    if ending is not None:
        ids, starts = chat.encode_with_starts(ending + rest)
        if ids[:1] == [sequence[-1]]:
            return ids[1:], [start - len(ending) for start in starts[1:]]
    return chat.encode_with_starts(rest)


def _stable(chat: ChatTokenizer, talk: Talk, covers: int, text: str) -> bool:
    """The template writes the first `covers` messages the same with and without those after."""
    prompt = chat.render(talk.messages[: covers - 1], talk.tools, ask=True, **talk.more)
    alone = chat.render(talk.messages[:covers], talk.tools, ask=False, **talk.more)
    return alone.startswith(prompt.rstrip()) and text.startswith(alone.rstrip())


def _same(chat: ChatTokenizer, one: str, other: str) -> bool:
    return _plain(chat, one) == _plain(chat, other)


def _plain(chat: ChatTokenizer, text: str) -> str:
    """The text as far as the tokenizer keeps it."""
    return text if chat.keeps_space else "".join(text.split())


def _first_special(chat: ChatTokenizer, text: str) -> str:
    return _first_of(text, tuple(chat.specials.values()))[1]


def _first_of(text: str, specials: Sequence[str]) -> tuple[int, str]:
    """Where the first control token is, and which; (0, "") without one."""
    found = [(at, -len(token), token) for token in specials if (at := text.find(token)) >= 0]
    at, _, token = min(found, default=(0, 0, ""))
    return at, token


def _last_of(text: str, specials: Sequence[str]) -> tuple[int, str]:
    found = [(at, len(token), token) for token in specials if (at := text.rfind(token)) >= 0]
    at, _, token = max(found, default=(0, 0, ""))
    return at, token


def difference(have: str, template: str) -> str:
    """Where two texts part, in a few words."""
    at = next(
        (n for n, (a, b) in enumerate(zip(have, template, strict=False)) if a != b),
        min(len(have), len(template)),
    )
    ours, theirs = have[at : at + SHOWN_CHARS], template[at : at + SHOWN_CHARS]
    return f"after {have[max(0, at - 20) : at]!r} stands {ours!r}, the template writes {theirs!r}"
