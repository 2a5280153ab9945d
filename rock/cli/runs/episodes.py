"""Finding one episode in a run directory by what a person types: TASK/INDEX."""

from __future__ import annotations

from pathlib import Path

from rock.errors import ConfigError
from rock.modelservice.wire import Trajectory
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import file_name, read_records
from rock.rollout.records.trajectory import read_trajectory


def find_episode(directory: Path, episode: str) -> tuple[Record, Trajectory | None]:
    """The record of TASK/INDEX, and its trajectory if it has one. Raises `ConfigError`."""
    records = read_records(directory)
    task, _, index = episode.rpartition("/")
    for record in records:
        if record.task_id == task and str(record.index) == index:
            folder = directory / "episodes" / file_name(task) / index / f"attempt-{record.attempt}"
            return record, read_trajectory(folder)
    known = ", ".join(f"{record.task_id}/{record.index}" for record in records[:5])
    raise ConfigError(
        f"no finished episode {episode!r} in {directory}; expected TASK/INDEX, "
        f"like {known or 'none, for no episode is finished'}"
    )
