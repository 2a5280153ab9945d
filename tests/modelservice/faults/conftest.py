"""The seed of the long forms: `ROCK_SOAK_SEED`, or a new one each time; always printed."""

import os
import random

import pytest


@pytest.fixture
def soak_seed() -> int:
    given = os.environ.get("ROCK_SOAK_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"ROCK_SOAK_SEED={seed}")  # noqa: T201 - to run the same again
    return seed
