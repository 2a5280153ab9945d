"""A prepared completion, checked against its call and turned into the record that is stored. No I/O.

Tokens are all or nothing: if any id or log-probability of any choice, or the prompt's ids, is
missing or wrong, the answer is stored as untrainable with the reason, and none of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice.engine.calls import Call
from rock.modelservice.engine.spans import Said, new_call_id, runs
from rock.modelservice.graph import tokens
from rock.modelservice.graph.answer import AnswerChoice
from rock.modelservice.graph.graph import MessageGraph
from rock.modelservice.graph.parts import (
    last,
    reason_against_parts,
    reason_against_prompt_parts,
)
from rock.modelservice.graph.rows import CallTokens, kept_of, new_after
from rock.modelservice.journal import records
from rock.modelservice.service.prepared import Prepared
from rock.modelservice.wire import (
    AssistantMessage,
    Choice,
    ToolCall,
    Usage,
    VersionSpan,
)
from rock.types import PolicyVersion

EDITED = "edited"
MAX_REASON_CHARS = 200
MIN_KEPT = 16
"""A prompt that shares fewer tokens with its parent's sequence is stored whole."""


def reason_against_prefix(call: Call, prepared: Prepared) -> str | None:
    """Why a completion does not begin with what was said of the call before; None if it does."""
    choices = prepared.completion.choices
    if call.said is None or len(choices) != 1:
        return None
    prompt = prepared.prompt
    if prompt is not None and prepared.completion.continues_parent:
        prompt = _parent_tokens(call).sequence_ids(call.parent_choice) + prompt
    return call.said.reason_against(choices[0], prompt)


def answered(
    call: Call,
    wanted: int,
    prepared: Prepared,
    version: PolicyVersion | None,
    graph: MessageGraph,
    *,
    misspelt: str | None = None,
) -> records.CallAnswered:
    """The record of a completion as the answer to `call`, a request in `graph` that asked for `wanted`
    choices. `misspelt` is why its tokens are not its text.

    What workers said of it before keeps the log-probabilities and versions it was sampled with; that
    the completion begins with it was checked. Raises `BadRequest` for another number of choices, and
    for `continues_parent` if the parent has no tokens here.
    """
    choices = prepared.completion.choices
    if len(choices) != wanted:
        raise BadRequest(
            f"choices: expected {wanted} (the request's n), got {len(choices)}", param="choices"
        )
    reason: str | None = (prepared.completion.untrainable or "")[:MAX_REASON_CHARS]
    reason = reason or _reason_against(choices, prepared.samples) or prepared.against_prompt
    parts = prepared.completion.prompt_parts
    if reason is None and parts is not None:
        count = tokens.count(prepared.prompt or b"")
        reason = reason_against_prompt_parts(parts, count, graph.depth(call.leaf))
    reason = reason or misspelt
    continues, before = prepared.completion.continues_parent, 0
    if continues:
        before = _parent_tokens(call).sequence_count(call.parent_choice)
    if call.said is not None and reason is None:
        reason = _reason_against_said(call.said, version)
    prompt = prepared.prompt if reason is None else None
    kept: int | None = None
    if prompt is not None and not continues:
        prompt, continues, kept = _after_parent(call, prompt)
    return records.CallAnswered(
        call=call.id,
        lease=prepared.completion.lease_id,
        fingerprint=prepared.fingerprint,
        choices=tuple(
            [
                _choice(
                    choice,
                    version,
                    call.said if number == 0 else None,
                    prepared.samples[number] if reason is None else None,
                )
                for number, choice in enumerate(choices)
            ]
        ),
        prompt_ids=prompt,
        prompt_parts=None if prompt is None or parts is None else last(parts, tokens.count(prompt)),
        continues=continues and prompt is not None,
        kept=kept,
        policy_version=version,
        usage=prepared.completion.usage or _counted(prepared, before, reason),
        untrainable=reason,
    )


def edited(
    record: records.CallAnswered, choices: list[Choice], by: tuple[str, ...]
) -> records.CallAnswered:
    """The record with other choices than were sampled: nothing can be learned from these."""
    return replace(
        record,
        choices=tuple(
            AnswerChoice(
                message=_with_call_ids(choice.message, choice.message.tool_calls or []),
                finish_reason=choice.finish_reason,
            )
            for choice in choices
        ),
        sampled=record.choices,
        prompt_ids=None,
        prompt_parts=None,
        continues=False,
        kept=None,
        untrainable=EDITED,
        edited_by=by,
    )


