"""A sample as one flat record: the schema of `jsonl`, and what the other own formats hold.

Version 1. A reader refuses a newer version; within one, fields are only added.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec
from msgspec import Raw

from rock.rollout.export.formats.base import Reloaded, flags_of, floats_of, ids_of
from rock.rollout.export.formats.talk import Message, messages_of, tools_of
from rock.rollout.export.sample import Sample, SampleSpan

SCHEMA = 1


class MissingMember(msgspec.Struct, frozen=True):
    """A place of the group that has nothing to train on, and why."""

    index: int
    reason: str


class Ids(msgspec.Struct, frozen=True, kw_only=True):
    """Which sample, of what, and how it ended: everything but its tokens."""

    schema: int = SCHEMA
    sample_id: str
    run_id: str
    task_id: str
    group_id: str
    group_size: int
    group_mean_reward: float | None
    """Over the members that count in the baseline."""
    missing: list[MissingMember]
    episode_id: str
    session_id: str
    index: int
    attempt: int
    split: int
    chain: str
    chain_class: str
    branch: str | None
    turns: int
    turn: int | None
    tokens: int
    sampled_tokens: int
    reward: float | None
    ending: str
    outcome: dict[str, Any]
    policy_versions: list[int]
    staleness: int | None
    sampling: dict[str, Any]
    spans: list[SampleSpan]


class Line(Ids, frozen=True, kw_only=True):
    """A whole sample. The lists have one entry per token."""

    token_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    rewards: list[float] | None
    streams: dict[str, list[float | None]]
    """null where the stream says nothing."""
    messages: list[Message] | None = None
    tools: list[Raw] | None = None


def ids(sample: Sample) -> Ids:
    return Ids(**ids_fields(sample))


def ids_fields(sample: Sample) -> dict[str, Any]:
    """The fields of `Ids` but its schema."""
    group = sample.group
    return {
        "sample_id": sample.sample_id,
        "run_id": sample.run_id,
        "task_id": sample.task_id,
        "group_id": group.group_id,
        "group_size": group.size,
        "group_mean_reward": group.mean_reward,
        "missing": [MissingMember(m.index, m.missing or "") for m in group.missing],
        "episode_id": sample.episode_id,
        "session_id": sample.session_id,
        "index": sample.index,
        "attempt": sample.attempt,
        "split": sample.split,
        "chain": sample.chain,
        "chain_class": sample.chain_class,
        "branch": sample.branch,
        "turns": sample.turns,
        "turn": sample.turn,
        "tokens": len(sample.token_ids),
        "sampled_tokens": sample.mask.count(1),
        "reward": sample.reward,
        "ending": sample.ending.value,
        "outcome": msgspec.to_builtins(sample.outcome),
        "policy_versions": sample.versions,
        "staleness": sample.staleness,
        "sampling": dict(sample.sampling),
        "spans": list(sample.spans),
    }


def line(sample: Sample, *, messages: bool) -> Line:
    return Line(
        **ids_fields(sample),
        token_ids=sample.token_ids.tolist(),
        mask=sample.mask.tolist(),
        logprobs=sample.logprobs.tolist(),
        rewards=None if sample.rewards is None else sample.rewards.tolist(),
        streams={name: nullable(values) for name, values in sample.streams.items()},
        messages=messages_of(sample) if messages else None,
        tools=tools_of(sample) if messages else None,
    )


def nullable(values: array[float]) -> list[float | None]:
    """NaN has no place in JSON."""
    return [None if math.isnan(value) else value for value in values]


KNOWN = ("token_ids", "mask", "logprobs", "sample_id", "group_id", "index", "reward", "rewards")


def reloaded(fields: dict[str, Any]) -> Reloaded:
    """A record that was read back, whatever held it."""
    rewards = fields["rewards"]
    return Reloaded(
        token_ids=ids_of(fields["token_ids"]),
        mask=flags_of(fields["mask"]),
        logprobs=floats_of(fields["logprobs"]),
        sample_id=fields["sample_id"],
        group_id=fields["group_id"],
        index=fields["index"],
        reward=fields["reward"],
        rewards=None if rewards is None else floats_of(rewards),
        other={name: value for name, value in fields.items() if name not in KNOWN},
    )
