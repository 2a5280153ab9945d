"""Where the installed package keeps `rock-init`, the program that runs inside every sandbox."""

from __future__ import annotations

import os
from pathlib import Path

from rock.errors import ProviderUnavailable


def helper_path() -> Path:
    """The helper for this machine. Raises `ProviderUnavailable` if the package was not built."""
    path = Path(__file__).resolve().parent / "native" / "rock-init"
    if not os.access(path, os.X_OK):
        raise ProviderUnavailable(
            f"{path} is missing: the package was not built; install it with `pip install .` "
            "(it compiles the helper) or, in a clone, run `make setup`"
        )
    return path
