"""`rock diff`: where two trajectories part: messages, tokens, rewards.

Messages are compared as ModelService compares them: what a client only spells differently, and ids
of tool calls, are no difference. Exit code 0 when nothing differs, 1 when something does.
"""

from __future__ import annotations

from array import array
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import typer

from rock.cli.runs.episodes import find_episode
from rock.cli.runs.tokens import chain_name
from rock.errors import ConfigError
from rock.modelservice.graph.messages import describe
from rock.rollout.export.formats.talk import said_in
from rock.rollout.export.sample import Sample
from rock.rollout.export.stream import samples_of_episode

TEXT_CHARS = 200
BEFORE_CHARS = 40
"""Shown before the place where two texts part."""
Numbers: TypeAlias = "array[int] | array[float]"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same. Null is what a side does not have."""

    what: str
    where: str
    left: str | None
    right: str | None


class Side:
    """One of the two episodes."""

    def __init__(self, run: Path, episode: str) -> None:
        record, _ = find_episode(run, episode)
        found = samples_of_episode(run, record.task_id, record.index)
        if found is None:
            raise ConfigError(f"{episode} in {run} has no trajectory to compare")
        self.record = record
        self.chains = found


def run_diff(left: tuple[Path, str], right: tuple[Path, str], *, as_json: bool) -> None:
    differences = compare(Side(*left), Side(*right))
    if as_json:
        typer.echo(msgspec.json.encode(differences).decode())
    else:
        _print(differences)
    if differences:
        raise typer.Exit(1)


def compare(left: Side, right: Side) -> list[Difference]:
    """Outcome first, then chain by chain."""
    found = _outcomes(left, right)
    for one, two in zip_longest(left.chains, right.chains):
        if one is None or two is None:
            extra = one or two
            assert extra is not None
            size = f"{chain_name(extra)}, {len(extra.token_ids)} tokens"
            found.append(
                Difference(
                    what="chain",
                    where=chain_name(extra),
                    left=size if one else None,
                    right=size if two else None,
                )
            )
        else:
            found += _messages(one, two)
            found += _tokens(one, two)
    return found


def _outcomes(left: Side, right: Side) -> list[Difference]:
    pairs = [
        ("task", left.record.task_id, right.record.task_id),
        ("outcome", left.record.outcome.cls.value, right.record.outcome.cls.value),
        ("reward", left.record.outcome.reward, right.record.outcome.reward),
    ]
    return [
        Difference(what=what, where="", left=str(one), right=str(two))
        for what, one, two in pairs
        if one != two
    ]


def _messages(one: Sample, two: Sample) -> list[Difference]:
    left, right = _said(one), _said(two)
    matcher = SequenceMatcher(None, [d for d, _ in left], [d for d, _ in right], autojunk=False)
    found: list[Difference] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        for place, (ours, theirs) in enumerate(zip_longest(left[a:b], right[c:d])):
            shown = _from_difference(ours[1] if ours else None, theirs[1] if theirs else None)
            found.append(
                Difference(
                    what="message",
                    where=f"{chain_name(one)} {a + place if ours else c + place}",
                    left=shown[0],
                    right=shown[1],
                )
            )
    return found


def _from_difference(left: str | None, right: str | None) -> tuple[str | None, str | None]:
    """Both texts cut to what is about where they part."""
    at = 0
    if left is not None and right is not None:
        pairs = zip(left, right, strict=False)
        same = next((n for n, (one, two) in enumerate(pairs) if one != two), len(left))
        at = max(0, min(same, len(left), len(right)) - BEFORE_CHARS)
    return _cut(left, at), _cut(right, at)


def _cut(text: str | None, at: int) -> str | None:
    if text is None:
        return None
    end = at + TEXT_CHARS
    return f"{'…' if at else ''}{text[at:end]}{'…' if end < len(text) else ''}"


def _said(sample: Sample) -> list[tuple[int, str]]:
    """(what makes a message the same, how it is shown whole)."""
    said: list[tuple[int, str]] = []
    for item in said_in(sample):
        fields = item.fields()
        fields.pop("tool_call_id", None)
        said.append((describe(msgspec.json.encode(fields)).digest, _shown_whole(fields)))
    return said


def _shown_whole(fields: dict[str, Any]) -> str:
    """A message in one text, without the ids of its calls: they differ every time."""
    content: object = fields.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    shown = f"{fields.get('role')}: {'' if content is None else text}"
    calls: list[dict[str, Any]] = fields.get("tool_calls") or []
    for call in calls:
        function: dict[str, Any] = call.get("function") or {}
        shown += f" → {function.get('name')} {function.get('arguments')}"
    return shown


def _tokens(one: Sample, two: Sample) -> list[Difference]:
    for what, left, right in (
        ("tokens", one.token_ids, two.token_ids),
        ("mask", one.mask, two.mask),
        ("log-probs", one.logprobs, two.logprobs),
    ):
        place = _first_difference(left, right)
        if place is not None:
            where = f"{chain_name(one)} {place} ({_span_at(one, place)})"
            return [
                Difference(
                    what=what,
                    where=where,
                    left=_shown(left, place),
                    right=_shown(right, place),
                )
            ]
    return []


def _first_difference(left: Numbers, right: Numbers) -> int | None:
    if left == right:
        return None
    pairs = zip(left, right, strict=False)
    shorter = min(len(left), len(right))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def _span_at(sample: Sample, place: int) -> str:
    for span in sample.spans:
        if span.start <= place < span.end:
            return f"{span.kind}, turn {span.turn}"
    return "past the end"


def _shown(values: Numbers, place: int) -> str | None:
    if place >= len(values):
        return None
    return f"{values[place]} of {len(values)}"


def _print(differences: list[Difference]) -> None:
    if not differences:
        print("no difference: messages, tokens, log-probabilities, outcome and reward are the same")
    for item in differences:
        print(f"{item.what}{' ' if item.where else ''}{item.where}")
        print(f"  - {'(nothing)' if item.left is None else item.left}")
        print(f"  + {'(nothing)' if item.right is None else item.right}")
