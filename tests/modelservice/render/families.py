"""Small real tokenizers with the chat templates of common families, written from their formats.

Each is a directory as models are published: a byte-level (or sentencepiece-like) BPE trained here, the
family's control tokens, and a template that writes what the family's documentation shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = """You are a helpful agent in a sandbox. You have tools: run a command and read its output.
{"type": "function", "function": {"name": "run", "parameters": {"command": "ls -la /tmp"}}}
The user asks, the assistant answers, the tool says. Let me look at the folder first. Two files.
"""

CHATML = """\
{%- if messages[0].role == 'system' or tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else 'You are a helpful assistant.' }}
{%- if tools %}

# Tools
<tools>
{%- for tool in tools %}
{{ '\\n' + tool | tojson }}
{%- endfor %}

</tools>
{%- endif %}<|im_end|>
{{ '' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'system' and loop.first %}{% continue %}{% endif %}
{%- if message.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
{{ '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{{ '' }}{% endif %}
{%- else %}<|im_start|>{{ message.role + '\\n' }}
{%- if message.role == 'assistant' %}THINKING{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{{ '' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ GENERATION }}
{%- endif %}"""

# Reasoning is written for the answers after the last user message only, and for the very last one
# even when it is empty.
QWEN3_THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- set place = loop.index0 %}
{%- if place > ns.last and (loop.last or message.reasoning_content) %}
{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
{%- endif %}"""
QWEN3_GENERATION = (
    "'<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else ''"
)
# Keeps all reasoning, wherever it stands.
KEPT_THINKING = """\
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\\n\\n' + system | trim + '<|eot_id|>' }}
{%- for message in messages %}
{%- if message.role == 'system' %}{% continue %}{% endif %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if message.tool_calls %}
{%- if message.tool_calls | length > 1 %}
{{- raise_exception('This model takes one tool call at a time.') }}
{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
{%- elif message.role == 'tool' %}
{{- message.content | tojson }}
{%- elif message.role == 'user' and tools and loop.index0 <= 1 %}
{{- tools | tojson + '\\n\\n' + message.content | trim }}
{%- else %}
{{- message.content | trim }}
{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# The tools stand before the last user message, so they move with each further one.
MISTRAL = """\
{{- bos_token }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + {'content': message.content, 'call_id': message.tool_call_id} | tojson }}
{{- '[/TOOL_RESULTS]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{{- {'name': call.function.name, 'arguments': call.function.arguments, 'id': call.id} | tojson }}
{{- ', ' if not loop.last }}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- message.content + eos_token }}
{%- else %}
{{- raise_exception('Only user, assistant and tool are known roles.') }}
{%- endif %}
{%- endfor %}"""

# A turn ends where the next one begins; reasoning before the last user message is emptied.
GLM = """\
{{- '[gMASK]<sop>' }}
{%- if tools %}{{ '<|system|>\\n' + tools | tojson }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- ('<|observation|>' if loop.previtem.role != 'tool' else '') }}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- elif message.role == 'assistant' %}
{{- '<|assistant|>\\n<think>' }}
{{- message.reasoning_content if message.reasoning_content and loop.index0 > ns.last else '' }}
{{- '</think>' }}
{{- '\\n' + message.content if message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' + value + '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- else %}
{{- '<|' + message.role + '|>\\n' + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@dataclass(frozen=True)
class Family:
    template: str
    specials: tuple[str, ...]
    end: str
    """The control token that ends a turn."""
    tags: tuple[str, ...] = ()
    """Added tokens that are no control tokens."""
    sentencepiece: bool = False


def _chatml(thinking: str, generation: str = "''") -> str:
    return CHATML.replace("THINKING", thinking).replace("GENERATION", generation)


FAMILIES = {
    "chatml": Family(_chatml(KEPT_THINKING), _CHATML_TOKENS, "<|im_end|>", _TAGS),
    "qwen3": Family(_chatml(QWEN3_THINKING, QWEN3_GENERATION), _CHATML_TOKENS, "<|im_end|>", _TAGS),
    "llama3": Family(
        LLAMA3,
        (
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
        ),
        "<|eot_id|>",
    ),
    "mistral": Family(
        MISTRAL,
        (
            "<s>",
            "</s>",
            "[INST]",
            "[/INST]",
            "[AVAILABLE_TOOLS]",
            "[/AVAILABLE_TOOLS]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]",
        ),
        "</s>",
        sentencepiece=True,
    ),
    "glm": Family(
        GLM,
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        "",
        _TAGS,
    ),
}
_BOS = {"llama3": "<|begin_of_text|>", "mistral": "<s>"}


@cache
def family_directory(name: str) -> Path:
    """A model's directory without weights; made once."""
    directory = Path(mkdtemp(prefix="rock-test-tokenizer-"))
    write_family(directory, name)
    return directory


def write_family(directory: Path, name: str) -> None:
    family = FAMILIES[name]
    tokenizer = _sentencepiece_like() if family.sentencepiece else _byte_level()
    tokenizer.add_special_tokens(  # pyright: ignore[reportUnknownMemberType] - its stubs say list
        [AddedToken(token, special=True) for token in family.specials]
    )
    tokenizer.add_tokens(  # pyright: ignore[reportUnknownMemberType] - its stubs say list
        [AddedToken(token, normalized=False) for token in family.tags]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": family.end or "<|user|>"}
    if name in _BOS:
        config["bos_token"] = _BOS[name]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(family.template)


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer


def _sentencepiece_like() -> Tokenizer:
    """Spaces are a mark of the word after them, and decoding loses the first one."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return tokenizer
