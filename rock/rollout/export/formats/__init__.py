"""The formats by name. Each is imported when it is used, so numpy and pyarrow stay optional."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

from rock.errors import ConfigError
from rock.rollout.export.formats.base import Facts, Format, Reloaded
from rock.rollout.export.options import ExportOptions

FORMATS: Mapping[str, str] = {
    "jsonl": "jsonl:Jsonl",
    "parquet": "columns:Parquet",
    "hf": "columns:HuggingFace",
    "openai-sft": "openai:OpenAiSft",
    "openai-dpo": "openai:OpenAiDpo",
    "atif": "atif:Atif",
    "verl": "verl:Verl",
    "roll": "roll:Roll",
    "prime-rl": "prime_rl:PrimeRl",
    "slime": "slime:Slime",
}
"""Name -> module and class here."""

_MODULES = {"parquet": "pyarrow", "hf": "pyarrow", "verl": "numpy", "roll": "numpy"}


def format_class(name: str) -> type[Format]:
    """Raises `ConfigError` for an unknown format, or one whose libraries are not installed."""
    if name not in FORMATS:
        raise ConfigError(f"format: {name!r} is not one of {', '.join(FORMATS)}")
    needed = _MODULES.get(name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise ConfigError(
            f"format: {name} needs {needed}; install it with: pip install 'rock-rollout[export]'"
        )
    module, _, cls = FORMATS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), cls)


def make_format(name: str, options: ExportOptions, facts: Facts) -> Format:
    """Raises `ConfigError`."""
    return format_class(name)(options, facts)


__all__ = ["FORMATS", "Facts", "Format", "Reloaded", "format_class", "make_format"]
