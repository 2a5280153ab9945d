"""Build the sandbox helper `rock-init` (static C) with the package.

A system C compiler that can link statically is used if there is one; else the compiler in the PyPI
package `ziglang`, which becomes a build requirement only then. The binary is never committed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

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


class NativeHelperHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if system_compiler() else ["ziglang>=0.13,<1"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        folder = Path(self.root, NATIVE)
        compiler = system_compiler() or [sys.executable, "-m", "ziglang", "cc"]
        if "ziglang" in compiler:
            compiler += ["-target", f"{os.uname().machine}-linux-musl"]
        sources = sorted(str(path) for path in folder.glob("*.c"))
        output = folder / "rock-init"
        subprocess.run([*compiler, *FLAGS, *sources, "-o", f"{output}.new", "-s"], check=True)
        Path(f"{output}.new").replace(output)
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
