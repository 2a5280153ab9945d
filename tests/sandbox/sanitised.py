"""The helper built with the address and undefined-behaviour sanitisers, in a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from rock.sandbox.helper import HELPER

FLAGS = [
    *("-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
]
_OPTIONS = """
const char *__asan_default_options(void) {{
    return "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1:log_path={log}";
}}
const char *__ubsan_default_options(void) {{
    return "halt_on_error=1:abort_on_error=1:print_stacktrace=1:log_path={log}";
}}
"""
"""In the program, because the helper's processes get no environment. A request's process frees nothing."""


def build(target: Path, *, log: str) -> None:
    """Compile to `target`; what is found goes to files `log`.PID, a path where the helper will run."""
    options = target.with_name("options.c")
    options.write_text(_OPTIONS.format(log=log))
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the sanitised helper needs a C compiler with libasan and libubsan"
    sources = sorted(HELPER.parent.glob("*.c"))
    done = subprocess.run(
        [compiler, *FLAGS, *sources, options, "-o", target], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def findings(log: Path) -> str:
    """What the sanitisers wrote; empty is what everybody wants."""
    return "\n".join(path.read_text() for path in sorted(log.parent.glob(f"{log.name}.*")))
