"""Layered settings: defaults, then a file, then the command line."""

from settings.merge import merge
from settings.parse import parse

__all__ = ["load", "merge", "parse"]

DEFAULTS = {"server": {"host": "localhost", "port": 8080, "tags": ["web"]}, "debug": False}


def load(text="", overrides=()):
    """The settings: a text of `key.path = value` lines over the defaults, `overrides` over both."""
    result = merge(DEFAULTS, parse(text))
    for line in overrides:
        result = merge(result, parse(line))
    return result
