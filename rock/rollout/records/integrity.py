"""The integrity report of an episode, as its record has it."""

from __future__ import annotations

import msgspec

MAX_LISTED = 40
"""How many names of each kind a report has; the counts are always whole."""


class Integrity(msgspec.Struct, frozen=True, kw_only=True):
    """What the harness did so that an episode's reward can be believed, and what it found."""

    protected: int = 0
    """Files that were kept safe."""
    changed: list[str] = msgspec.field(default_factory=list[str])
    added: list[str] = msgspec.field(default_factory=list[str])
    deleted: list[str] = msgspec.field(default_factory=list[str])
    """Protected files that the agent touched; up to 40 names each."""
    tampered: int = 0
    """How many it touched in all."""
    restored: bool = True
    """Whether all of them were found as they were, after they were put back."""
    hidden: list[str] = msgspec.field(default_factory=list[str])
    git: str = "keep"
    fresh: bool = False
    """Whether the grader ran in a sandbox that the agent was never in."""
    collected_sha256: str | None = None
    """Of the work that was carried over into the fresh sandbox."""
