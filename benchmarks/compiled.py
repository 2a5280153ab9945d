"""ModelService in its compiled form, for what measures both."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent


def compiled_tree() -> Path:
    """A copy of this checkout with ModelService compiled (`make compiled`). It is made anew only where
    something changed, and says so and how long it took. Raises SystemExit where it cannot be."""
    done = subprocess.run([ROOT / "scripts" / "compiled.sh", sys.executable], check=False)
    if done.returncode != 0:
        raise SystemExit("ModelService could not be compiled")
    return ROOT / "build" / "compiled"


def running_from(tree: Path) -> Mapping[str, str]:
    """The environment in which Python takes `rock` from there, and not from the current directory."""
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
