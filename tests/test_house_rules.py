"""The rules of the house that no linter knows."""

import inspect
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import rock.errors

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for folder in ("rock", "tests", "examples", "benchmarks")
    for pattern in ("*.py", "*.c", "*.h")
    for path in (ROOT / folder).rglob(pattern)
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_over_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.is_relative_to(ROOT / "rock")], ids=lambda path: path.name
)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text().lstrip()
    assert text.startswith(('"""', 'r"""', "/*")), f"{path} has no opening docstring"


def test_the_error_tree_drawing_is_complete() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", rock.errors.__doc__ or "")) | {"RockError"}
    defined = {
        name
        for name, value in inspect.getmembers(rock.errors, inspect.isclass)
        if issubclass(value, rock.errors.RockError)
    }
    assert drawn == defined


def test_importing_rock_imports_nothing() -> None:
    program = (
        "import sys; before = set(sys.modules); import rock; "
        "print(*sorted(set(sys.modules) - before - {'rock'}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_a_run_starts_without_what_few_runs_need() -> None:
    program = (
        "import sys; import rock.cli.app, rock.cli.demo, rock.rollout.run; "
        "print(*sorted({'openai', 'anthropic', 'litellm', 'numpy', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_every_c_file_includes_only_what_is_below_it() -> None:
    native = ROOT / "rock" / "sandbox" / "native"
    below: dict[str, set[str]] = {}
    for path in [*native.glob("*.c"), *native.glob("*.h")]:
        included = re.findall(r'^#include "(\w+)\.h"', path.read_text(), re.MULTILINE)
        below.setdefault(path.stem, set()).update(set(included) - {path.stem})
    TopologicalSorter(below).prepare()  # raises CycleError, with the circle
    with pytest.raises(CycleError):
        TopologicalSorter(below | {"wire": {"requests"}}).prepare()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_page_is_reached_from_the_readme(path: Path) -> None:
    assert f"](docs/{path.name})" in (ROOT / "README.md").read_text()
