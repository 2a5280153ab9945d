"""Files as task and run files write them. All sources on the host stay inside the task file's own folder."""

from __future__ import annotations

import base64
import binascii
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rock.config import Strict
from rock.errors import ConfigError
from rock.rollout.inputs.fields import SafePath


def _from_shorthand(value: Any) -> Any:
    return {"text": value} if isinstance(value, str) else value


class TaskFile(Strict):
    """Where one file (or, with `source`, one tree) comes from. Exactly one of the first three."""

    text: str | None = None
    base64: str | None = None
    source: SafePath | None = None
    """A file or folder beside the task file."""
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [value for value in (self.text, self.base64, self.source) if value is not None]
        if len(given) != 1:
            raise ValueError("expected exactly one of text, base64, source")
        if self.base64 is not None:
            try:
                base64.b64decode(self.base64, validate=True)
            except binascii.Error as exc:
                raise ValueError(f"base64: {exc}") from exc
        return self

    def data(self) -> bytes | None:
        """The bytes of an inline file, None for a `source`."""
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        return None if self.text is None else self.text.encode()


def _each_once(value: object) -> object:
    """Refuse two spellings of one path, of which only the last would be kept."""
    names: set[str] = set()
    for key in _keys(value):
        name = str(PurePosixPath(key)) if isinstance(key, str) else ""
        if name in names:
            raise ValueError(f"expected each file once: {name[:80]!r} is given twice")
        names.add(name)
    return value


def _keys(value: object) -> Iterable[object]:
    return cast("Mapping[object, object]", value) if isinstance(value, Mapping) else ()


def _no_file_in_a_file(files: dict[str, TaskFile]) -> dict[str, TaskFile]:
    for name in files:
        for parent in PurePosixPath(name).parents:
            outer = files.get(str(parent))
            if outer is not None and outer.source is None:
                raise ValueError(
                    f"expected {str(parent)[:80]!r} to be a file or a folder, not both"
                )
    return files


Files = Annotated[
    dict[SafePath, Annotated[TaskFile, BeforeValidator(_from_shorthand)]],
    BeforeValidator(_each_once),
    AfterValidator(_no_file_in_a_file),
]


def check_source(folder: Path, relative: str, *, where: str) -> None:
    """A `ConfigError` unless `relative` is a file or folder that lies inside `folder`."""
    path = folder / relative
    try:
        mode = path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"{where}: {exc.strerror}: {path}") from exc
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: expected a path inside {folder}; {relative} leads out of it")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ConfigError(f"{where}: expected a file or a folder: {path}")


def inline(path: Path) -> TaskFile:
    """A host file as a `TaskFile` that holds its bytes. Raises `ConfigError`."""
    try:
        data, mode = path.read_bytes(), path.stat().st_mode
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    return TaskFile(base64=base64.b64encode(data).decode(), mode=mode & 0o777)


def inlined(files: Files, base: Path, *, where: str) -> Files:
    """`files` with every `source` read in from `base`. Raises `ConfigError`."""
    result: Files = {}
    for name, file in files.items():
        if file.source is None:
            result[name] = file
            continue
        source = base / file.source
        if not is_there(source):
            raise ConfigError(f"{where}.{name}.source: no such file or folder: {source}")
        for item in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if item.is_file():
                result[str(PurePosixPath(name, item.relative_to(source).as_posix()))] = inline(item)
    return result


def is_there(path: Path) -> bool:
    """Whether there is something at `path`, which may be no path at all."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True
