"""The formats by name: which tags a family of models writes, as its makers published them.

Everything here is data; to add a family, describe it. The literals are what the model's chat
template renders for an assistant turn, special tokens included, so a worker decodes with
`skip_special_tokens=False`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rock.errors import ConfigError
from rock.modelservice.text.calls import CallSyntax
from rock.modelservice.text.json_calls import EnclosedJson, HeadedJson, LlamaJson, MistralJson
from rock.modelservice.text.tagged_calls import TaggedCalls


@dataclass(frozen=True, slots=True)
class Tags:
    """A pair that encloses something."""

    opening: str
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one family of models writes an assistant turn.

    `section` encloses all calls of a turn. `stops` are literals that end a turn; they mark the end
    only where nothing but space and further stops follows.
    """

    name: str
    models: str
    calls: CallSyntax | None = None
    section: Tags | None = None
    reasoning: Tags | None = None
    stops: tuple[str, ...] = ()


def _deepseek(words: str) -> str:
    """A special token of DeepSeek's: full-width bars, low lines for spaces."""
    return "<\uff5c" + words.replace(" ", "\u2581") + "\uff5c>"


THINK = Tags("<think>", "</think>")
_CHATML = ("<|im_end|>", "<|endoftext|>")
_DEEPSEEK_SECTION = Tags(_deepseek("tool calls begin"), _deepseek("tool calls end"))
_DEEPSEEK_STOPS = (_deepseek("end of sentence"),)

_ALL = (
    Format(
        name="plain",
        models="any; reasoning in think tags, no tool calls",
        reasoning=THINK,
        stops=_CHATML,
    ),
    Format(
        name="hermes",
        models="Hermes 2/3, Qwen2.5, Qwen3 (not Coder), QwQ",
        calls=EnclosedJson("<tool_call>", "</tool_call>"),
        reasoning=THINK,
        stops=_CHATML,
    ),
    Format(
        name="qwen3_coder",
        models="Qwen3-Coder, Qwen3-Next, Qwen3.5, Nemotron 3",
        calls=TaggedCalls(
            opening=("<tool_call>", "<function="),
            name_end=">",
            key="<parameter=",
            value=(">",),
            value_end="</parameter>",
            closing=("</function>", "</tool_call>"),
            padded=True,
        ),
        reasoning=THINK,
        stops=_CHATML,
    ),
    Format(
        name="seed_oss",
        models="Seed-OSS",
        calls=TaggedCalls(
            opening=("<seed:tool_call>", "<function="),
            name_end=">",
            key="<parameter=",
            value=(">",),
            value_end="</parameter>",
            closing=("</function>", "</seed:tool_call>"),
        ),
        reasoning=Tags("<seed:think>", "</seed:think>"),
        stops=("<seed:eos>",),
    ),
    Format(
        name="minimax_m2",
        models="MiniMax-M2",
        calls=TaggedCalls(
            opening=('<invoke name="',),
            name_end='">',
            key='<parameter name="',
            value=('">',),
            value_end="</parameter>",
            closing=("</invoke>",),
        ),
        section=Tags("<minimax:tool_call>", "</minimax:tool_call>"),
        reasoning=THINK,
        stops=("[e~[",),
    ),
    Format(
        name="glm45",
        models="GLM-4.5, 4.6, 4.7",
        calls=TaggedCalls(
            opening=("<tool_call>",),
            name_end="",
            key="<arg_key>",
            value=("</arg_key>", "<arg_value>"),
            value_end="</arg_value>",
            closing=("</tool_call>",),
        ),
        reasoning=THINK,
        stops=("<|user|>", "<|observation|>", "<|endoftext|>"),
    ),
    Format(
        name="llama3_json",
        models="Llama 3.1, 3.2, 3.3",
        calls=LlamaJson(),
        stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    ),
    Format(
        name="mistral",
        models="Mistral, Magistral, Devstral",
        calls=MistralJson(),
        reasoning=Tags("[THINK]", "[/THINK]"),
        stops=("</s>",),
    ),
    Format(
        name="deepseek_v3",
        models="DeepSeek V3, V3-0324, R1-0528",
        calls=HeadedJson(
            _deepseek("tool call begin") + "function" + _deepseek("tool sep"),
            "```json",
            "```" + _deepseek("tool call end"),
        ),
        section=_DEEPSEEK_SECTION,
        reasoning=THINK,
        stops=_DEEPSEEK_STOPS,
    ),
    Format(
        name="deepseek_v31",
        models="DeepSeek V3.1",
        calls=HeadedJson(
            _deepseek("tool call begin"), _deepseek("tool sep"), _deepseek("tool call end")
        ),
        section=_DEEPSEEK_SECTION,
        reasoning=THINK,
        stops=_DEEPSEEK_STOPS,
    ),
    Format(
        name="kimi_k2",
        models="Kimi K2, K2-Thinking, K2.5",
        calls=HeadedJson(
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            re.compile(r"(?:functions\.)?(.+):[0-9]+"),
        ),
        section=Tags("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        reasoning=THINK,
        stops=("<|im_end|>",),
    ),
)

FORMATS: Mapping[str, Format] = {entry.name: entry for entry in _ALL}
"""Every format, by the name that `parse` and `TextParser` take."""


def format_named(name: str) -> Format:
    """The format of that name. Raises `ConfigError` with the names there are."""
    found = FORMATS.get(name)
    if found is None:
        raise ConfigError(f"format: unknown name {name!r}; expected one of {', '.join(FORMATS)}")
    return found
