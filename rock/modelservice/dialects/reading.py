"""Reading the values of a request, with errors that name the place.

Top-level fields are taken out with `model_name`, `number` and `integer`; below them, `read(raw, kind, "messages[3].content[0]")` decodes a part as a struct or a plain type; what does not
fit becomes a BadRequest such as `messages[3].content[0].text: expected `str`, got `int``.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from rock.errors import BadRequest
from rock.modelservice.dialects.base import kind_of_json, take

T = TypeVar("T")
MAX_TOKENS = 2**31 - 1


class Typed(Struct):
    """The head of every tagged object."""

    type: str


def read(raw: Raw | bytes, kind: type[T], name: str) -> T:
    """Decode `raw` as `kind`. Raises BadRequest naming `name` and the path below it."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as exc:
        what, _, path = str(exc).partition(" - at `$")
        place = name + path.removesuffix("`")
        raise BadRequest(f"{place}: {what[:1].lower()}{what[1:]}", param=place) from exc
    except msgspec.DecodeError as exc:
        raise BadRequest(f"{name}: not valid JSON: {exc}", param=name) from exc
    except RecursionError as exc:
        raise BadRequest(f"{name}: nested too deeply", param=name) from exc


def tag(raw: Raw | bytes, name: str) -> str:
    """The `type` of a tagged object. Raises BadRequest."""
    return read(raw, Typed, name).type


def fields(raw: Raw | bytes, name: str) -> dict[str, Raw]:
    """An object's fields, each as sent. Raises BadRequest."""
    return read(raw, dict[str, Raw], name)


def refused(name: str, what: str, why: str) -> BadRequest:
    """For what rock knows and cannot do: refused by name, never dropped."""
    return BadRequest(f"{name}: {what} is not supported: {why}", param=name)


def unknown(name: str, what: str, raw: Raw | bytes, expected: str) -> BadRequest:
    shown = what if len(what) <= 60 else f"{what[:60]}…"
    given = shown or kind_of_json(bytes(raw))
    return BadRequest(f"{name}: expected {expected}, got {given!r}", param=name)


def model_name(fields: dict[str, Raw]) -> str:
    expected = "a string: the model's name"
    model: str | None = take(fields, "model", str, expected)
    if model is None:
        raise BadRequest(f"model: missing; expected {expected}", param="model")
    return model


def number(fields: dict[str, Raw], name: str, low: float, high: float) -> float | None:
    """Take a number from `low` to `high`; null and absent are None. Raises BadRequest."""
    expected = f"a number from {low:g} to {high:g}"
    value: float | None = take(fields, name, float, expected)
    if value is not None and not low <= value <= high:
        raise BadRequest(f"{name}: expected {expected}, got {value}", param=name)
    return value


def integer(fields: dict[str, Raw], name: str, high: int = MAX_TOKENS) -> int | None:
    """Take an integer from 1 to `high`; null and absent are None. Raises BadRequest."""
    expected = f"an integer from 1 to {high}"
    value: int | None = take(fields, name, int, expected)
    if value is not None and not 1 <= value <= high:
        raise BadRequest(f"{name}: expected {expected}, got {value}", param=name)
    return value
