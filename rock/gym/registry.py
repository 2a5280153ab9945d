"""Names of environments, and how to get one: `make`, `list`, `register`."""

from __future__ import annotations

import builtins
import re
from typing import Any

import gymnasium

from rock.config import validated
from rock.errors import ConfigError
from rock.gym.definition import KINDS, Definition
from rock.gym.env import RockEnv, environment

NAME = re.compile(r"(?:[\w:-]+/)?[\w:.-]+?(?:-v\d+)?")
"""What Gymnasium takes as an id."""
GENERIC_ID = "rock/Environment-v0"
_ENTRY_POINT = "rock.gym.registry:entry"
_names: dict[str, Definition] = {}
_gymnasium: Any = gymnasium  # whose `register` has no types for `kwargs`


def register(name: str, source: str, **fields: Any) -> None:
    """Give an environment a name, for `rock.make` and `gymnasium.make` alike; a name's second
    registration replaces the first.

    `fields` are those of `Definition`. Raises `ConfigError` naming the field.
    """
    if not NAME.fullmatch(name) or name.partition(":")[0] in KINDS:
        raise ConfigError(f"name: got {name!r}, expected a Gymnasium id such as rock/Taxi-v4")
    _names[name] = validated(Definition, {"source": source, **fields}, source=name)
    if name in gymnasium.registry:
        del gymnasium.registry[name]
    _gymnasium.register(
        name,
        entry_point=_ENTRY_POINT,
        kwargs={"source": source, **fields},
        nondeterministic=source.startswith("task:"),
    )


def make(name: str, *, render_mode: str | None = None, **fields: Any) -> RockEnv:
    """The environment of a registered name, or of a source such as `gym:Taxi-v4`, running.

    `fields` are those of `Definition` and win over the registered ones. Raises `ConfigError` for a name
    or field that is none, `EnvironmentFailed` when it does not start, and `SandboxError`.
    """
    if name in _names:
        given = {**_names[name].model_dump(exclude_unset=True), **fields}
    elif name.partition(":")[0] in KINDS:
        given = {"source": name, **fields}
    else:
        known = ", ".join(sorted(_names)) or "none is registered"
        raise ConfigError(
            f"make: there is no environment {name!r} (expected gym:NAME, gem:NAME, "
            f"call:MODULE:FUNCTION, task:TASKS, or a registered name: {known})"
        )
    return environment(validated(Definition, given, source=name), render_mode=render_mode)


def entry(source: str, *, render_mode: str | None = None, **fields: Any) -> RockEnv:
    """What `gymnasium.make` calls."""
    definition = validated(Definition, {"source": source, **fields}, source=source)
    return environment(definition, render_mode=render_mode)


def list() -> builtins.list[str]:
    """Every name that `make` takes here: those registered, and what this Python's Gymnasium knows."""
    own = sorted(_names)
    known = sorted(name for name in gymnasium.registry if not name.startswith("rock/"))
    return [*own, *(f"gym:{name}" for name in known if name not in _names)]


if GENERIC_ID not in gymnasium.registry:
    _gymnasium.register(GENERIC_ID, entry_point=_ENTRY_POINT)
