"""`openai-sft` and `openai-dpo`: the lines of OpenAI's fine-tuning files.

Supervised: a conversation per sample, weight 1 on the answers that the sample owns and 0 on other
assistant messages, so that nothing is learned twice. Preferences: where two members of a group had
said the same so far and then answered differently, the answer of the better rewarded one is
preferred. Reasoning has no place in these files and is left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import combinations
from typing import Any, ClassVar

import msgspec

from rock.errors import ConfigError
from rock.rollout.export.formats.base import Facts, Reloaded, by_group
from rock.rollout.export.formats.talk import Said, said_in, tools_of
from rock.rollout.export.options import ExportOptions, Pairs, Rows
from rock.rollout.export.sample import Sample

_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call")
"""What a message may have in these files."""


class OpenAiSft:
    """Conversations to imitate."""

    name: ClassVar[str] = "openai-sft"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".jsonl"
    about: ClassVar[str] = "OpenAI fine-tuning, supervised (with weights)"
    messages: ClassVar[bool] = True
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        self._min_reward = options.min_reward

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        for sample in samples:
            if self._taught(sample):
                yield msgspec.json.encode(_conversation(sample)) + b"\n"

    def _taught(self, sample: Sample) -> bool:
        if self._min_reward is None:
            return True
        return sample.reward is not None and sample.reward >= self._min_reward

    def decode(self, data: bytes) -> list[Reloaded]:
        return _documents(data)


class OpenAiDpo:
    """Pairs from the main chains of a group."""

    name: ClassVar[str] = "openai-dpo"
    stem: ClassVar[str] = "part-"
    suffix: ClassVar[str] = ".jsonl"
    about: ClassVar[str] = "OpenAI fine-tuning, preference pairs from groups"
    messages: ClassVar[bool] = True
    indexed: ClassVar[bool] = False
    card: ClassVar[str | None] = None

    def __init__(self, options: ExportOptions, facts: Facts) -> None:
        del facts
        if options.rows is not Rows.CHAIN:
            raise ConfigError("openai-dpo: pairs are made of whole chains (rows=chain)")
        self._options = options

    def encode(self, samples: Iterator[Sample]) -> Iterator[bytes]:
        for group in by_group(samples):
            members = [s for s in group if s.branch is None and s.reward is not None]
            for better, worse in self._pairs(members):
                pair = _preference(better, worse)
                if pair is not None:
                    yield msgspec.json.encode(pair) + b"\n"

    def _pairs(self, members: list[Sample]) -> Iterator[tuple[Sample, Sample]]:
        # Best first; equal ones stay in the order of the group.
        ordered = sorted(members, key=lambda sample: -(sample.reward or 0.0))
        candidates = combinations(ordered, 2)
        if self._options.pairs is Pairs.BEST_WORST:
            candidates = iter([(ordered[0], ordered[-1])] if len(ordered) > 1 else [])
        for better, worse in candidates:
            if (better.reward or 0.0) - (worse.reward or 0.0) > self._options.min_margin:
                yield better, worse

    def decode(self, data: bytes) -> list[Reloaded]:
        return _documents(data)


def _conversation(sample: Sample) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    owned = {(span.call_id, span.choice) for span in sample.owned}
    for item in said_in(sample):
        message = _message(item)
        if message.get("role") == "assistant":
            turn = item.turn
            message["weight"] = int(turn is not None and (turn.call_id, turn.choice) in owned)
        messages.append(message)
    return {"messages": messages} | _tools(sample)


def _preference(better: Sample, worse: Sample) -> dict[str, Any] | None:
    """None when the two did not differ first in an answer."""
    for place, (good, bad) in enumerate(zip(said_in(better), said_in(worse), strict=False)):
        ours, theirs = _message(good), _message(bad)
        if _same(ours, theirs):
            continue
        if good.turn is None or bad.turn is None:
            return None
        before = [_message(item) for item in said_in(better)[:place]]
        return {
            "input": {"messages": before} | _tools(better),
            "preferred_output": [ours],
            "non_preferred_output": [theirs],
        }
    return None


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Equal but for the ids of tool calls, which are drawn anew each time."""
    return _without_ids(ours) == _without_ids(theirs)


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    return {
        **message,
        "tool_call_id": None,
        "tool_calls": [{k: v for k, v in call.items() if k != "id"} for call in calls],
    }


def _message(item: Said) -> dict[str, Any]:
    fields = item.fields()
    message = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    if message.get("role") == "assistant" and not message.get("tool_calls"):
        message.setdefault("content", "")
    return message


def _tools(sample: Sample) -> dict[str, Any]:
    tools = tools_of(sample)
    if not tools:
        return {}
    parallel = sample.conversation[-1].parallel_tool_calls
    return {"tools": tools} | ({} if parallel is None else {"parallel_tool_calls": parallel})


def _documents(data: bytes) -> list[Reloaded]:
    none = array("i")
    return [
        Reloaded(token_ids=none, mask=none, logprobs=array("f"), other=msgspec.json.decode(text))
        for text in data.splitlines()
    ]
