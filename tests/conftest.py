"""Rules for every test: Ctrl-C reaches what it starts; what it needs and is not on this machine skips or fails it."""

import gc
import signal

import pytest

from rock.config import read_environment
from tests.needs import NEEDS


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background of a shell ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unknown = read_environment().require - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(
            f"ROCK_REQUIRE: expected some of {', '.join(NEEDS)}, got {', '.join(sorted(unknown))}"
        )


def pytest_collection_finish() -> None:
    # A worker holds thousands of tests and all their imports, which no collection need look at again.
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What is missing skips a test with the reason; where it is required, it fails it."""
    for name, why_not in NEEDS.items():
        if item.get_closest_marker(name) is None or (reason := why_not()) is None:
            continue
        if name in read_environment().require:
            pytest.fail(f"ROCK_REQUIRE has {name}, but {reason}", pytrace=False)
        pytest.skip(reason)
