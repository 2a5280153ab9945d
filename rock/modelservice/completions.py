"""A worker's completion, checked and turned into the record that is stored. No I/O.

Tokens are all or nothing: if any id or log-probability of any choice, or the prompt's ids, is
missing or wrong, the answer is stored as untrainable with the reason, and none of its tokens.
"""

from __future__ import annotations

import hashlib
import secrets

from msgspec.structs import replace

from rock.errors import BadRequest
from rock.modelservice import records, tokens
from rock.modelservice.answer import AnswerChoice
from rock.modelservice.calls import Call
from rock.modelservice.rows import new_after
from rock.modelservice.wire import AssistantMessage, Choice, Completion, Usage
from rock.types import PolicyVersion


def fingerprint(completion: Completion) -> bytes:
    """Equal for two completions that say the same.

    Raises `BadRequest` for text that is not Unicode (a lone surrogate from a policy in Python).
    """
    try:
        return hashlib.sha256(records.encoder.encode(completion)).digest()
    except UnicodeEncodeError as exc:
        raise BadRequest(f"the completion is not valid Unicode: {exc}", param="choices") from exc


def answered(
    call: Call, wanted: int, completion: Completion, version: PolicyVersion | None, mark: bytes
) -> records.CallAnswered:
    """The record of `completion` as the answer to `call`, which asked for `wanted` choices.

    Raises `BadRequest` for another number of choices.
    """
    if len(completion.choices) != wanted:
        raise BadRequest(
            f"choices: expected {wanted} (the request's n), got {len(completion.choices)}",
            param="choices",
        )
    reason = _reason_against(completion)
    prompt, continues = _prompt(call, completion) if reason is None else (None, False)
    return records.CallAnswered(
        call=call.id,
        lease=completion.lease_id,
        fingerprint=mark,
        choices=tuple(_choice(choice, trainable=reason is None) for choice in completion.choices),
        prompt_ids=prompt,
        continues=continues,
        policy_version=version,
        usage=completion.usage or _counted(completion, reason),
        untrainable=reason,
    )


def _reason_against(completion: Completion) -> str | None:
    for number, choice in enumerate(completion.choices):
        reason = tokens.reason_against_sample(choice.token_ids, choice.logprobs)
        if reason is not None:
            return reason if len(completion.choices) == 1 else f"choice {number}: {reason}"
    return tokens.reason_against_prompt(completion.prompt_token_ids)


def _prompt(call: Call, completion: Completion) -> tuple[bytes, bool]:
    """(packed ids to store, whether they go on after the parent's sequence)."""
    prompt = tokens.pack_ids(completion.prompt_token_ids or ())
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


def _counted(completion: Completion, reason: str | None) -> Usage | None:
    if reason is not None or completion.prompt_token_ids is None:
        return None
    return Usage(
        prompt_tokens=len(completion.prompt_token_ids),
        completion_tokens=sum(len(choice.token_ids or ()) for choice in completion.choices),
    )
