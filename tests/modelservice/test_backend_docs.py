"""docs/backends.md names every field of a backends file with its default and meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from rock.modelservice.backends.config import BackendConfig, FaultConfig, read_backends
from tests.test_docs import blocks_of

PAGE = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()


def default_of(kind: type[BaseModel], name: str) -> str:
    field = kind.model_fields[name]
    if field.is_required():
        return "required"
    if field.default is None:
        return "null"
    return "none" if field.default in ([], {}) else f"{field.default}".removesuffix(".0")


@pytest.mark.parametrize("kind", [BackendConfig, FaultConfig])
def test_every_field_is_explained_with_its_default(kind: type[BaseModel]) -> None:
    for name, field in kind.model_fields.items():
        assert f"| `{name}` | {default_of(kind, name)} | {field.description} |" in PAGE


def test_the_example_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    (block,) = [block for block in blocks_of(PAGE) if block.file == "backends.yaml"]
    (tmp_path / "backends.yaml").write_text(block.text)
    assert read_backends(tmp_path / "backends.yaml").keys() == {"policy", "yesterday", "bad-day"}
