"""What happened in an episode, so that another process can be brought to where the last one was.

An episode is its seed, its options and its actions; what came back is kept as a digest. A state that
is made anew is only trusted if it said the same at every step. No I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

DIGEST_BYTES = 16


def digest(said: bytes) -> bytes:
    return hashlib.blake2b(said, digest_size=DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Step:
    action: bytes
    """As it was sent."""
    said: bytes
    """The digest of what came back."""


@dataclass(slots=True)
class History:
    """One episode until now. `began` is the digest of its first observation, None before a reset."""

    reset: bytes = b""
    """As it was sent: with the seed and the options."""
    began: bytes | None = None
    steps: list[Step] = field(default_factory=list[Step])

    def begin(self, reset: bytes, said: bytes) -> None:
        self.reset, self.began = reset, digest(said)
        self.steps.clear()

    def add(self, action: bytes, said: bytes) -> None:
        self.steps.append(Step(action, digest(said)))

    def forget(self) -> None:
        """There is no episode any more."""
        self.began = None
        self.steps.clear()

    def copy(self) -> History:
        return History(self.reset, self.began, list(self.steps))
