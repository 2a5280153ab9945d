"""JSON and YAML that people write, as plain data: what can be stored, sent and shown again.

`read_yaml` and `read_json` refuse, naming file and line, what their parsers let pass or fall over: a
field given twice (the last one would silently win), values that hold themselves or are nested without
end, aliases that stand for millions of values, halves of surrogate pairs, numbers of thousands of digits.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from rock.config import kind_of
from rock.errors import ConfigError

MAX_DEPTH = 64
MAX_VALUES = 1_000_000
"""In one document, with every alias written out."""
MAX_YAML_BYTES = 8 * 1024**2
"""PyYAML needs a second for 100 KB of short values; large data are files of a task, or JSONL."""


class RepeatedField(ValueError):
    """A field that is given twice."""


class _Loader(yaml.SafeLoader):
    """YAML's safe subset, without repeated fields (what `<<` brings in may still be overridden)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = f"{key.tag} {key.value}"
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the field {key.value[:80]!r} is given twice", key.start_mark
                    )
                seen.add(name)
        return super().construct_mapping(node, deep=deep)


def read_text(path: Path, *, max_bytes: int | None = None) -> str:
    """The file as UTF-8 text, or a `ConfigError` that says what is wrong with it."""
    try:
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            # It could go on for ever, and is needed again when the run is resumed.
            raise ConfigError(f"{path}: expected a regular file, not a pipe or a device")
        if max_bytes is not None and found.st_size > max_bytes:
            raise ConfigError(
                f"{path}: expected at most {max_bytes} bytes (given: {found.st_size})"
            )
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: expected UTF-8 text; byte {exc.start} is not") from exc


def read_yaml(path: Path) -> Any:
    """The file's value. Raises `ConfigError` with the line at which it stops being YAML."""
    text = read_text(path, max_bytes=MAX_YAML_BYTES)
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {exc.problem}") from exc
    except RecursionError as exc:
        raise _too_deep(str(path)) from exc
    except (yaml.YAMLError, ValueError) as exc:
        # A date that does not exist, a number of too many digits.
        raise ConfigError(f"{path}: not YAML: {_said(exc)}") from exc
    _refuse_hostile(value, str(path))
    return value


def read_json(text: str, *, source: str) -> Any:
    """The value that `text`, a line, is. Raises `ConfigError` naming `source`."""
    try:
        value = json.loads(text, object_pairs_hook=each_once)
    except json.JSONDecodeError as exc:
        raise ConfigError(
            f"{source}: not JSON: {exc.msg} at column {exc.colno} (expected one object per line)"
        ) from exc
    except RecursionError as exc:
        raise _too_deep(source) from exc
    except ValueError as exc:
        raise ConfigError(f"{source}: {_said(exc)}") from exc
    _refuse_hostile(value, source)
    return value


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object whose fields are each given once, else `RepeatedField`."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RepeatedField(f"the field {twice[:80]!r} is given twice")
    return found


def _said(exc: Exception) -> str:
    """Without Python's advice to whoever wrote the program."""
    return str(exc).partition("; use sys.")[0]


def _too_deep(source: str) -> ConfigError:
    return ConfigError(f"{source}: nested too deep, or a value holds itself (at most {MAX_DEPTH})")


def _refuse_hostile(value: Any, source: str) -> None:
    """A `ConfigError` for what cannot be stored as JSON in a bounded time."""
    left = MAX_VALUES
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        left -= 1
        if left < 0:
            raise ConfigError(
                f"{source}: expected at most {MAX_VALUES} values, those that aliases stand for included"
            )
        if depth > MAX_DEPTH:
            raise _too_deep(source)
        if isinstance(item, str):
            _refuse_half_characters(item, source)
        elif isinstance(item, bytes):
            raise ConfigError(f"{source}: expected text, not binary data ({len(item)} bytes)")
        elif isinstance(item, dict):
            for key, inner in cast("dict[Any, Any]", item).items():
                waiting += [(key, depth + 1), (inner, depth + 1)]
        elif isinstance(item, (list, tuple, set)):
            waiting += [(inner, depth + 1) for inner in cast("list[Any]", item)]


def _refuse_half_characters(text: str, source: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(
            f"{source}: expected whole Unicode characters (given: half a surrogate pair, in "
            f"{kind_of(text.encode('ascii', 'backslashreplace').decode())})"
        ) from exc
