"""`{name}` in commands and environments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with every `{name}` that is in `values` replaced, once; other braces stay."""
    return _NAME.sub(lambda match: values.get(match[1], match[0]), template)


def fill_all(templates: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [fill(template, values) for template in templates]


def fill_values(templates: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return {key: fill(template, values) for key, template in templates.items()}
