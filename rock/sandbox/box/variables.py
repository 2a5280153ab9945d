"""The environment of commands: who says what, and who wins. No I/O.

From below: what every command has (PATH, HOME, LANG, TMPDIR), the image's variables, the proxy's, the
specification's, what was changed while the sandbox runs, and what one command asks for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeAlias

from rock.errors import CommandRefused

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_CHANGES = 1000
EnvChanges: TypeAlias = dict[str, str | None]
"""Variables that were set, or taken away (None), while the sandbox runs."""


def merged(
    *below: Mapping[str, str],
    changes: Mapping[str, str | None],
    extra: Mapping[str, str],
    home: str,
) -> dict[str, str]:
    """`below` from the lowest to the highest, then `changes`, then `extra`."""
    found = {"PATH": DEFAULT_PATH, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    for layer in below:
        found.update(layer)
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = value
    found.update(extra)
    return found


def changed(present: EnvChanges, changes: Mapping[str, str | None]) -> EnvChanges:
    """`changes` on top of `present`. Raises `CommandRefused` for what cannot be a variable."""
    for name, value in changes.items():
        checked_name(name)
        if "\0" in name or (value is not None and "\0" in value):
            raise CommandRefused(f"env {name!r}: a NUL byte cannot be in a variable")
        encoded("env", name)
        encoded(f"env {name}", value or "")
    found = {**present, **changes}
    if len(found) > MAX_CHANGES:
        raise CommandRefused(f"env: got {len(found)} changes, expected at most {MAX_CHANGES}")
    return found


def checked_name(name: str) -> str:
    if not name or "=" in name:
        raise CommandRefused(f"env: got the name {name!r}, expected one without '='")
    return name


def encoded(field: str, value: str | bytes) -> bytes:
    """Text as bytes; a model can write half of a surrogate pair, which has none."""
    try:
        return os.fsencode(value)
    except UnicodeEncodeError as exc:
        raise CommandRefused(f"{field}: it is not text that has bytes ({exc})") from exc
