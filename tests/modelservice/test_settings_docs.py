"""docs/settings.md names every setting with its default and meaning, docs/interceptors.md every rule."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import pytest

from rock.config import Environment, read_environment
from rock.errors import ConfigError
from rock.modelservice.settings import ServiceConfig
from rock.modelservice.wire import Pins, SessionLimits, SessionSpec
from rock.modelservice.wire.interceptors import AnyRule, Interceptor, When

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "settings.md").read_text()
INTERCEPTORS = (DOCS / "interceptors.md").read_text()


def default_of(name: str) -> str:
    field = ServiceConfig.model_fields[name]
    if field.is_required():
        return "required"
    if field.default is None:
        return "null"
    return "none" if field.default == () else f"{field.default}".removesuffix(".0")


@pytest.mark.parametrize("name", list(ServiceConfig.model_fields))
def test_every_setting_is_explained_with_its_default(name: str) -> None:
    description = ServiceConfig.model_fields[name].description
    assert description
    assert f"| `{name}` | {default_of(name)} | {description} |" in PAGE


@pytest.mark.parametrize("kind", [SessionSpec, SessionLimits, Pins])
def test_every_field_of_a_session_is_explained(kind: type[Any]) -> None:
    for name in kind.__struct_fields__:
        assert f"| `{name}` |" in PAGE, name


def test_every_environment_variable_is_explained() -> None:
    for name, field in Environment.model_fields.items():
        variable = (field.description or "").partition("(")[2].partition(")")[0]
        assert f"`{variable}`" in PAGE, name
    assert read_environment({"HOME": "/x", "ROCK_LOG_FORMAT": "JSON"}).log_format == "json"
    with pytest.raises(ConfigError, match="ROCK_LOG_FORMAT: expected one of text, json: 'xml'"):
        read_environment({"HOME": "/x", "ROCK_LOG_FORMAT": "xml"})


def test_every_rule_and_field_of_interceptors_is_explained() -> None:
    rules = typing.get_args(AnyRule)
    assert len(rules) == 10
    for rule in rules:
        assert f"| `{rule.__struct_config__.tag}` |" in INTERCEPTORS
        for name in rule.__struct_fields__:
            assert f"`{name}`" in INTERCEPTORS, name
    for name in (*Interceptor.__struct_fields__, *When.__struct_fields__):
        assert f"`{name}`" in INTERCEPTORS, name
