"""The conversation of a chain as messages, with each answer as it was sampled.

What a client sends back of an answer (arguments written anew, reasoning dropped) is replaced by the
answer itself, so the text says what the tokens say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from rock.modelservice.wire import AssistantMessage
from rock.rollout.export.sample import Sample, Turn

Message: TypeAlias = "dict[str, Any] | Raw"
"""JSON values, or the bytes that the agent sent."""


def answer_fields(message: AssistantMessage) -> dict[str, Any]:
    """The answer as OpenAI's API would have given it. (On rock's wire, defaults are left out.)"""
    fields: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content is not None:
        fields["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls
        ]
    return fields


@dataclass(frozen=True, slots=True)
class Said:
    """One message. `turn` is the answer of this sample that it is; None for everything else."""

    raw: Raw | None
    turn: Turn | None

    def fields(self) -> dict[str, Any]:
        """The message as JSON values."""
        if self.turn is not None:
            return answer_fields(self.turn.answer)
        try:
            value = msgspec.json.decode(self.raw or b"{}")
        except msgspec.DecodeError:
            return {}
        return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def said_in(sample: Sample) -> list[Said]:
    """The whole conversation of a sample, its own answers marked."""
    if not sample.conversation:
        return []
    last = sample.conversation[-1]
    answers = {len(turn.messages): turn for turn in sample.conversation}
    said = [Said(raw, answers.get(place)) for place, raw in enumerate(last.messages)]
    said.append(Said(None, last))
    return said


def messages_of(sample: Sample) -> list[Message]:
    return [
        answer_fields(item.turn.answer) if item.turn is not None else item.raw or Raw(b"{}")
        for item in said_in(sample)
    ]


def tools_of(sample: Sample) -> list[Raw] | None:
    """Those offered for the last answer."""
    tools = sample.conversation[-1].tools if sample.conversation else None
    return None if tools is None else list(tools)


def text_of(content: object) -> str:
    """The text of a message's content, whichever of its shapes it has."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else msgspec.json.encode(content).decode()
    parts: list[object] = content  # pyright: ignore[reportUnknownVariableType]
    return "".join(_part(part) for part in parts)


def _part(part: object) -> str:
    if isinstance(part, dict):
        fields: dict[str, object] = part  # pyright: ignore[reportUnknownVariableType]
        text = fields.get("text")
        if isinstance(text, str):
            return text
    return ""
