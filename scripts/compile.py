"""Compile modules of `rock` with mypyc: `compile.py ROOT OUTPUT MODULE...`, paths relative to ROOT.

OUTPUT gets the extension modules at the places they have beside their sources, and the library they share
(`rock_compiled__mypyc`). Nothing is written below ROOT. `hatch_build.py` runs this where wheels are
built; mypy, setuptools and what `rock` imports must be installed. What cannot be compiled as it is meant ends
with one line per reason and code 1: a compiler or Python.h that is missing, a class that mypyc would change
silently, a type error (from which wrong checks at run time would follow).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

GROUP = "rock_compiled"
OPTIONS = ["--ignore-missing-imports", "--follow-imports=silent", "--no-warn-unused-ignores"]
RAW = "class Raw(bytes):\n"
TRUE_RAW = """class Raw:
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
"""


def main(argv: Sequence[str]) -> int:
    root, output = Path(argv[0]).resolve(), Path(argv[1]).resolve()
    modules = list(argv[2:])
    reasons = [
        *missing_tools(),
        *(reason for module in modules for reason in unfit_classes(root, module)),
    ]
    for reason in reasons:
        sys.stderr.write(f"rock cannot be compiled: {reason}\n")
    if reasons:
        return 1
    with tempfile.TemporaryDirectory(prefix="rock-compile-") as folder:
        work = Path(folder)
        for path in [*root.glob("rock/**/*.py"), root / "rock" / "py.typed"]:
            if path.exists():
                copy = work / path.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
        true_stubs(work / "stubs")
        os.environ["MYPYPATH"] = str(work / "stubs")
        os.chdir(work)
        build(modules, output)
    return 0


def missing_tools() -> Iterator[str]:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        yield f"there is no C compiler {compiler} (Debian, Ubuntu: apt-get install gcc libc6-dev)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        yield f"{header} is missing (Debian, Ubuntu: apt-get install python3-dev)"


def unfit_classes(root: Path, module: str) -> Iterator[str]:
    """Classes whose keywords mypyc drops without a word, which makes other Structs of them."""
    if not (root / module).exists():
        yield f"{module} is not there; pyproject.toml lists it as compiled"
        return
    for node in ast.walk(ast.parse((root / module).read_text(), module)):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        keywords = {str(word.arg) for word in node.keywords} - {"metaclass"}
        if "Struct" in bases or (keywords and "TypedDict" not in bases):
            yield (
                f"{module}:{node.lineno}: class {node.name} is a msgspec Struct or has keywords, which "
                "mypyc drops; define it in a module that is not compiled"
            )


def true_stubs(folder: Path) -> None:
    """msgspec's own stubs, without their claim that a `Raw` is `bytes`, for which mypyc would check."""
    found = importlib.util.find_spec("msgspec")
    if found is None or found.origin is None:
        raise SystemExit("rock cannot be compiled: msgspec is not installed here")
    package = Path(found.origin).parent
    (folder / "msgspec").mkdir(parents=True)
    for path in [*package.glob("*.pyi"), package / "py.typed"]:
        shutil.copyfile(path, folder / "msgspec" / path.name)
    stub = folder / "msgspec" / "__init__.pyi"
    text = stub.read_text()
    if text.count(RAW) != 1:
        raise SystemExit(
            f"rock cannot be compiled: expected one line {RAW.strip()!r} in msgspec's "
            "__init__.pyi; see true_stubs in scripts/compile.py"
        )
    stub.write_text(text.replace(RAW, TRUE_RAW))


def build(modules: Sequence[str], output: Path) -> None:
    """In the current directory; raises SystemExit, with the reasons on stderr."""
    # Here, so that what is missing is said before they are.
    from mypyc.build import mypycify
    from setuptools import setup

    extensions = mypycify(
        [*OPTIONS, *modules],
        opt_level="2",
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
    )
    commands = ["--quiet", "build_ext", "--build-lib", str(output), "--build-temp", "objects"]
    setup(name=GROUP, packages=[], ext_modules=extensions, script_args=commands)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
