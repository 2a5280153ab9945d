"""An environment in a sandbox: what it answers, and what becomes of it when it breaks."""

import contextlib
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rock
from rock.errors import ConfigError, EnvironmentFailed, EnvironmentLost
from rock.gym import ServedEnv
from rock.gym.loop import loop
from tests.gym.games_of import FAST, counter, kill_process, kill_sandbox
from tests.rollout.live import wait_until

pytestmark = pytest.mark.userns


def played(env: gymnasium.Env[Any, Any], seed: int, actions: list[int]) -> list[Any]:
    """All that an episode shows, up to its end."""
    shown: list[Any] = [env.reset(seed=seed)]
    for action in actions:
        shown.append(env.step(action))
        if shown[-1][2] or shown[-1][3]:
            break
    return shown


def test_frozen_lake_is_the_same_as_in_this_process_also_after_kill_9_in_the_middle() -> None:
    actions = [2, 1, 2, 1, 0, 3, 2, 2, 1, 1] * 4
    here = gymnasium.make("FrozenLake-v1")
    with contextlib.closing(rock.make("gym:FrozenLake-v1", **FAST)) as env:
        assert isinstance(env, ServedEnv)
        assert (env.observation_space, env.action_space) == (
            here.observation_space,
            here.action_space,
        )
        lengths: list[int] = []
        for seed in range(6):
            undisturbed = played(here, seed, actions)
            lengths.append(len(undisturbed))
            shown: list[Any] = [env.reset(seed=seed)]
            for number, action in enumerate(actions[: len(undisturbed) - 1]):
                if seed == 3 and number == len(undisturbed) // 2:
                    kill_process(env)
                shown.append(env.step(action))
            assert [item[-1].pop("rock_restored", 0) for item in shown].count(1) == (seed == 3)
            assert shown == undisturbed
        assert env.restored == 1
        assert max(lengths) > 3
    here.close()


def test_every_episode_can_be_played_again_also_one_without_a_seed() -> None:
    with contextlib.closing(counter()) as env:
        env.reset(seed=1)
        first, _ = env.reset()
        env.step(0)
        kill_process(env)
        again = env.step(0)
        other = env.spawn(same_state=True)
        with contextlib.closing(other):
            assert str(other.step(0)) == str(env.step(0))
        assert again[4] == {"rock_restored": 1}
        env.reset(seed=1)
        second, _ = env.reset()
        assert str(first) == str(second)


def test_a_sandbox_that_is_gone_is_made_anew_with_the_state() -> None:
    with contextlib.closing(counter()) as env:
        env.reset(seed=5, options={"count": 4})
        env.step(0)
        kill_sandbox(env)
        observation, _, _, _, info = env.step(0)
        assert observation["count"] == 6
        assert info == {"rock_restored": 1}


def test_a_step_that_kills_the_environment_once_is_taken_after_all() -> None:
    with contextlib.closing(counter()) as env:
        env.reset(seed=5)
        env.step(0)
        observation, *_ = env.step(5)
        assert (observation["count"], env.restored) == (2, 1)


def test_a_state_that_comes_out_differently_is_lost_and_said_to_be() -> None:
    with contextlib.closing(counter("Fleeting")) as env:
        env.reset(seed=5)
        env.step(0)
        kill_process(env)
        with pytest.raises(EnvironmentLost, match="the reset came out differently"):
            env.step(0)
        with pytest.raises(EnvironmentFailed, match="call reset first"):
            env.step(0)
        env.reset(seed=5)
        assert env.step(0)[0]["count"] == 1


def test_a_step_that_always_kills_the_environment_is_given_up() -> None:
    with contextlib.closing(counter(restores=1)) as env:
        env.reset(seed=5)
        with pytest.raises(EnvironmentLost, match="died 2 times in a row: signal 9"):
            env.step(3)
        env.reset(seed=5)
        assert env.step(0)[0]["count"] == 1


def test_an_environment_that_hangs_is_ended_and_can_be_reset() -> None:
    with contextlib.closing(counter(step_seconds=2.0)) as env:
        env.reset(seed=5)
        with pytest.raises(EnvironmentLost, match="did not answer within 2 s"):
            env.step(2)
        env.reset(seed=5)
        assert env.step(0)[0]["count"] == 1


def test_what_the_environment_raises_and_prints_breaks_nothing() -> None:
    with contextlib.closing(counter()) as env:
        env.reset(seed=5)
        with pytest.raises(EnvironmentFailed, match="ValueError: one is not taken"):
            env.step(1)
        assert env.step(4)[0]["count"] == 1
        assert math.isnan(float(env.step(6)[1]))
        kill_process(env)
        assert env.step(0)[0]["count"] == 3


def test_an_environment_that_lies_gets_errors_and_is_not_believed() -> None:
    with contextlib.closing(counter("Liar")) as env:
        for action in (1, 2, 3):
            env.reset(seed=5)
            assert env.step(0)[0]["count"] == 1
            with pytest.raises(EnvironmentFailed, match=r"is no such answer|is no answer"):
                env.step(action)
            # What it said besides was not asked for: another process takes its place.
            before = env.restored
            env.reset(seed=5)
            assert env.restored == before + 1
            assert env.step(0)[0]["count"] == 1
            kill_process(env)  # so that questions are counted anew
        env.reset(seed=5)
        env.step(0)
        with pytest.raises(EnvironmentLost, match="it spoke without being asked"):
            env.step(4)


