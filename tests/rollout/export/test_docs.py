"""docs/export.md names every format, option and field."""

import re
from pathlib import Path

import pytest

from rock.rollout.export import FORMATS, ExportOptions
from rock.rollout.export.formats.line import Line
from rock.rollout.export.sample import SampleSpan

PAGE = (Path(__file__).parents[3] / "docs" / "export.md").read_text()


def table_after(heading: str) -> set[str]:
    """The names in the first column of the table below a heading."""
    part = PAGE.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return {
        name
        for row in re.findall(r"^\| (`[^|]*) \|", part, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", row)
    }


def test_every_format_is_listed() -> None:
    assert table_after("Formats") == set(FORMATS)


def test_every_option_is_explained_with_its_default() -> None:
    assert table_after("Options") == set(ExportOptions.model_fields)
    for name, field in ExportOptions.model_fields.items():
        words = {"None": "null", "()": "none", "True": "true", "False": "false", "0.0": "0"}
        default = words.get(str(field.default), str(field.default))
        assert f"| `{name}` | {default} |" in PAGE


def test_every_field_of_a_line_is_explained() -> None:
    assert table_after("A sample (schema 1)") == set(Line.__struct_fields__)


@pytest.mark.parametrize("name", SampleSpan.__struct_fields__)
def test_every_field_of_a_span_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE.split("A span is", 1)[1].split("\n\n", 1)[0]
