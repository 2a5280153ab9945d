"""Token rows: the calls of one session as training sequences, each sampled token in exactly one.

A call whose prompt ids begin with its parent's prompt and answer ids goes on in the parent's row;
any other starts a row of its own, with everything before its answer masked; so does a call of another
class than its parent, so that side jobs stay out of the agent's own rows. Prompts are stored as
what is new after the parent, so a turn costs what is new in it. Where the worker
said which tokens are which message, and what of an answer they spell, a row has a span for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import force_setattr

from rock.modelservice.graph import tokens
from rock.modelservice.graph.parts import first, last
from rock.modelservice.wire import (
    ChainClass,
    MessageTokens,
    Part,
    Span,
    TokenRow,
    VersionSpan,
)
from rock.types import CallId, PolicyVersion


class Sample(Struct, frozen=True):
    """One choice: packed ids and log-probabilities of the same length."""

    ids: bytes
    logprobs: bytes
    version_spans: tuple[VersionSpan, ...] | None = None
    """Which weights sampled which tokens, if not one version sampled all."""
    parts: tuple[Part, ...] | None = None
    """What the tokens spell, if the worker knew."""


class CallTokens(Struct, frozen=True, eq=False):
    """The tokens of one trainable call. Compared by identity: a chain can be thousands long."""

    call_id: CallId
    policy_version: PolicyVersion | None
    samples: tuple[Sample, ...]
    prompt: bytes
    """Packed prompt ids: all of them, or those after what it has from its parent."""
    parent: CallTokens | None = None
    parent_choice: int = 0
    kept: int | None = None
    """How many tokens of the parent's prompt and answer it begins with; None for all: it goes on."""
    chain_class: ChainClass = "main"
    branch: str | None = None
    """Why the call is not simply the next one of a chain."""
    messages: int | None = None
    """How many messages the request has, so the place of the answer; None if nobody says."""
    prompt_parts: tuple[MessageTokens, ...] | None = None
    """Which of the last tokens of `prompt` are which message, if the worker knew."""
    inherited: int = 0
    """Tokens that it has from its parent. Computed."""
    prompt_count: int = 0
    """Tokens before the answer: those of the whole prompt. Computed."""

    def __post_init__(self) -> None:
        before = self.kept or 0
        if self.parent is not None and self.kept is None:
            before = self.parent.sequence_count(self.parent_choice)
        force_setattr(self, "inherited", before)
        force_setattr(self, "prompt_count", before + len(self.prompt) // 4)

    @property
    def goes_on(self) -> bool:
        """Its prompt begins with all of its parent's prompt and answer."""
        return self.parent is not None and self.kept is None

    def prompt_ids(self) -> bytes:
        """The whole prompt, packed."""
        pieces = [piece.ids for piece in self.pieces()]
        pieces.reverse()
        return b"".join(pieces)

    def pieces(self) -> Iterator[Piece]:
        """What the prompt is made of, from its end."""
        call, left = self, self.prompt_count
        while left:
            if left > call.inherited:
                yield Piece(call.prompt[: 4 * (left - call.inherited)], _new(call))
                left = call.inherited
            if call.parent is None or not left:
                return
            sample, call = call.parent.samples[call.parent_choice], call.parent
            if left > call.prompt_count:
                ids = sample.ids[: 4 * (left - call.prompt_count)]
                yield Piece(ids, (MessageTokens(tokens=len(ids) // 4, message=call.messages),))
                left = call.prompt_count

    def sequence_count(self, choice: int) -> int:
        """How many tokens `sequence_ids` has, without walking the chain."""
        return self.prompt_count + len(self.samples[choice].ids) // 4

    def sequence_ids(self, choice: int) -> bytes:
        """Prompt and answer, packed: what a call that goes on from `choice` starts with."""
        return self.prompt_ids() + self.samples[choice].ids


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a prompt that one call brought: of its own prompt, or its answer."""

    ids: bytes
    named: tuple[MessageTokens, ...]
    """Which message they are, for at least as many tokens."""


def new_after(prompt: bytes, parent: CallTokens, choice: int) -> bytes | None:
    """The packed ids of `prompt` after the parent's sequence; None if it does not start with it."""
    sequence = parent.sequence_ids(choice)
    return prompt[len(sequence) :] if prompt.startswith(sequence) else None


def kept_of(prompt: bytes, parent: CallTokens, choice: int) -> int:
    """How many tokens of the parent's sequence `prompt` begins with."""
    return tokens.common(prompt, parent.sequence_ids(choice))


class _Row:
    def __init__(self, call: CallTokens, choice: int) -> None:
        self.row = TokenRow(
            chain=f"{call.call_id}/{choice}",
            token_ids=[],
            mask=[],
            logprobs=[],
            spans=[],
            chain_class=call.chain_class,
            branch=call.branch if choice == 0 else "choice",
        )

    def prompt(self, call: CallTokens, ids: bytes, named: Iterable[MessageTokens]) -> None:
        values = tokens.unpack_ids(ids)
        self._add(values, [0] * len(values), [0.0] * len(values))
        for message, runs in groupby(named, key=lambda run: run.message):
            count = sum(run.tokens for run in runs)
            self._name(count, kind="prompt", call_id=call.call_id, message=message)

    def sampled(self, call: CallTokens, sample: Sample) -> None:
        values = tokens.unpack_ids(sample.ids)
        logprobs = tokens.unpack_logprobs(sample.logprobs)
        self._add(values, [1] * len(values), logprobs)
        versions = sample.version_spans or (VersionSpan(len(values), call.policy_version),)
        for count, version, part in _in_step(versions, sample.parts):
            self._name(
                count,
                kind="sampled",
                call_id=call.call_id,
                policy_version=version,
                message=call.messages,
                part=part.kind if part else None,
                tool_calls=part.tool_calls if part else [],
            )

    def _add(self, ids: list[int], mask: list[int], logprobs: list[float]) -> None:
        self.row.token_ids += ids
        self.row.mask += mask
        self.row.logprobs += logprobs

    def _name(self, count: int, **what: Any) -> None:
        """Say what the next `count` tokens are, in the fields of `Span`."""
        start = self.row.spans[-1].end if self.row.spans else 0
        self.row.spans.append(Span(start=start, end=start + count, **what))


def _in_step(
    versions: Sequence[VersionSpan], parts: Sequence[Part] | None
) -> Iterator[tuple[int, PolicyVersion | None, Part | None]]:
    """Runs of tokens within one version and one part, which both cover all of an answer."""
    waiting: list[tuple[int, Part | None]] = [(part.tokens, part) for part in parts or ()]
    waiting = waiting[::-1] or [(sum(run.tokens for run in versions), None)]
    for run in versions:
        left = run.tokens
        while left:
            count, part = waiting.pop()
            if count > left:
                waiting.append((count - left, part))
            yield min(count, left), run.policy_version, part
            left -= min(count, left)


def _new(call: CallTokens) -> tuple[MessageTokens, ...]:
    """What the tokens of the call's own prompt are."""
    return last(call.prompt_parts or (), tokens.count(call.prompt))


def _all(call: CallTokens) -> list[MessageTokens]:
    """What the tokens of the whole prompt are, the answers in it too."""
    named: list[MessageTokens] = []
    for piece in call.pieces():
        named += reversed(first(piece.named, tokens.count(piece.ids)))
    return named[::-1]


def build_rows(calls: Iterable[CallTokens]) -> list[TokenRow]:
    """The rows of a session's trainable calls, which come in the order they were asked."""
    rows: list[_Row] = []
    ends: dict[tuple[CallId, int], _Row] = {}
    """Rows that can still go on, by the answer they end with."""
    for call in calls:
        for choice, sample in enumerate(call.samples):
            row = None
            parent = call.parent
            goes_on = choice == 0 and call.goes_on
            if goes_on and parent is not None and parent.chain_class == call.chain_class:
                row = ends.pop((parent.call_id, call.parent_choice), None)
            if row is not None:
                row.prompt(call, call.prompt, _new(call))
            else:
                row = _Row(call, choice)
                row.prompt(call, call.prompt_ids(), _all(call))
                rows.append(row)
            row.sampled(call, sample)
            ends[call.call_id, choice] = row
    return [row.row for row in rows]
