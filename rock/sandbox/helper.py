"""Where the helper program is. It is built with the package and never downloaded."""

from __future__ import annotations

import os
from pathlib import Path

from rock.errors import ProviderUnavailable

HELPER = Path(__file__).parent / "native" / "rock-init"


def helper_path() -> Path:
    """The static `rock-init` for this machine. Raises `ProviderUnavailable` when it was not built."""
    if not os.access(HELPER, os.X_OK):
        raise ProviderUnavailable(
            f"the sandbox helper {HELPER} is missing; install the package again "
            "(`pip install .`), which builds it with a C compiler or with ziglang"
        )
    return HELPER
