"""docs/environments.md names every field of a definition with its default, and every kind of source."""

import re
from pathlib import Path
from typing import Any

from rock.gym.definition import KINDS, Definition

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def test_every_field_is_documented_with_its_default() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|`]+) \|", PAGE, re.MULTILINE))
    expected: dict[str, str] = {}
    for name, field in Definition.model_fields.items():
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            texts: dict[Any, str] = {None: "null", 2 * 1024**3: "2 GiB"}
            known = default if isinstance(default, (int, float, str, type(None))) else str(default)
            expected[name] = texts.get(
                known, f"{known:g}" if isinstance(known, float) else str(known)
            )
    assert shown == expected


def test_every_kind_of_source_is_documented() -> None:
    assert re.findall(r"^\| `(\w+):[A-Z]", PAGE, re.MULTILINE) == list(KINDS)
