"""An answer as the rest of ModelService sees it: messages, and tokens packed until asked for.

Token ids and log-probabilities are kept as packed arrays (4 bytes each); `token_ids` and `logprobs`
build lists when somebody needs them. Shapes match `wire.Choice`, so a renderer takes either.
"""

from __future__ import annotations

from msgspec import Struct

from rock.modelservice.graph import tokens
from rock.modelservice.graph.rows import CallTokens
from rock.modelservice.wire import AssistantMessage, FinishReason, Part, Usage, VersionSpan
from rock.modelservice.wire.partial import ToolCallDelta
from rock.types import CallId, PolicyVersion


class AnswerChoice(Struct, frozen=True, kw_only=True):
    """One sampled answer."""

    message: AssistantMessage
    finish_reason: FinishReason
    packed_ids: bytes | None = None
    packed_logprobs: bytes | None = None
    version_spans: tuple[VersionSpan, ...] | None = None
    """Which weights sampled which tokens, if not one version sampled all."""
    parts: tuple[Part, ...] | None = None
    """What the tokens spell, if the worker knew."""

    @property
    def token_ids(self) -> list[int] | None:
        return None if self.packed_ids is None else tokens.unpack_ids(self.packed_ids)

    @property
    def logprobs(self) -> list[float] | None:
        return (
            None if self.packed_logprobs is None else tokens.unpack_logprobs(self.packed_logprobs)
        )


class Delta(Struct, frozen=True, kw_only=True):
    """More of an answer that is not whole yet."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    prompt_tokens: int | None = None
    """How long the prompt is, where a worker said so with its first span."""

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Answer(Struct, frozen=True, kw_only=True):
    """What a call got. `usage` is true or absent, never made up."""

    call_id: CallId
    model: str
    """The model name in effect: a pin, or what the agent asked for."""
    choices: tuple[AnswerChoice, ...]
    usage: Usage | None
    policy_version: PolicyVersion | None
    untrainable: str | None
    """Why no token row contains this answer; null if one does."""
    sampled: tuple[AnswerChoice, ...] | None = None
    """What the worker had said, where interceptors put `choices` in its place."""
    edited_by: tuple[str, ...] = ()
    tokens: CallTokens | None = None
    """Prompt and samples; null if untrainable."""

    @property
    def prompt_token_ids(self) -> list[int] | None:
        return None if self.tokens is None else tokens.unpack_ids(self.tokens.prompt_ids())
