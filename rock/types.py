"""Values that cross packages: ids and aliases. No I/O, no imports from the rest of rock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NewType, TypeAlias

SessionId = NewType("SessionId", str)
"""Public name of a session; safe to log. The key is a separate secret."""
SessionKey = NewType("SessionKey", str)
"""Unguessable right to call the model in one session. Never logged."""
CallId = NewType("CallId", str)
LeaseId = NewType("LeaseId", str)
"""Fencing token: only the newest lease of a call can complete it."""
WorkerId = NewType("WorkerId", str)

PolicyVersion: TypeAlias = int
"""Version of the weights that sampled a token; grows by at least one per weight update."""

Labels: TypeAlias = Mapping[str, str]
"""Free string pairs that travel from the harness to the trainer (task, group, episode, kind)."""

Clock: TypeAlias = Callable[[], float]
"""Monotonic seconds. Passed in, so that tests move time by hand."""
