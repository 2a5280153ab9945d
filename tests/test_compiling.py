"""What stands in the way of compiling is said in one line, and nothing is left in the source tree."""

import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "scripts" / "compile.py"
MODULE = "rock/part.py"


def compiled(
    folder: Path, source: str, *modules: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`scripts/compile.py` over a tree with one module."""
    root = folder / "root"
    (root / "rock").mkdir(parents=True)
    (root / "rock" / "__init__.py").touch()
    (root / MODULE).write_text(source)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(root), str(folder / "out"), *(modules or [MODULE])],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert {path.name for path in root.rglob("*")} == {"rock", "__init__.py", "part.py"}
    return done


@pytest.mark.parametrize(
    "head",
    ["Part(Struct)", "Part(msgspec.Struct)", "Part(Base, frozen=True)"],
)
def test_a_class_that_would_silently_become_another_is_refused_by_name(
    tmp_path: Path, head: str
) -> None:
    done = compiled(tmp_path, f"import msgspec\n\nclass {head}:\n    x: int\n")
    assert done.returncode == 1
    assert f"rock cannot be compiled: {MODULE}:3: class Part is a msgspec Struct" in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_module_that_is_compiled_has_such_a_class() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        modules = tomllib.load(file)["tool"]["hatch"]["build"]["hooks"]["custom"]["compiled"]
    unfit_classes = runpy.run_path(str(PROGRAM))["unfit_classes"]
    assert [found for module in modules for found in unfit_classes(ROOT, module)] == []


def test_a_missing_compiler_is_named_with_what_brings_it(tmp_path: Path) -> None:
    done = compiled(tmp_path, "", CC="/absent/cc -pthread")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "rock cannot be compiled: there is no C compiler /absent/cc "
        "(Debian, Ubuntu: apt-get install gcc libc6-dev)"
    ]


def test_a_listed_module_that_is_gone_is_named(tmp_path: Path) -> None:
    done = compiled(tmp_path, "", MODULE, "rock/gone.py")
    assert done.returncode == 1
    assert "rock/gone.py is not there; pyproject.toml lists it" in done.stderr


@pytest.mark.compiled  # seconds of mypy, which belong where everything is compiled
def test_a_type_error_is_an_error(tmp_path: Path) -> None:
    done = compiled(tmp_path, "def length(text: str) -> str:\n    return len(text)\n")
    assert done.returncode == 1
    assert f"{MODULE}:2: error: Incompatible return value type" in done.stderr + done.stdout
    assert not (tmp_path / "out").exists()