def _reason_against(choices: list[Choice], samples: list[tuple[bytes, bytes] | str]) -> str | None:
    for number, choice in enumerate(choices):
        sample = samples[number]
        reason = sample if isinstance(sample, str) else None
        if reason is None and choice.version_spans is not None:
            reason = _reason_against_versions(choice.version_spans, len(choice.token_ids or ()))
        if reason is None and choice.parts is not None:
            reason = reason_against_parts(choice)
        if reason is not None:
            return reason if len(choices) == 1 else f"choice {number}: {reason}"
    return None


def _after_parent(call: Call, prompt: bytes) -> tuple[bytes, bool, int | None]:
    """(packed ids to store, whether they go on after the parent's sequence, after how much of it they
    stand if not)."""
    parent = call.parent.tokens if call.parent is not None else None
    if parent is None:
        return prompt, False, None
    new = new_after(prompt, parent, call.parent_choice)
    if new is not None:
        return new, True, None
    kept = kept_of(prompt, parent, call.parent_choice)
    return (prompt, False, None) if kept < MIN_KEPT else (prompt[4 * kept :], False, kept)


def _reason_against_versions(spans: Sequence[VersionSpan], count: int) -> str | None:
    covered = sum(span.tokens for span in spans)
    if covered != count or any(span.tokens < 1 for span in spans):
        return f"version_spans cover {covered} of {count} token_ids"
    return None


def _reason_against_said(said: Said, version: PolicyVersion | None) -> str | None:
    if said.ids is None and said.policy_versions != {version}:
        return "streamed without token_ids by several policy versions"
    return None


def _choice(
    choice: Choice,
    version: PolicyVersion | None,
    said: Said | None,
    sample: tuple[bytes, bytes] | str | None,
) -> AnswerChoice:
    """`sample` are its packed ids and log-probabilities, if it can be trained on."""
    message, finish = choice.message, choice.finish_reason
    if message.tool_calls:
        message = _with_call_ids(message, message.tool_calls, said)
    if sample is None or isinstance(sample, str):
        return AnswerChoice(message=message, finish_reason=finish)
    packed, logprobs = sample
    before = said.logprobs if said is not None else None
    if before is not None:
        logprobs = before + logprobs[len(before) :]
    return AnswerChoice(
        message=message,
        finish_reason=finish,
        packed_ids=packed,
        packed_logprobs=logprobs,
        version_spans=None
        if said is None and choice.version_spans is None
        else _versions(choice, version, said),
        parts=None if choice.parts is None else tuple(choice.parts),
    )


def _versions(
    choice: Choice, version: PolicyVersion | None, said: Said | None
) -> tuple[VersionSpan, ...] | None:
    """Who sampled what: the spans as they came, then what the worker says of the rest. None if all
    of it is `version`."""
    total = len(choice.token_ids or ())
    before = said.versions() if said is not None and said.ids is not None else []
    known = sum(span.tokens for span in before)
    pieces = [(span.tokens, span.policy_version) for span in before]
    end = 0
    for span in choice.version_spans or [VersionSpan(total, version)]:
        end += span.tokens
        pieces.append((max(0, min(span.tokens, end - known)), span.policy_version))
    found = runs(pieces)
    return None if found == [VersionSpan(total, version)] else tuple(found)


def _with_call_ids(
    message: AssistantMessage, calls: list[ToolCall], said: Said | None = None
) -> AssistantMessage:
    """The message with an id for each of its calls: the one an agent may have read, else a new one."""
    if all(call.id for call in calls):
        return message
    known = [call.id for call in said.calls] if said is not None else []
    ids = [*known, *(new_call_id() for _ in calls[len(known) :])]
    return replace(
        message,
        tool_calls=[
            call if call.id else replace(call, id=id) for call, id in zip(calls, ids, strict=False)
        ],
    )


def _parent_tokens(call: Call) -> CallTokens:
    """What a prompt with `continues_parent` goes on after. Raises `BadRequest`."""
    parent = call.parent.tokens if call.parent is not None else None
    if parent is None:
        raise BadRequest(
            "continues_parent: no tokens of a parent of this call are known; give the whole prompt",
            param="continues_parent",
        )
    return parent


def _counted(prepared: Prepared, before: int, reason: str | None) -> Usage | None:
    if reason is not None or prepared.prompt is None:
        return None
    return Usage(
        prompt_tokens=before + tokens.count(prepared.prompt),
        completion_tokens=sum(
            [len(choice.token_ids or ()) for choice in prepared.completion.choices]
        ),
    )
