"""From one stored trajectory to its samples: checked rows, described spans, cut to turns.

A prompt span holds the messages that are new before an answer. Which tokens of it are which message
only the template knows: a worker that has it says so, and there is a span per message; else a span
names its messages (place and roles) and is not cut further.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from rock.modelservice.wire import Span, Trajectory, TrajectoryCall
from rock.rollout.export.check import Checked, RowError, checked
from rock.rollout.export.options import ALL, ExportOptions, Placement, Rows
from rock.rollout.export.sample import (
    Answer,
    GroupInfo,
    Sample,
    SampleSpan,
    Turn,
    answers_in,
    ending_of,
)
from rock.rollout.export.splits import split_of_group
from rock.rollout.records.record import Record


class _Head(msgspec.Struct):
    role: str = ""
    tool_call_id: str | None = None


_HEAD = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode with its trajectory."""

    group: GroupInfo
    record: Record
    trajectory: Trajectory


def samples_of(
    episode: Episode, options: ExportOptions, left_out: Counter[str], *, messages: bool
) -> Iterator[Sample]:
    """The samples of one episode, in the order of its chains. `left_out` counts the rest by reason."""
    calls = {call.call_id: call for call in episode.trajectory.calls}
    choices = {call.call_id: call.choices for call in episode.trajectory.calls}
    seen: set[tuple[str, int]] = set()
    staleness = _staleness(episode.trajectory, options)
    for reason, count in episode.trajectory.untrainable.items():
        left_out[f"untrainable: {reason}"] += count
    for row in episode.trajectory.rows:
        try:
            right = checked(row, choices, seen)
        except RowError as exc:
            left_out[f"invalid: {exc}"] += 1
            continue
        whole = _whole(episode, right, calls, options, staleness, messages=messages)
        reason = _reason_against(whole, options)
        if reason is not None:
            left_out[reason] += 1
            continue
        for sample in [whole] if options.rows is Rows.CHAIN else _turns(whole, calls, options):
            if options.max_tokens is not None and len(sample.token_ids) > options.max_tokens:
                left_out["longer than max_tokens"] += 1
            else:
                yield sample


def _reason_against(sample: Sample, options: ExportOptions) -> str | None:
    if ALL not in options.chains and sample.chain_class not in options.chains:
        return f"chain class {sample.chain_class}"
    low, high = options.min_staleness, options.max_staleness
    if low is None and high is None:
        return None
    if sample.staleness is None:
        return "staleness unknown"
    if low is not None and sample.staleness < low:
        return "staleness under min_staleness"
    return "staleness over max_staleness" if high is not None and sample.staleness > high else None


def _staleness(trajectory: Trajectory, options: ExportOptions) -> int | None:
    """Versions between the session's first sampled token and the trainer (or its newest one)."""
    versions = [call.policy_version for call in trajectory.calls if call.policy_version is not None]
    if not versions:
        return None
    newest = max(versions) if options.at_version is None else options.at_version
    return newest - versions[0]


def _whole(
    episode: Episode,
    row: Checked,
    calls: dict[str, TrajectoryCall],
    options: ExportOptions,
    staleness: int | None,
    *,
    messages: bool,
) -> Sample:
    record, group = episode.record, episode.group
    spans = tuple(_spans(row, calls))
    sampled = answers_in(spans)
    reward = record.outcome.reward
    return Sample(
        run_id=record.run_id,
        episode_id=record.episode_id,
        session_id=episode.trajectory.session_id,
        index=record.index,
        attempt=record.attempt,
        group=group,
        split=split_of_group(group.group_id, len(group.members), options.splits)[
            [member.index for member in group.members].index(record.index)
        ],
        chain=row.chain,
        chain_class=row.chain_class,
        branch=row.branch,
        turns=len(sampled),
        turn=None,
        token_ids=row.token_ids,
        mask=row.mask,
        logprobs=row.logprobs,
        rewards=_placed(reward, row.mask, sampled, options.placement, last=True),
        spans=spans,
        reward=reward,
        ending=ending_of(record.outcome),
        outcome=record.outcome,
        staleness=staleness,
        sampling=_sampling(calls[spans[-1].call_id]),
        conversation=tuple(_turn(answer, calls) for answer in sampled) if messages else (),
    )


def _spans(row: Checked, calls: dict[str, TrajectoryCall]) -> Iterator[SampleSpan]:
    covered = 0
    turn = -1
    before = None
    for number, (span, node) in enumerate(zip(row.spans, row.nodes, strict=True)):
        call = calls[span.call_id]
        turn += node is not None and node != before
        before = node
        if node is None:
            until = _next_message(row, number, len(call.request.messages))
            yield _prompt_span(span, call, covered, until, turn + 1)
            covered = until
        else:
            yield _sampled_span(span, call, node[1], turn)
            covered = len(call.request.messages) + 1


