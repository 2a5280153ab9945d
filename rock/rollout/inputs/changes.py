"""In which fields the run files of one run may differ, when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rock.config import kind_of

FREE_TO_CHANGE = frozenset(
    {
        "concurrency",
        "out",
        "infra",
        "service",
        "schedule",
        "consume_timeout_seconds",
        "secrets",
        "pool",
    }
)
"""Fields that a resumed run may change: they do not change what an episode means."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line per field in which a resumed run may not differ, but does."""
    lines: list[str] = []
    for field in sorted(set(old) | set(new)):
        if field not in FREE_TO_CHANGE and old.get(field) != new.get(field):
            lines.extend(_describe(field, old.get(field), new.get(field)))
    return lines


def _describe(field: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        return [
            line
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
            for line in _describe(f"{field}.{key}", before.get(key), after.get(key))
        ]
    if isinstance(old, list) and isinstance(new, list):
        one, other = cast("list[Any]", old), cast("list[Any]", new)
        if len(one) != len(other):
            return [f"{field}: the run has {len(one)} values, the run file now has {len(other)}"]
        number = next(n for n, value in enumerate(one) if value != other[n])
        return _describe(f"{field}.{number}", one[number], other[number])
    return [f"{field}: the run has {kind_of(old)}, the run file now says {kind_of(new)}"]
