"""In which form ModelService runs here: as Python source, or with its core compiled.

Both are the same code (ARCHITECTURE.md, "Two forms"): a wheel that was built with `ROCK_COMPILE=1` has extension
modules beside some of the sources, and Python takes those.
"""

from __future__ import annotations

import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import rock.modelservice

HOW_TO_COMPILE = "ROCK_COMPILE=1 pip install . in a checkout compiles it: more calls per core"


@functools.cache
def compiled_modules() -> tuple[str, ...]:
    """Names of ModelService's modules that this interpreter loads compiled; none for plain source."""
    package, suffix = Path(rock.modelservice.__path__[0]), EXTENSION_SUFFIXES[0]
    return tuple(
        ".".join(file.relative_to(package.parent.parent).parts).removesuffix(suffix)
        for file in sorted(package.rglob(f"*{suffix}"))
    )


def form() -> str:
    """In words, for logs and `rock doctor`."""
    count = len(compiled_modules())
    return f"compiled ({count} modules)" if count else "as Python source"
