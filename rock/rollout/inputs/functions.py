"""Python functions that a person names in a task or run file: graders and agents."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from rock.errors import TaskError


def load_function(name: str, folder: Path) -> Callable[..., Any]:
    """The function that `package.module:function` or `file.py:function` names. Raises `TaskError`.

    A file is looked for beside the task file, in `folder`.
    """
    where, _, function = name.rpartition(":")
    try:
        if where.endswith(".py"):
            module = _from_file((folder / where).resolve())
        else:
            module = importlib.import_module(where)
    except Exception as exc:
        raise TaskError(f"{name}: {type(exc).__name__}: {exc}") from exc
    found = getattr(module, function, None)
    if not callable(found):
        raise TaskError(f"{name}: expected a function of that name in {where}")
    return cast("Callable[..., Any]", found)


def _from_file(path: Path) -> Any:
    name = f"rock_user_{path.stem}_{abs(hash((path, path.stat().st_mtime_ns))):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
