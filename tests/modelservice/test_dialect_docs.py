"""docs/dialects.md says of every field, block and tool what becomes of it, and it is so."""

import re
from pathlib import Path

import pytest

from rock.modelservice.dialects import BY_ROUTE, COUNTED, auxiliary
from rock.modelservice.dialects.anthropic import request as anthropic_request
from rock.modelservice.dialects.anthropic import tools as anthropic_tools
from rock.modelservice.dialects.responses import items, tools
from rock.modelservice.dialects.responses import request as responses_request

PAGE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()


def rows(fate: str) -> str:
    """The table rows whose fate begins with this word."""
    return "\n".join(re.findall(rf"^\| .+ \| {fate}.*$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("route", [*BY_ROUTE, *COUNTED])
def test_every_path_is_listed(route: str) -> None:
    assert f"/v1{route}" in PAGE


@pytest.mark.parametrize("name", [*anthropic_request.REFUSED, *responses_request.REFUSED])
def test_what_is_refused_is_listed_as_refused(name: str) -> None:
    assert f"`{name}" in rows("refused")


@pytest.mark.parametrize("name", anthropic_request.IGNORED)
def test_what_is_ignored_is_listed_as_ignored(name: str) -> None:
    assert f"`{name}`" in rows("ignored")


@pytest.mark.parametrize(
    "name", [*items.CALLS, *(f"{prefix}*" for prefix in anthropic_tools.CLIENT_TOOLS), *tools.LOCAL]
)
def test_what_is_mapped_is_listed_as_mapped(name: str) -> None:
    assert f"`{name}`" in rows("mapped")


@pytest.mark.parametrize("name", tools.WITHHELD)
def test_what_is_kept_is_listed_as_kept(name: str) -> None:
    assert f"`{name}`" in rows("kept")


@pytest.mark.parametrize("mark", [mark for mark, _ in auxiliary.MARKS])
def test_every_mark_of_an_auxiliary_call_is_listed(mark: str) -> None:
    words = "agent" if mark == "context summarization agent" else mark
    assert f'"{words}"' in PAGE
