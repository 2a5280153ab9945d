"""Token rows: the calls of one session as training sequences, each sampled token in exactly one.

A call whose prompt ids begin with its parent's prompt and answer ids goes on in the parent's row;
any other starts a row of its own, with everything before its answer masked; so does a call of another
class than its parent, so that side jobs stay out of the agent's own rows. Prompts are stored as
what is new after the parent, so a turn costs what is new in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from rock.modelservice.graph import tokens
from rock.modelservice.wire import ChainClass, Span, TokenRow, VersionSpan
from rock.types import CallId, PolicyVersion


class Sample(Struct, frozen=True):
    """One choice: packed ids and log-probabilities of the same length."""

    ids: bytes
    logprobs: bytes
    version_spans: tuple[VersionSpan, ...] | None = None
    """Which weights sampled which tokens, if not one version sampled all."""


class CallTokens(Struct, frozen=True, eq=False):
    """The tokens of one trainable call. Compared by identity: a chain can be thousands long."""

    call_id: CallId
    policy_version: PolicyVersion | None
    samples: tuple[Sample, ...]
    prompt: bytes
    """Packed prompt ids: all of them, or those after the parent's prompt and answer."""
    parent: CallTokens | None = None
    parent_choice: int = 0
    chain_class: ChainClass = "main"
    branch: str | None = None
    """Why the call is not simply the next one of a chain."""
    prompt_count: int = 0
    """Tokens before the answer: those of the whole prompt. Computed."""

    def __post_init__(self) -> None:
        before = 0 if self.parent is None else self.parent.sequence_count(self.parent_choice)
        force_setattr(self, "prompt_count", before + tokens.count(self.prompt))

    def prompt_ids(self) -> bytes:
        """The whole prompt, packed."""
        pieces: list[bytes] = [self.prompt]
        call = self
        while call.parent is not None:
            pieces.append(call.parent.samples[call.parent_choice].ids)
            call = call.parent
            pieces.append(call.prompt)
        pieces.reverse()
        return b"".join(pieces)

    def sequence_count(self, choice: int) -> int:
        """How many tokens `sequence_ids` has, without walking the chain."""
        return self.prompt_count + tokens.count(self.samples[choice].ids)

    def sequence_ids(self, choice: int) -> bytes:
        """Prompt and answer, packed: what a call that goes on from `choice` starts with."""
        return self.prompt_ids() + self.samples[choice].ids


def new_after(prompt: bytes, parent: CallTokens, choice: int) -> bytes | None:
    """The packed ids of `prompt` after the parent's sequence; None if it does not start with it."""
    sequence = parent.sequence_ids(choice)
    return prompt[len(sequence) :] if prompt.startswith(sequence) else None


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

    def prompt(self, call: CallTokens, ids: bytes) -> None:
        values = tokens.unpack_ids(ids)
        if values:
            self._add(values, [0] * len(values), [0.0] * len(values))
            self._name(call, "prompt", len(values), None)

    def sampled(self, call: CallTokens, sample: Sample) -> None:
        values = tokens.unpack_ids(sample.ids)
        logprobs = tokens.unpack_logprobs(sample.logprobs)
        self._add(values, [1] * len(values), logprobs)
        for run in sample.version_spans or (VersionSpan(len(values), call.policy_version),):
            self._name(call, "sampled", run.tokens, run.policy_version)

    def _add(self, ids: list[int], mask: list[int], logprobs: list[float]) -> None:
        self.row.token_ids += ids
        self.row.mask += mask
        self.row.logprobs += logprobs

    def _name(
        self,
        call: CallTokens,
        kind: Literal["prompt", "sampled"],
        count: int,
        version: PolicyVersion | None,
    ) -> None:
        """Say what the next `count` tokens are."""
        start = self.row.spans[-1].end if self.row.spans else 0
        end = start + count
        self.row.spans.append(
            Span(start=start, end=end, kind=kind, call_id=call.call_id, policy_version=version)
        )


def build_rows(calls: Iterable[CallTokens]) -> list[TokenRow]:
    """The rows of a session's trainable calls, which come in the order they were asked."""
    rows: list[_Row] = []
    ends: dict[tuple[CallId, int], _Row] = {}
    """Rows that can still go on, by the answer they end with."""
    for call in calls:
        for choice, sample in enumerate(call.samples):
            row = None
            parent = call.parent
            if choice == 0 and parent is not None and parent.chain_class == call.chain_class:
                row = ends.pop((parent.call_id, call.parent_choice), None)
            if row is not None:
                row.prompt(call, call.prompt)
            else:
                row = _Row(call, choice)
                row.prompt(call, call.prompt_ids())
                rows.append(row)
            row.sampled(call, sample)
            ends[call.call_id, choice] = row
    return [row.row for row in rows]
