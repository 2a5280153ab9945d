"""Settings from outside: the only reader of the environment, and one way to load a checked file.

Every variable rock itself reads is a field of `Environment`; a component takes values, never this
object. `validated` turns pydantic's report into one `ConfigError` line per field: the field, what
was given, what was expected.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from rock.errors import ConfigError
from rock.secrets import credentials_in, telling, telling_values

Model = TypeVar("Model", bound=BaseModel)

MAX_NAME = 80
"""Of a field's name in a message, which a person may have invented."""
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


TAG = "\0"
"""Begins the tag of a tagged union; such a part of a path is no field and is not shown."""


class Strict(BaseModel):
    """Base of every model for data that a person writes: unknown fields are errors, values frozen,
    numbers finite (no bound is infinite, and JSON has no word for it)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Environment(Strict):
    """The process environment, read once."""

    state_dir: Path = Field(description="Where rock keeps state between runs (ROCK_STATE_DIR).")
    require: frozenset[str] = Field(
        description="What tests may not be skipped for want of (ROCK_REQUIRE)."
    )
    docker_host: str | None = Field(description="Engine address (DOCKER_HOST).")
    api_base: str | None = Field(
        description="Address of the backends' API, where it may hold a password (ROCK_API_BASE)."
    )
    clients_dir: Path = Field(description="Where agents are installed (ROCK_CLIENTS_DIR).")
    sandbox_url: str | None = Field(
        description="Sandbox server of `rock sandbox` (ROCK_SANDBOX_URL)."
    )
    sandbox_key: str | None = Field(description="Its key (ROCK_SANDBOX_KEY).")
    log_level: str = Field(description="Level of rock's log lines on stderr (ROCK_LOG_LEVEL).")
    log_format: Literal["text", "json"] = Field(
        description="Form of ModelService's log lines (ROCK_LOG_FORMAT)."
    )


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """The variables of this process, or `environ`. Raises `ConfigError` naming the variable."""
    env = os.environ if environ is None else environ
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    default_state = Path(env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "rock"
    return Environment(
        state_dir=Path(env.get("ROCK_STATE_DIR") or default_state),
        require=frozenset(env.get("ROCK_REQUIRE", "").replace(",", " ").split()),
        docker_host=env.get("DOCKER_HOST"),
        api_base=env.get("ROCK_API_BASE"),
        clients_dir=Path(env.get("ROCK_CLIENTS_DIR") or cache / "rock" / "clients").absolute(),
        sandbox_url=env.get("ROCK_SANDBOX_URL"),
        sandbox_key=env.get("ROCK_SANDBOX_KEY"),
        log_level=_log_level(env.get("ROCK_LOG_LEVEL") or "WARNING"),
        log_format=_log_format(env.get("ROCK_LOG_FORMAT") or "text"),
    )


def _log_level(given: str) -> str:
    level = given.upper()
    if level not in LOG_LEVELS:
        raise ConfigError(f"ROCK_LOG_LEVEL: expected one of {', '.join(LOG_LEVELS)}: {given!r}")
    return level


def _log_format(given: str) -> Literal["text", "json"]:
    match given.lower():
        case "text" | "json" as known:
            return known
        case _:
            raise ConfigError(f"ROCK_LOG_FORMAT: expected one of text, json: {given!r}")


def secret_values(also: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> list[str]:
    """Values of this process's variables whose names say that they are secret, and of `also`."""
    return telling_values(os.environ if environ is None else environ, also)


def inherited_environment() -> dict[str, str]:
    """A copy of this process's variables, for a child that should have them (ModelService)."""
    return dict(os.environ)


def validated(model: type[Model], data: Any, *, source: str) -> Model:
    """`data` as `model`, or a `ConfigError` naming `source` and every wrong field."""
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        lines: list[str] = []
        for error in exc.errors(include_url=False):
            field = _field(error["loc"]) or "(top level)"
            given = error["input"]
            # A wrong field may be the place where somebody keeps a key.
            shown = (
                f"a {type(given).__name__}" if telling(field.rpartition(".")[2]) else kind_of(given)
            )
            lines.append(f"{source}: {field}: {_what(error, model)} (given: {shown})")
        raise ConfigError("\n".join(lines)) from exc


def _what(error: ErrorDetails, model: type[BaseModel]) -> str:
    """What a check said; pydantic puts two words of its own before what our validators raise."""
    if error["type"] == "extra_forbidden":
        known = list(model.model_fields) if len(error["loc"]) == 1 else []
        name = str(error["loc"][-1])[:MAX_NAME].lower().replace("-", "_")
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        return "there is no such field" + (f"; did you mean {near[0]}?" if near else "")
    raised = error.get("ctx", {}).get("error")
    return str(raised) if isinstance(raised, ValueError) else error["msg"]


def _field(location: tuple[int | str, ...]) -> str:
    """A path of names; a wrong name is named like a wrong value."""
    parts = [str(part)[:MAX_NAME] for part in location if not str(part).startswith(TAG)]
    return ".".join(parts[:-1] if parts[-1:] == ["[key]"] else parts)


def kind_of(value: Any) -> str:
    """A value's kind for an error message: short scalars are shown, the rest only named."""
    if isinstance(value, str) and credentials_in(value):
        return "an address with a password or key in it"
    if isinstance(value, str) and len(value) > 60:
        return f"a string of {len(value)} characters"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return f"a {type(value).__name__}"
