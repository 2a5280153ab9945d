"""The package stands on the wire types and the errors alone, and its page in the docs is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import rock.modelservice.text

PACKAGE = Path(rock.modelservice.text.__file__).parent
PAGE = PACKAGE.parents[2] / "docs" / "text.md"
ALLOWED = ("rock.modelservice.text", "rock.modelservice.wire", "rock.errors", "rock.types")
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_nothing_else_of_rock_is_imported(path: Path) -> None:
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert [
        name for name in imported if name.startswith("rock") and not name.startswith(ALLOWED)
    ] == []


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_the_examples_on_the_page_run(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {})


def test_the_page_names_every_format() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.M))
    assert named == set(rock.modelservice.text.FORMATS)
