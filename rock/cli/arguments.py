"""What several commands take on the command line, as values."""

from __future__ import annotations

from collections.abc import Sequence

from rock.errors import ConfigError


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """NAME=VALUE options as a dict. Raises `ConfigError`."""
    result: dict[str, str] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise ConfigError(f"{option} {item}: expected NAME=VALUE")
        result[name] = value
    return result
