"""How each family writes calls, spelled out by hand, apart from the tables that the parser reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import Raw

Wanted: TypeAlias = tuple[str, dict[str, Any]]
"""A call: name and arguments."""

BAR, LOW = "\uff5c", "\u2581"


def deepseek(text: str) -> str:
    """`<|a_b|>` with DeepSeek's own characters."""
    return text.replace("|", BAR).replace("_", LOW)


@dataclass(frozen=True)
class Family:
    """One format: how it writes calls, and the tags that may be dropped from an answer in it."""

    write: Callable[[Sequence[Wanted]], str]
    tags: tuple[str, ...]
    reasoning: tuple[str, str] | None = ("<think>", "</think>")
    stop: str = "<|im_end|>"
    free_text: bool = False
    """Values are written without escapes, so they cannot hold the format's own tags."""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _hermes(calls: Sequence[Wanted]) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
        for name, arguments in calls
    )


def _qwen3_coder(calls: Sequence[Wanted]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={k}>\n{_text(v)}\n</parameter>\n" for k, v in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in calls
    )


def _seed_oss(calls: Sequence[Wanted]) -> str:
    return "\n".join(
        f"<seed:tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={k}>{_text(v)}</parameter>\n" for k, v in arguments.items())
        + "</function>\n</seed:tool_call>"
        for name, arguments in calls
    )


def _minimax_m2(calls: Sequence[Wanted]) -> str:
    invokes = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{k}">{_text(v)}</parameter>\n' for k, v in arguments.items())
        + "</invoke>\n"
        for name, arguments in calls
    )
    return f"<minimax:tool_call>\n{invokes}</minimax:tool_call>"


def _glm45(calls: Sequence[Wanted]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{k}</arg_key>\n<arg_value>{_text(v)}</arg_value>\n"
            for k, v in arguments.items()
        )
        + "</tool_call>"
        for name, arguments in calls
    )


def _llama3_json(calls: Sequence[Wanted]) -> str:
    return "<|python_tag|>" + "; ".join(
        json.dumps({"name": name, "parameters": arguments}) for name, arguments in calls
    )


def _mistral(calls: Sequence[Wanted]) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"[TOOL_CALLS] {json.dumps(listed)}"


def _deepseek_v3(calls: Sequence[Wanted]) -> str:
    written = "\n".join(
        deepseek("<|tool_call_begin|>function<|tool_sep|>")
        + f"{name}\n```json\n{json.dumps(arguments)}\n```"
        + deepseek("<|tool_call_end|>")
        for name, arguments in calls
    )
    return deepseek("<|tool_calls_begin|>") + written + deepseek("<|tool_calls_end|>")


def _deepseek_v31(calls: Sequence[Wanted]) -> str:
    written = "".join(
        deepseek("<|tool_call_begin|>")
        + name
        + deepseek("<|tool_sep|>")
        + json.dumps(arguments)
        + deepseek("<|tool_call_end|>")
        for name, arguments in calls
    )
    return deepseek("<|tool_calls_begin|>") + written + deepseek("<|tool_calls_end|>")


def _kimi_k2(calls: Sequence[Wanted]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        f"{json.dumps(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


_DEEPSEEK_TAGS = (deepseek("<|tool_calls_end|>"), deepseek("<|end_of_sentence|>"))
_DEEPSEEK_STOP = deepseek("<|end_of_sentence|>")
_QWEN_TAGS = ("<|im_end|>", "<|endoftext|>")

FAMILIES = {
    "hermes": Family(_hermes, _QWEN_TAGS),
    "qwen3_coder": Family(_qwen3_coder, _QWEN_TAGS, free_text=True),
    "seed_oss": Family(
        _seed_oss,
        ("<seed:eos>",),
        ("<seed:think>", "</seed:think>"),
        "<seed:eos>",
        free_text=True,
    ),
    "minimax_m2": Family(
        _minimax_m2, ("</minimax:tool_call>", "[e~["), stop="[e~[", free_text=True
    ),
    "glm45": Family(
        _glm45,
        ("<|user|>", "<|observation|>", "<|endoftext|>"),
        stop="<|observation|>",
        free_text=True,
    ),
    "llama3_json": Family(
        _llama3_json, ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"), None, "<|eom_id|>"
    ),
    "mistral": Family(_mistral, ("</s>",), ("[THINK]", "[/THINK]"), "</s>"),
    "deepseek_v3": Family(_deepseek_v3, _DEEPSEEK_TAGS, stop=_DEEPSEEK_STOP),
    "deepseek_v31": Family(_deepseek_v31, _DEEPSEEK_TAGS, stop=_DEEPSEEK_STOP),
    "kimi_k2": Family(_kimi_k2, ("<|tool_calls_section_end|>", "<|im_end|>")),
}


def tool(name: str, **properties: Any) -> Raw:
    """A tool as a request carries it."""
    schema = {"type": "object", "properties": properties}
    function = {"name": name, "parameters": schema}
    return Raw(json.dumps({"type": "function", "function": function}).encode())
