"""Task formats. `load_tasks` reads any of them; adding one is one file and one line in `ADAPTERS`.

A run file names its tasks as `NAME` or `NAME:SELECTION` for an adapter, or as a path: a `.jsonl`
file with one task per line, a `.yaml` file with one task, a Harbor task directory, or a folder of
`.yaml` files and such directories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from rock.errors import ConfigError
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.inputs.taskfiles import is_there
from rock.rollout.tasks import files, humaneval

Adapter: TypeAlias = Callable[[str], list[LoadedTask]]
"""From what follows the colon (empty for none) to tasks. Raises `ConfigError`."""

ADAPTERS: Mapping[str, Adapter] = {"humaneval": humaneval.load}


def load_tasks(spec: str, *, base: Path) -> list[LoadedTask]:
    """Every task that `spec` names, in a stable order; paths are relative to `base`.

    Raises `ConfigError` naming the file, line and field, also for no task and for equal task ids.
    """
    name, _, selection = spec.partition(":")
    if name in ADAPTERS:
        loaded = ADAPTERS[name](selection)
    else:
        loaded = files.load(_existing(base / spec, spec))
    if not loaded:
        raise ConfigError(f"tasks: {spec}: expected at least one task, found none")
    _refuse_duplicates(spec, loaded)
    return loaded


def _existing(path: Path, spec: str) -> Path:
    if not is_there(path):
        known = ", ".join(sorted(ADAPTERS))
        raise ConfigError(
            f"tasks: {spec!r}: no such file or folder: {path} "
            f"(expected a .jsonl or .yaml file, a folder of tasks, or one of: {known})"
        )
    return path


def _refuse_duplicates(spec: str, loaded: Iterable[LoadedTask]) -> None:
    seen: set[str] = set()
    for item in loaded:
        if item.task_id in seen:
            raise ConfigError(
                f"tasks: {spec}: task_id: {item.task_id!r} is given twice (expected unique ids)"
            )
        seen.add(item.task_id)
