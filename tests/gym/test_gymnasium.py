"""Served environments under Gymnasium's own tools: its checker and its vectors, unchanged."""

import contextlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import rock
from rock.errors import ConfigError
from tests.gym.games_of import FAST, GAMES

pytestmark = pytest.mark.userns

COUNTER = "rock/Counter-v0"
NOTHING = np.zeros(2, dtype=np.int64)
LAKE = "rock/FrozenLake-v1"


@pytest.fixture(autouse=True)
def _registered() -> None:
    rock.register(COUNTER, "call:games:Counter", path=[str(GAMES)], **FAST)
    rock.register(LAKE, "gym:FrozenLake-v1", **FAST)


def make_counter() -> gymnasium.Env[Any, Any]:
    """As a vector's worker process makes it: nothing is registered there."""
    return gymnasium.make(
        "rock.gym:rock/Environment-v0", source="call:games:Counter", path=[str(GAMES)], **FAST
    )


@pytest.mark.parametrize("name", [COUNTER, LAKE])
def test_gymnasiums_checker_finds_nothing(name: str) -> None:
    made = gymnasium.make(name)
    with contextlib.closing(made):
        # The lake's pictures need pygame; the counter's actions 1 to 6 are there to break things.
        made.unwrapped.action_space = (
            gymnasium.spaces.Discrete(1) if name == COUNTER else made.action_space
        )
        check_env(made.unwrapped, skip_render_check=name == LAKE, skip_close_check=True)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_vectors_autoreset_keeps_the_final_observation(mode: AutoresetMode) -> None:
    vector: Any = SyncVectorEnv([make_counter, make_counter], autoreset_mode=mode)
    with contextlib.closing(vector):
        vector.reset(seed=3)
        for _ in range(9):
            vector.step(NOTHING)
        observations, _, terminated, _, infos = vector.step(NOTHING)
        assert terminated.tolist() == [True, True]
        if mode is AutoresetMode.NEXT_STEP:
            assert observations["count"].tolist() == [10, 10]
            observations, *_ = vector.step(NOTHING)
            assert observations["count"].tolist() == [0, 0]
        else:
            assert [one["count"] for one in infos["final_obs"]] == [10, 10]
            assert observations["count"].tolist() == [0, 0]


def test_a_vector_of_processes_has_an_environment_in_each() -> None:
    vector: Any = AsyncVectorEnv([make_counter, make_counter], context="spawn")
    with contextlib.closing(vector):
        vector.reset(seed=[1, 2])
        observations, *_ = vector.step(NOTHING)
        assert observations["count"].tolist() == [1, 1]
        first, second = observations["noise"].tolist()
        assert first != second


def test_a_registered_name_is_one_name_for_both() -> None:
    with contextlib.closing(rock.make(COUNTER, arguments={"start": 7})) as env:
        assert env.reset(seed=0)[0]["count"] == 7
    assert COUNTER in rock.list()
    assert "gym:FrozenLake-v1" in rock.list()
    assert not [name for name in rock.list() if name.startswith("gym:rock/")]


def test_names_and_fields_that_are_none_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no environment 'Taxi' \(expected gym:NAME"):
        rock.make("Taxi")
    with pytest.raises(ConfigError, match=r"colour: .*no such field \(given: 'red'\)"):
        rock.make("gym:FrozenLake-v1", colour="red")
    with pytest.raises(ConfigError, match="expected KIND:NAME"):
        rock.register("rock/X-v0", "FrozenLake-v1")
    with pytest.raises(ConfigError, match="expected a Gymnasium id"):
        rock.register("gym:X", "gym:FrozenLake-v1")
