"""What single fields of task and run files may hold, each checked where it is read.

All paths inside a sandbox are written relative to a directory that the harness makes, so a task file
cannot write anywhere else.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 2048
"""Of a file's name, and of a path to which the working directory is still to be added."""


def safe_relative(path: str) -> str:
    """`path` if it stays inside the directory it is relative to, else a ValueError that says why."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.name in ("", ".."):
        raise ValueError("expected a relative file path, like 'src/main.py'")
    if pure.is_absolute() or ".." in pure.parts:
        raise ValueError("expected a path inside the directory: not absolute and without '..'")
    if len(path.encode()) > MAX_PATH_BYTES or any(
        len(p.encode()) > MAX_NAME_BYTES for p in pure.parts
    ):
        raise ValueError(
            f"expected names of at most {MAX_NAME_BYTES} bytes and {MAX_PATH_BYTES} in all, which is "
            "what file systems take"
        )
    return str(pure)


def absolute(path: str) -> str:
    """`path` if it is an absolute, normal sandbox path, else a ValueError that says why."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise ValueError("expected an absolute path without '..', like '/workspace'")
    return str(pure)


def _inside_the_box(path: str) -> str:
    """A sandbox path that may be removed: no system directory, not the root itself."""
    if not path.startswith("/"):
        return safe_relative(path)
    if len(PurePosixPath(absolute(path)).parts) < 2:
        raise ValueError("expected a path below '/', like '/solution'")
    return absolute(path)


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("expected text without NUL, which no program can be given")
    return text


def _variable_name(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise ValueError("expected a variable's name: not empty, without '=' and NUL")
    return name


_FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|[^:]*\.py):[A-Za-z_]\w*")


def function_name(value: str) -> str:
    """`value` if it names a function, else a ValueError that says how one is named."""
    if not _FUNCTION.fullmatch(value):
        raise ValueError("expected 'package.module:function' or 'file.py:function'")
    return value


QUEUE = "queue"
BUILT_IN = re.compile(r"(litellm|openai|engine|replay):.+")
"""Backends that need no description."""
DESCRIBED = re.compile(r"[A-Za-z0-9_.-]+")
"""`queue`, or a name in `service.backends_file`."""


def backend_name(value: str) -> str:
    """`value` if it names who answers, else a ValueError that says what would."""
    if BUILT_IN.fullmatch(value) or DESCRIBED.fullmatch(value):
        return value
    raise ValueError(
        "expected 'queue' (a trainer answers), 'litellm:NAME' (a hosted model), 'openai:NAME', "
        "'engine:NAME', 'replay:PATH', or a name in service.backends_file"
    )


SafePath = Annotated[str, AfterValidator(safe_relative)]
Argument = Annotated[str, AfterValidator(_without_nul)]
"""What a program or the system is given."""
Variables = dict[Annotated[str, AfterValidator(_variable_name)], Argument]
"""Of the environment."""
AbsolutePath = Annotated[str, AfterValidator(absolute)]
BoxPath = Annotated[str, AfterValidator(_inside_the_box)]
"""Absolute, or relative to the working directory."""
Argv = Annotated[list[Argument], Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Tokens = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
FunctionName = Annotated[str, AfterValidator(function_name)]
BackendName = Annotated[str, AfterValidator(backend_name)]
"""Who answers: `queue`, a built-in backend or a described one."""
