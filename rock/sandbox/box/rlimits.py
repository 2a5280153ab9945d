"""What the kernel bounds of each process of a command, with every provider."""

from __future__ import annotations

import resource

from rock.sandbox.spec import Limits

NO_CORE = 1
"""Bytes of a core dump. With 0 the kernel still starts a host's `core_pattern` program for each crash;
with 1, which is less than any file of that kind has, it does neither (core(5); fs/coredump.c)."""


def common_rlimits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """What every provider sets on a command: no core dumps, and the bound on open files."""
    pairs = [(resource.RLIMIT_CORE, NO_CORE)]
    if limits.open_files is not None:
        pairs.append((resource.RLIMIT_NOFILE, limits.open_files))
    return tuple(pairs)
