"""Which tokens of a prompt are which message. Pure.

A prompt's text is cut where the template has written a message and goes on with the next: that is how
far the messages up to it, rendered alone, agree with the whole. A template that writes a message
otherwise when others follow is caught at the next opening of a turn instead; where that does not help
either, the messages are left in one run. Cuts in the text become cuts between tokens by where each
token begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rock.errors import BadRequest
from rock.modelservice.render.talk import Talk
from rock.modelservice.render.tokenizer import ChatTokenizer
from rock.modelservice.wire import MessageTokens

MAX_CUTS = 64
"""Each cut renders the conversation once more; a longer run of new messages is cut at its end only."""


def message_ends(
    chat: ChatTokenizer, talk: Talk, text: str, first: int, opener: str, *, after: int = 0
) -> list[int | None]:
    """Where in `text`, the whole rendered conversation, the messages from number `first` on end, counted
    from its character `after`.

    None for one whose end cannot be told. `opener` is the control token that begins every turn, if
    one does.
    """
    count = len(talk.messages)
    found: list[int | None] = [None] * (count - first)
    begin = after
    for place in range(max(first, count - MAX_CUTS), count):
        end = _end(chat, talk, text, place, opener)
        if end is not None and end >= begin:
            begin = end
            found[place - first] = end - after
    return found


def _end(chat: ChatTokenizer, talk: Talk, text: str, place: int, opener: str) -> int | None:
    try:
        alone = chat.render(talk.messages[: place + 1], talk.tools, ask=False, **talk.more)
    except BadRequest:
        return None
    same = _common(alone, text)
    content = str(talk.messages[place]["content"]).strip()
    if same >= len(alone.rstrip()) or (content and alone.rfind(content) + len(content) <= same):
        return same  # only what ends the message is another when others follow
    following = talk.messages[place + 1 : place + 2]
    found = text.find(opener, same) if opener else -1
    if found < 0 or any(str(next_["content"]).strip() in text[same:found] for next_ in following):
        return None
    return found


def _common(one: str, other: str) -> int:
    """How many leading characters two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def prompt_parts(
    starts: Sequence[int], ends: Sequence[int | None], first: int
) -> list[MessageTokens]:
    """Runs of the tokens that begin at the characters `starts`, by message.

    `ends[n]` is where message `first + n` ends, None if unknown; what follows the last is the answer's
    opening. Empty runs are left out.
    """
    runs: list[MessageTokens] = []
    at, told = 0, True
    for place, end in enumerate([*ends, None], first):
        last = place == first + len(ends)
        if end is None and not last:
            told = False  # the next end that is known closes the run
            continue
        to = len(starts) if end is None else bisect_left(starts, end)
        if to > at:
            runs.append(MessageTokens(tokens=to - at, message=place if told else None))
        at, told = max(at, to), True
    return runs