ODD = {
    "exits": "SystemExit: 3",
    "exits at once": "died 1 times in a row",
    "recurses": "RecursionError",
    "answers without end": "it said too much",
    "returns four": "expected 5, got 4",
    "rewards with text": "could not convert",
    "floods its output": "",
    "leaves a child": "",
    "forgets its surroundings": "",
    "never closes": "",
}


@pytest.mark.parametrize("how", ODD)
def test_an_odd_environment_answers_or_fails_in_time_and_ends_when_it_is_closed(how: str) -> None:
    with contextlib.closing(counter("Odd", arguments={"how": how}, restores=0)) as env:
        env.reset(seed=5)
        if ODD[how]:
            with pytest.raises(EnvironmentFailed, match=ODD[how]):
                env.step(0)
            assert env.reset(seed=5)[0]["count"] == 0
        else:
            assert [env.step(0)[0]["count"] for _ in range(2)] == [1, 2]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_sixty_four_environments_at_once_keep_their_states_apart() -> None:
    def play(number: int) -> list[int]:
        with contextlib.closing(counter()) as env:
            first, _ = env.reset(seed=number, options={"count": number % 5})
            return [first["count"], *(env.step(0)[0]["count"] for _ in range(3))]

    with ThreadPoolExecutor(64) as threads:
        played_out = list(threads.map(play, range(64)))
    assert played_out == [[n % 5 + step for step in range(4)] for n in range(64)]


def test_infos_and_pictures_come_out_and_nothing_is_shown_on_a_screen() -> None:
    with contextlib.closing(counter(arguments={"start": 3, "render_mode": "ansi"})) as env:
        _, info = env.reset(seed=5)
        assert info["started"] == (3, None)
        assert info["handle"].startswith("<object object")
        assert env.render() == "count 3"
        assert env.metadata["render_modes"] == ["ansi"]


def test_two_versions_of_one_library_run_side_by_side(tmp_path: Path) -> None:
    envs: list[ServedEnv] = []
    for version in (1, 2):
        folder = tmp_path / str(version)
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "rules.py").write_text(f"VERSION = {version}\n")
        (folder / "game.py").write_text(
            "import rules\n"
            "class Game:\n"
            "    def reset(self, seed):\n"
            "        return f'version {rules.VERSION}', {}\n"
        )
        made = rock.make("call:game:Game", path=[folder], **FAST)
        assert isinstance(made, ServedEnv)
        envs.append(made)
    try:
        assert [env.reset(seed=0)[0] for env in envs] == ["version 1", "version 2"]
    finally:
        for env in envs:
            env.close()


def test_text_environments_without_spaces_are_served() -> None:
    with contextlib.closing(counter("Guess")) as env:
        assert env.reset(seed=17) == ("guess a digit", {})
        assert env.step("3") == ("wrong", 0.0, False, False, {})
        assert env.step(" 7") == ("right", 1.0, True, False, {})
        assert env.action_space.contains(env.action_space.sample())


def test_what_cannot_start_says_why() -> None:
    with pytest.raises(EnvironmentFailed, match=r"NameNotFound|doesn't exist"):
        rock.make("gym:NoSuchGame-v0", **FAST)
    with pytest.raises(EnvironmentFailed, match="no_such_module"):
        rock.make("call:no_such_module:make", **FAST)
    with pytest.raises(ConfigError, match="python: there is no /nowhere/python"):
        rock.make("gym:FrozenLake-v1", python="/nowhere/python", **FAST)


LEFT_OPEN = """
import os, pathlib, sys, rock
env = rock.make("gym:FrozenLake-v1", provider=sys.argv[1])
env.reset(seed=1)
found = [os.getpid()]
for pid in found:
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, path.read_text().split())
print(*found[1:])
"""


@pytest.mark.parametrize(
    "provider", ["local", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])]
)
def test_what_a_process_leaves_open_ends_with_it_without_a_word(provider: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, provider],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pids = done.stdout.split()
    assert pids or provider == "docker"  # whose processes are the engine's; they have a lease
    loop().run(wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids)))


@pytest.mark.docker
@pytest.mark.slow
def test_containers_serve_too_and_are_made_anew() -> None:
    here = gymnasium.make("FrozenLake-v1")
    with contextlib.closing(rock.make("gym:FrozenLake-v1", provider="docker")) as env:
        undisturbed = played(here, 4, [2, 1, 2, 1])
        shown: list[Any] = [env.reset(seed=4), env.step(2)]
        kill_sandbox(env)
        shown += [env.step(action) for action in (1, 2, 1)[: len(undisturbed) - 2]]
        assert shown[2][-1].pop("rock_restored") == 1
        assert shown == undisturbed
    here.close()


def test_closing_twice_is_fine_and_a_closed_environment_refuses() -> None:
    env = counter()
    env.close()
    env.close()
    with pytest.raises(EnvironmentFailed, match="is closed"):
        env.reset()
