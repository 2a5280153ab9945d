"""Build what of the package is not Python: the sandbox helper, and on request ModelService's core.

The helper `rock-init` is static C. A system C compiler that can link statically is used if there is one; else
the compiler in the PyPI package `ziglang`, which becomes a build requirement only then. The binary is never
committed.

With `ROCK_COMPILE=1` in the environment a wheel also has the modules that pyproject.toml lists as `compiled`
as extension modules beside their sources (`scripts/compile.py`), and fits this interpreter only. Editable
installs never have them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, cast

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("rock/sandbox/native")
FLAGS = ["-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror", "-static"]


def system_compiler() -> list[str] | None:
    """`$CC` or `cc`, if it links a static program here."""
    compiler = os.environ.get("CC") or "cc"
    if shutil.which(compiler) is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <unistd.h>\nint main(void) { return getpid() < 0; }\n")
        command = [compiler, "-static", str(source), "-o", str(Path(folder, "probe"))]
        done = subprocess.run(command, capture_output=True, check=False)
    return [compiler] if done.returncode == 0 else None


def compiling() -> bool:
    given = os.environ.get("ROCK_COMPILE", "")
    if given not in ("", "0", "1"):
        raise SystemExit(f"ROCK_COMPILE: expected 0 or 1, got {given!r}")
    return given == "1"


class PackageHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        needed = [] if system_compiler() else ["ziglang>=0.13,<1"]
        if compiling():  # mypyc must see the types of what the package imports
            core = self.metadata.core
            needed += [*core.optional_dependencies["compile"], *core.dependencies]
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        build_data["pure_python"] = False
        if compiling() and version != "editable":
            build_data["force_include"].update(self._compiled())
            build_data["infer_tag"] = True
        else:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
        self._build_helper()

    def _build_helper(self) -> None:
        folder = Path(self.root, NATIVE)
        compiler = system_compiler() or [sys.executable, "-m", "ziglang", "cc"]
        if "ziglang" in compiler:
            compiler += ["-target", f"{os.uname().machine}-linux-musl"]
        sources = sorted(str(path) for path in folder.glob("*.c"))
        output = folder / "rock-init"
        subprocess.run([*compiler, *FLAGS, *sources, "-o", f"{output}.new", "-s"], check=True)
        Path(f"{output}.new").replace(output)

    def _compiled(self) -> dict[str, str]:
        """Where each extension module is until this process ends, and its place in the wheel."""
        # Removed at the end of this process, also of one that fails.
        self._folder = tempfile.TemporaryDirectory(prefix="rock-compiled-")
        output = Path(self._folder.name)
        modules = cast("list[str]", self.config["compiled"])
        program = Path(self.root, "scripts", "compile.py")
        done = subprocess.run(
            [sys.executable, str(program), self.root, str(output), *modules], check=False
        )
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        return {str(path): str(path.relative_to(output)) for path in output.rglob("*.so")}
