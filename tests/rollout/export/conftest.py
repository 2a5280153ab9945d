"""What the export tests share: a run that was really made, and runs that are made up."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rock.testing.made_run import make_run
from tests.rollout.export.recorded import record


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a real run; only to be read."""
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def made_run(tmp_path: Path) -> Path:
    """A small made-up run."""
    return new_run(tmp_path)


def new_run(folder: Path, *, tasks: int = 3, episodes: int = 4, turns: int = 5) -> Path:
    make_run(folder / "run", tasks=tasks, episodes=episodes, turns=turns, tokens_per_message=9)
    return folder / "run"


MakeRun = Callable[..., Path]
