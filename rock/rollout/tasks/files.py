"""Tasks in files: JSONL (one task per line), YAML (one task per file), Harbor's directories, folders of
the last two. A JSONL line may be a row of a SWE data set (`swe_rows`, `r2e_rows`), also as NeMo Gym
packs them (`nemo_rows`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from rock.config import kind_of, validated
from rock.errors import ConfigError
from rock.plain import read_json, read_text, read_yaml
from rock.rollout.inputs.task import LoadedTask, Task, check_sources
from rock.rollout.tasks import harbor, nemo_rows, r2e_rows, swe_rows

ROWS = (swe_rows, r2e_rows)
"""Formats of rows; the first that knows one reads it."""
YAML_SUFFIXES = (".yaml", ".yml")


def load(path: Path) -> list[LoadedTask]:
    """The tasks in a file or folder. Raises `ConfigError` naming file, line and field."""
    if path.is_dir():
        return [harbor.load(path)] if harbor.is_task(path) else _load_folder(path)
    if path.suffix == ".jsonl":
        return _load_jsonl(path)
    if path.suffix in YAML_SUFFIXES:
        return [_load_yaml(path)]
    raise ConfigError(f"tasks: {path}: expected a .jsonl or .yaml file or a folder of .yaml files")


def _load_folder(folder: Path) -> list[LoadedTask]:
    """Every task of a folder, in the order of names."""
    found: list[LoadedTask] = []
    for item in sorted(folder.iterdir()):
        if item.suffix in YAML_SUFFIXES:
            found.append(_load_yaml(item))
        elif harbor.is_task(item):
            found.append(harbor.load(item))
    return found


def _load_jsonl(path: Path) -> list[LoadedTask]:
    loaded: list[LoadedTask] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        source = f"{path}:{number}"
        data = read_json(line, source=source)
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
    row = cast("dict[str, Any]", data)
    if nemo_rows.is_row(row):
        data = row = nemo_rows.unpacked(row, source=source)
    for rows in ROWS:
        if rows.is_row(row):
            data = rows.task_of(row, source=source)
            break
    task = validated(Task, data, source=source)
    return check_sources(LoadedTask(task, folder.resolve()), source=source)