def _next_message(row: Checked, number: int, count: int) -> int:
    """The place of the message after a prompt span, of a request of `count` messages."""
    if (here := row.spans[number].message) is not None:
        return here + 1
    for span, node in zip(row.spans[number + 1 :], row.nodes[number + 1 :], strict=True):
        if node is not None:
            break
        if span.message is not None:
            return span.message
    return count


def _prompt_span(
    span: Span, call: TrajectoryCall, covered: int, until: int, turn: int
) -> SampleSpan:
    """The messages that are new; where they were told apart, one of them, or an answer's opening."""
    first = covered if span.message is None else span.message
    messages = call.request.messages
    heads = [_head(message) for message in messages[first:until]]
    if first == len(messages):
        heads = [_Head(role="assistant")] if span.message is not None else []
    return SampleSpan(
        start=span.start,
        end=span.end,
        kind="prompt",
        turn=turn,
        call_id=span.call_id,
        first_message=first if heads else None,
        roles=tuple(head.role for head in heads),
        tool_call_ids=tuple(head.tool_call_id for head in heads if head.tool_call_id),
    )


def _sampled_span(span: Span, call: TrajectoryCall, number: int, turn: int) -> SampleSpan:
    request, choice = call.request, call.choices[number]
    made = choice.message.tool_calls or []
    if span.part is not None:
        made = [made[place] for place in span.tool_calls if place < len(made)]
    return SampleSpan(
        start=span.start,
        end=span.end,
        kind="sampled",
        turn=turn,
        call_id=span.call_id,
        choice=number,
        policy_version=span.policy_version,
        temperature=request.temperature,
        top_p=request.top_p,
        finish_reason=choice.finish_reason,
        first_message=len(request.messages),
        roles=("assistant",),
        tool_call_ids=tuple(call.id or "" for call in made),
        part=span.part,
    )


def _head(message: Raw) -> _Head:
    try:
        return _HEAD.decode(message)
    except msgspec.DecodeError:
        return _Head()  # an agent may send what no template understands; it has no role then


def _turn(answer: Answer, calls: dict[str, TrajectoryCall]) -> Turn:
    call_id, choice = answer.node
    call = calls[call_id]
    usage = call.usage
    return Turn(
        call_id=call_id,
        choice=choice,
        messages=tuple(call.request.messages),
        tools=None if call.request.tools is None else tuple(call.request.tools),
        parallel_tool_calls=call.request.parallel_tool_calls,
        answer=call.choices[choice].message,
        model=call.request.model,
        prompt_tokens=usage.prompt_tokens if usage else None,
        completion_tokens=usage.completion_tokens if usage else None,
    )


def _sampling(call: TrajectoryCall) -> dict[str, Any]:
    request = call.request
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
    }


def _turns(
    whole: Sample, calls: dict[str, TrajectoryCall], options: ExportOptions
) -> Iterator[Sample]:
    """One sample per answer of a chain; together they own what the chain owns."""
    sampled = answers_in(whole.spans)
    for number, answer in enumerate(sampled):
        start, end = answer.start, answer.end
        mask = array("b", bytes(start)) + array("b", b"\1" * (end - start))
        logprobs = array("f", bytes(4 * start)) + whole.logprobs[start:end]
        yield replace(
            whole,
            turn=number,
            token_ids=whole.token_ids[:end],
            mask=mask,
            logprobs=logprobs,
            rewards=_placed(
                whole.reward, mask, [answer], options.placement, last=answer is sampled[-1]
            ),
            spans=tuple(s for s in whole.spans if s.end <= end),
            sampling=_sampling(calls[answer.node[0]]),
            conversation=whole.conversation[number : number + 1],
        )


def _placed(
    reward: float | None,
    mask: array[int],
    sampled: list[Answer],
    placement: Placement,
    *,
    last: bool,
) -> array[float] | None:
    """The reward stream. `last` says that the chain's last answer is the last of `sampled`."""
    if reward is None:
        return None
    if placement is Placement.EVERY_SAMPLED:
        return array("f", [reward * flag for flag in mask])
    values = array("f", bytes(4 * len(mask)))
    places = sampled if placement is Placement.PER_TURN else sampled[-1:] if last else []
    for answer in places:
        values[answer.end - 1] = reward
    return values
