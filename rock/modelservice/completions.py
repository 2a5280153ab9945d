"""A worker's completion, checked and turned into the record that is stored. No I/O.

Tokens are all or nothing: if any id or log-probability of any choice, or the prompt's ids, is
missing or wrong, the answer is stored as untrainable with the reason, and none of its tokens.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice import records, tokens
from rock.modelservice.answer import AnswerChoice
from rock.modelservice.calls import Call
from rock.modelservice.rows import new_after
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Usage
from rock.types import PolicyVersion


@dataclass(frozen=True, slots=True)
class Prepared:
    """A completion with its prompt's ids packed, once: they can be a hundred thousand."""

    completion: Completion
    """As sent, without `prompt_token_ids`."""
    prompt: bytes | None
    against_prompt: str | None
    """Why there is no packed prompt."""
    fingerprint: bytes
    """Equal for two completions that say the same."""


def prepare(completion: Completion) -> Prepared:
    """Raises `BadRequest` for text that is not Unicode (a lone surrogate from a policy in Python)."""
    prompt, reason = tokens.pack_prompt(
        completion.prompt_token_ids, continues=completion.continues_parent
    )
    if prompt is not None:
        completion = replace(completion, prompt_token_ids=None)
    try:
        mark = hashlib.blake2b(records.encoder.encode(completion), digest_size=16)
    except UnicodeEncodeError as exc:
        raise BadRequest(f"the completion is not valid Unicode: {exc}", param="choices") from exc
    mark.update(prompt or b"")
    return Prepared(completion, prompt, reason, mark.digest())


def answered(
    call: Call, wanted: int, prepared: Prepared, version: PolicyVersion | None
) -> records.CallAnswered:
    """The record of a completion as the answer to `call`, which asked for `wanted` choices.

    Raises `BadRequest` for another number of choices, and for `continues_parent` if the parent has
    no tokens here.
    """
    choices = prepared.completion.choices
    if len(choices) != wanted:
        raise BadRequest(
            f"choices: expected {wanted} (the request's n), got {len(choices)}", param="choices"
        )
    reason = _reason_against(choices) or prepared.against_prompt
    prompt, continues, before = (None, False, 0)
    if prepared.completion.continues_parent:
        before = _tokens_before(call)
    if reason is None and prepared.prompt is not None:
        prompt, continues = prepared.prompt, prepared.completion.continues_parent
        if not continues:
            prompt, continues = _after_parent(call, prepared.prompt)
    return records.CallAnswered(
        call=call.id,
        lease=prepared.completion.lease_id,
        fingerprint=prepared.fingerprint,
        choices=tuple(_choice(choice, trainable=reason is None) for choice in choices),
        prompt_ids=prompt,
        continues=continues,
        policy_version=version,
        usage=prepared.completion.usage or _counted(prepared, before, reason),
        untrainable=reason,
    )


def _reason_against(choices: list[Choice]) -> str | None:
    for number, choice in enumerate(choices):
        reason = tokens.reason_against_sample(choice.token_ids, choice.logprobs)
        if reason is not None:
            return reason if len(choices) == 1 else f"choice {number}: {reason}"
    return None


def _after_parent(call: Call, prompt: bytes) -> tuple[bytes, bool]:
    """(packed ids to store, whether they go on after the parent's sequence)."""
    parent = call.parent.tokens if call.parent is not None else None
    if parent is not None:
        new = new_after(prompt, parent, call.parent_choice)
        if new is not None:
            return new, True
    return prompt, False


def _choice(choice: Choice, *, trainable: bool) -> AnswerChoice:
    return AnswerChoice(
        message=_with_call_ids(choice.message),
        finish_reason=choice.finish_reason,
        packed_ids=tokens.pack_ids(choice.token_ids or ()) if trainable else None,
        packed_logprobs=tokens.pack_logprobs(choice.logprobs or ()) if trainable else None,
    )


def _with_call_ids(message: AssistantMessage) -> AssistantMessage:
    if not message.tool_calls or all(call.id for call in message.tool_calls):
        return message
    return replace(
        message,
        tool_calls=[
            call if call.id else replace(call, id=f"call_{secrets.token_hex(12)}")
            for call in message.tool_calls
        ],
    )


def _tokens_before(call: Call) -> int:
    """How many tokens come before a prompt that continues the parent's. Raises `BadRequest`."""
    parent = call.parent.tokens if call.parent is not None else None
    if parent is None:
        raise BadRequest(
            "continues_parent: no tokens of a parent of this call are known; give the whole prompt",
            param="continues_parent",
        )
    return parent.sequence_count(call.parent_choice)


def _counted(prepared: Prepared, before: int, reason: str | None) -> Usage | None:
    if reason is not None or prepared.prompt is None:
        return None
    return Usage(
        prompt_tokens=before + tokens.count(prepared.prompt),
        completion_tokens=sum(
            len(choice.token_ids or ()) for choice in prepared.completion.choices
        ),
    )
