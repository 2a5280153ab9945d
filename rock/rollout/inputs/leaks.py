"""Secrets on their way into a sandbox: found before anything starts, and refused.

What a sandbox is made of is written by a person: commands, variables, files. None of it may hold a value
that is registered as a secret (`rock.secrets`), because whatever is in a sandbox is the agent's. The
environment of the harness never goes there, so this is the only way in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rock.errors import ConfigError
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import LoadedTask, sources_of
from rock.secrets import holds, redact

MAX_LOOKED_AT_BYTES = 1024 * 1024
"""Larger files are data; looking through them at every start would take too long."""
_REMEDY = (
    "holds a secret of this machine, which the agent would see; a model is reached without a key, and "
    "a grader that needs one is a Python function or a judge"
)


def refuse_leaks(run: RunFile, tasks: Sequence[LoadedTask]) -> None:
    """Raises `ConfigError` naming the field, and never the value."""
    for section, value in (("agent", run.agent), ("grader", run.grader)):
        if value is not None:
            _refuse(section, value.model_dump(mode="json"))
    for target, host in run.agent.files.items():
        _refuse_files(f"agent.files.{target}", host)
    for item in tasks:
        _refuse(f"tasks: {item.task_id}", item.task.model_dump(mode="json"))
        for field, source in sources_of(item.task):
            _refuse_files(f"tasks: {item.task_id}: {field}", item.folder / source)


def _refuse(where: str, value: Any) -> None:
    for field, text in _texts(value):
        if holds(text):
            raise ConfigError(f"{where}{field}: {_REMEDY}")


def _texts(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a value, by the path of fields to it."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _texts(inner, f"{field}.{key}")
    elif isinstance(value, Sequence):
        for number, inner in enumerate(cast("Sequence[Any]", value)):
            yield from _texts(inner, f"{field}.{number}")


def _refuse_files(where: str, root: Path) -> None:
    for path in [root] if root.is_file() else root.rglob("*"):
        if not path.is_file() or path.stat().st_size > MAX_LOOKED_AT_BYTES:
            continue
        data = path.read_bytes()
        if redact(data) is not data:
            raise ConfigError(f"{where}: {path}: {_REMEDY}")
