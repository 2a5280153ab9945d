"""Rows of NeMo Gym that hold a task about a repository, unpacked into the row that they were made of.

    responses_create_params.metadata.instance_dict   JSON in a string: a row of SWE-bench or R2E-Gym

`image` beside it names the task's image. Sampling values and `agent_ref` are the run file's business here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from rock.config import kind_of
from rock.errors import ConfigError

_OUTSIDE = ("image", "rock")
"""Fields beside the packed row that belong to it."""


def is_row(data: Mapping[str, Any]) -> bool:
    return "task_id" not in data and "instance_dict" in _metadata(data)


def unpacked(row: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """The row inside. Raises `ConfigError` naming the field."""
    where = f"{source}: responses_create_params.metadata.instance_dict"
    metadata = _metadata(row)
    value = metadata["instance_dict"]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as exc:
            raise ConfigError(f"{where}: not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected the fields of a row (given: {kind_of(value)})")
    around = {key: value for key, value in metadata.items() if key != "instance_dict"}
    outside = {key: row[key] for key in _OUTSIDE if key in row}
    return {**around, **cast("dict[str, Any]", value), **outside}


def _metadata(data: Mapping[str, Any]) -> Mapping[str, Any]:
    params: object = data.get("responses_create_params")
    found = cast("dict[str, Any]", params).get("metadata") if isinstance(params, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
