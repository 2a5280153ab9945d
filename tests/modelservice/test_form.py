"""ModelService's two forms: it knows in which one it runs, and a service runs in that of its starter."""

import importlib
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from pathlib import Path

import pytest

from rock.modelservice.hosting.form import compiled_modules, form
from rock.modelservice.hosting.supervise import LOG_FILE, ServiceProcess

ROOT = Path(__file__).parents[2]


def listed() -> list[str]:
    """Names of the modules that pyproject.toml says are compiled."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        hook = tomllib.load(file)["tool"]["hatch"]["build"]["hooks"]["custom"]
    return [path.removesuffix(".py").replace("/", ".") for path in hook["compiled"]]


def test_every_module_that_is_listed_as_compiled_exists_once() -> None:
    names = listed()
    assert names
    assert names == sorted(set(names))
    for name in names:
        assert (ROOT / f"{name.replace('.', '/')}.py").is_file(), name


@pytest.mark.compiled
def test_all_that_is_listed_is_loaded_compiled_and_nothing_else_is() -> None:
    assert sorted(compiled_modules()) == listed()
    for name in listed():
        module = importlib.import_module(name)
        assert str(module.__file__).endswith(EXTENSION_SUFFIXES[0]), name
        assert Path(str(module.__file__)).is_relative_to(ROOT), name


def test_modules_that_are_not_named_as_compiled_are_loaded_from_their_source() -> None:
    for name in set(listed()) - set(compiled_modules()):
        spec = importlib.import_module(name).__spec__
        assert spec is not None
        assert isinstance(spec.loader, SourceFileLoader), name


async def test_a_service_says_its_form_and_it_is_that_of_who_started_it(
    tmp_path: Path,
) -> None:
    async with ServiceProcess(tmp_path, environment={"ROCK_LOG_LEVEL": "INFO"}) as service:
        told = service.ready.form
    log = (tmp_path / LOG_FILE).read_text()
    assert told == form()
    assert form() in {"as Python source", f"compiled ({len(listed())} modules)"}
    assert f", {form()}\n" in log
