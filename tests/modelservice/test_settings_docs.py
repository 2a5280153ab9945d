"""docs/settings.md names every setting of ModelService with its default."""

from pathlib import Path

import pytest

from rock.modelservice.settings import ServiceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()


@pytest.mark.parametrize("name", list(ServiceConfig.model_fields))
def test_every_setting_is_explained_with_its_default(name: str) -> None:
    field = ServiceConfig.model_fields[name]
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    default = row.split("|")[2].strip()
    if field.is_required():
        assert default == ""
    elif field.default is None:
        assert default == "null"
    else:
        assert type(field.default)(default) == field.default
