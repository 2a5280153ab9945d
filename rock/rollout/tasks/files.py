"""Tasks that a person writes: JSONL (one task per line) and YAML (one task per file, or a folder)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import yaml

from rock.config import kind_of, validated
from rock.errors import ConfigError
from rock.rollout.task import LoadedTask, Task, check_sources

YAML_SUFFIXES = (".yaml", ".yml")


def load(path: Path) -> list[LoadedTask]:
    """The tasks in a file or folder. Raises `ConfigError` naming file, line and field."""
    if path.is_dir():
        found = sorted(item for item in path.iterdir() if item.suffix in YAML_SUFFIXES)
        return [_load_yaml(item) for item in found]
    if path.suffix == ".jsonl":
        return _load_jsonl(path)
    if path.suffix in YAML_SUFFIXES:
        return [_load_yaml(path)]
    raise ConfigError(f"tasks: {path}: expected a .jsonl or .yaml file or a folder of .yaml files")


def _load_jsonl(path: Path) -> list[LoadedTask]:
    loaded: list[LoadedTask] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        source = f"{path}:{number}"
        try:
            data = json.loads(line)
        except json.JSONDecodeError as exc:
            raise ConfigError(
                f"{source}: not JSON: {exc.msg} at column {exc.colno} (expected one object per line)"
            ) from exc
        loaded.append(_task(data, source=source, folder=path.parent))
    return loaded


def _load_yaml(path: Path) -> LoadedTask:
    data = read_yaml(path)
    if isinstance(data, dict):
        data = {"task_id": path.stem, **cast("dict[str, Any]", data)}
    return _task(data, source=str(path), folder=path.parent)


def _task(data: Any, *, source: str, folder: Path) -> LoadedTask:
    if not isinstance(data, dict):
        raise ConfigError(
            f"{source}: expected an object with task_id, instruction, … (given: {kind_of(data)})"
        )
    task = validated(Task, data, source=source)
    return check_sources(LoadedTask(task, folder.resolve()), source=source)


def read_text(path: Path) -> str:
    """The file as UTF-8 text, or a `ConfigError` that says what is wrong with it."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: expected UTF-8 text; byte {exc.start} is not") from exc


def read_yaml(path: Path) -> Any:
    """The file's YAML value, or a `ConfigError` with the line at which it stops being YAML."""
    try:
        return yaml.safe_load(read_text(path))
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}: not YAML: {exc}") from exc
