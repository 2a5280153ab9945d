"""What is asked and what is answered: the canonical request, and the choices of an answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, field

from rock.modelservice.wire.base import Input, OptionalRaw, Version, Wire

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class CanonicalRequest(Wire):
    """One request for a completion, whatever dialect it came in: OpenAI chat, sampling made explicit."""

    model: str
    messages: list[Raw]
    tools: list[Raw] | None = None
    tool_choice: OptionalRaw = None
    parallel_tool_calls: bool | None = None
    response_format: OptionalRaw = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    seed: int | None = None
    n: int = 1
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    reasoning_effort: str | None = None
    extra: dict[str, Raw] = field(default_factory=dict[str, Raw])
    """Top-level fields of the dialect that have no place above, as sent."""


class ToolFunction(Input):
    name: str
    arguments: str
    """JSON text exactly as the model wrote it, valid or not."""


class ToolCall(Input):
    function: ToolFunction
    id: str | None = None
    """Minted by ModelService when the worker gives none; unique in the session."""
    type: Literal["function"] = "function"


class AssistantMessage(Input):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class VersionSpan(Input):
    """A run of sampled tokens that the same weights sampled."""

    tokens: int
    policy_version: Version | None = None


PartKind = Literal["reasoning", "content", "tool_call", "markup"]


class Part(Input):
    """A run of sampled tokens and what of the answer it spells. A token belongs where it begins.

    `markup` is what only marks: tags of the reasoning, the space around a call, the end of the turn.
    """

    tokens: int
    kind: PartKind
    tool_calls: list[int] = field(default_factory=list[int])
    """Places in `message.tool_calls` of the calls that are written here: one, or all that share one
    opening tag."""


class MessageTokens(Input):
    """A run of prompt tokens that one message was written as, with all that the template puts around it.

    The template's opening of the answer that is asked for counts to the answer, whose place is the
    number of messages. Null is a run in which messages could not be told apart.
    """

    tokens: int
    message: int | None = None


class Choice(Input):
    """One sampled answer. `token_ids` and `logprobs` (same length) are what was really sampled."""

    message: AssistantMessage
    finish_reason: FinishReason = "stop"
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    version_spans: list[VersionSpan] | None = None
    """Which weights sampled which tokens, in order, if not one version sampled all."""
    parts: list[Part] | None = None
    """What the tokens spell, in order and all of them, if the worker knows."""


class Usage(Input):
    """Tokens as the sampling engine counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    cost_usd: float | None = None
