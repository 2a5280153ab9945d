"""What a Dockerfile says that must be known before it is built. Pure; no more of the language than that."""

from __future__ import annotations

import re
from collections.abc import Iterator

SCRATCH = "scratch"
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Each instruction, in capitals, with the rest of its line; lines that go on are one."""
    joined = re.sub(r"\\[ \t]*\n(?:[ \t]*#[^\n]*\n)*", " ", text)
    for line in joined.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            yield word.upper(), rest.strip()


def bases(text: str) -> list[str]:
    """The images that it is built from, each once: no stages of its own, and not `scratch`.

    Variables stand for the defaults that it gives them. One without a default stays as it is.
    """
    defaults: dict[str, str] = {}
    stages = {SCRATCH}
    found: dict[str, None] = {}
    for word, rest in instructions(text):
        if word == "ARG" and not found:
            name, _, value = rest.partition("=")
            defaults[name.strip()] = value.strip().strip("\"'")
        elif word == "FROM":
            words = [part for part in _filled(rest, defaults).split() if not part.startswith("--")]
            if words and words[0].lower() not in stages:
                found[words[0]] = None
            if len(words) == 3 and words[1].upper() == "AS":
                stages.add(words[2].lower())
    return list(found)


def _filled(text: str, defaults: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return defaults.get(name) or match[2] or match[0]

    return _VARIABLE.sub(value, text)
