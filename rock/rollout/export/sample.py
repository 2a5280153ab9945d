"""One training sequence with everything a trainer may need to know about it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import Any, Literal

from msgspec import Raw, Struct

from rock.modelservice.wire import AssistantMessage, PartKind
from rock.rollout.records.outcome import Outcome, OutcomeClass


class Ending(StrEnum):
    """Whether the value of the last state is known."""

    TERMINATED = "terminated"
    """The episode came to its own end: nothing follows the last state."""
    TRUNCATED = "truncated"
    """A bound cut it: something would have followed."""
    ABORTED = "aborted"
    """It did not happen as it should; there is no reward."""


_TRUNCATED = frozenset(
    {
        OutcomeClass.AGENT_TIMEOUT,
        OutcomeClass.AGENT_OUTPUT_LIMIT,
        OutcomeClass.TURN_LIMIT,
        OutcomeClass.TOKEN_LIMIT,
        OutcomeClass.TIME_LIMIT,
        OutcomeClass.CONTEXT_LIMIT,
    }
)


def ending_of(outcome: Outcome) -> Ending:
    """What an outcome's class says about the last state."""
    if outcome.cls in _TRUNCATED:
        return Ending.TRUNCATED
    return Ending.TERMINATED if outcome.in_loss else Ending.ABORTED


class Member(Struct, frozen=True, kw_only=True):
    """One place of a group."""

    index: int
    episode_id: str
    reward: float | None
    in_baseline: bool
    missing: str | None
    """Why the group's statistics must do without it; null if it is there."""


class GroupInfo(Struct, frozen=True, kw_only=True):
    """A sample's group, the same in every sample of it."""

    group_id: str
    task_id: str
    size: int
    ordinal: int
    """Place in the run, from 0."""
    first_episode: int
    """Number of episodes in the groups before it."""
    members: tuple[Member, ...]

    @property
    def missing(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.missing is not None)

    @property
    def mean_reward(self) -> float | None:
        """Over the members that count in the baseline; null without any."""
        rewards = [m.reward for m in self.members if m.in_baseline and m.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


class SampleSpan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens `start:end` of a sample: one answer, or the messages that are new before one.

    Where the worker told them apart, one message, or one part of an answer. An answer during which the
    weights changed has one span per version.
    """

    start: int
    end: int
    kind: Literal["prompt", "sampled"]
    turn: int
    """Answers before this span in the chain."""
    call_id: str
    choice: int = 0
    policy_version: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    finish_reason: str | None = None
    first_message: int | None = None
    """Place of its first message in the conversation; null when that is not known."""
    roles: tuple[str, ...] = ()
    """Roles of its messages."""
    tool_call_ids: tuple[str, ...] = ()
    """Sampled: the tool calls it makes. Prompt: those whose results it holds."""
    part: PartKind | None = None
    """What of the answer a sampled span spells; null where that is not known."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a sample: its tokens, in a span per part and per version of the weights."""

    spans: tuple[SampleSpan, ...]

    @property
    def node(self) -> tuple[str, int]:
        """Call id and choice."""
        return self.spans[0].call_id, self.spans[0].choice

    @property
    def start(self) -> int:
        return self.spans[0].start

    @property
    def end(self) -> int:
        return self.spans[-1].end

    @property
    def versions(self) -> list[tuple[int, int | None]]:
        """(tokens, policy version that sampled them), in order."""
        return [
            (sum(span.end - span.start for span in spans), version)
            for version, spans in groupby(self.spans, key=lambda span: span.policy_version)
        ]


def answers_in(spans: Iterable[SampleSpan]) -> list[Answer]:
    """The sampled spans, those of the same answer together."""
    sampled = (span for span in spans if span.kind == "sampled")
    return [Answer(tuple(found)) for _, found in groupby(sampled, key=lambda span: span.turn)]


@dataclass(frozen=True, slots=True)
class Turn:
    """A call of the chain with its messages, for formats made of text."""

    call_id: str
    choice: int
    messages: tuple[Raw, ...]
    """The whole prompt, as the worker got it."""
    tools: tuple[Raw, ...] | None
    parallel_tool_calls: bool | None
    answer: AssistantMessage
    model: str
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sequence. All per-token arrays have one entry per token id."""

    run_id: str
    episode_id: str
    session_id: str
    index: int
    attempt: int
    group: GroupInfo
    split: int
    """Which critic's share this member is in, 0..splits-1; the same under retry and resume."""
    chain: str
    chain_class: str
    branch: str | None
    """Why the chain is one of its own; null for the first."""
    turns: int
    """Answers in the chain."""
    turn: int | None
    """Which of them this is; null for a whole chain."""
    token_ids: array[int]
    mask: array[int]
    """1 where this sample owns a sampled token."""
    logprobs: array[float]
    """Of the sampling distribution; 0 where the mask is 0."""
    rewards: array[float] | None
    """The reward where it is placed, 0 elsewhere; null without a reward."""
    spans: tuple[SampleSpan, ...]
    reward: float | None
    ending: Ending
    outcome: Outcome
    staleness: int | None
    sampling: Mapping[str, Any]
    """Of the last answer: temperature, top_p, max_tokens, seed."""
    streams: Mapping[str, array[float]] = field(default_factory=dict[str, "array[float]"])
    """NaN where nothing is known."""
    conversation: tuple[Turn, ...] = ()
    """Only when messages were asked for: the calls of this sample, in order."""

    @property
    def sample_id(self) -> str:
        """Unique in the run, the same in every export."""
        turn = "" if self.turn is None else f"#{self.turn}"
        return f"{self.episode_id}/{self.chain}{turn}"

    @property
    def task_id(self) -> str:
        return self.group.task_id

    @property
    def versions(self) -> list[int]:
        """Policy versions of the owned tokens, in order of their first token."""
        found = [s.policy_version for s in self.owned if s.policy_version is not None]
        return list(dict.fromkeys(found))

    @property
    def owned(self) -> tuple[SampleSpan, ...]:
        """The sampled spans whose tokens this sample owns."""
        return tuple(s for s in self.spans if s.kind == "sampled" and self.mask[s.start])

    @property
    def answers(self) -> list[Answer]:
        """The answers whose tokens this sample owns."""
        return answers_in(self.owned)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first owned one."""
        return self.owned[0].start

    @property
    def cut_short(self) -> bool:
        """A bound ended the episode, or the last answer."""
        return self.ending is Ending.TRUNCATED or self.owned[-1].finish_reason == "length"
