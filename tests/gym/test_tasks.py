"""Tasks as environments: scripts in, output out, the grader's reward at the end."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

import rock
from rock.errors import ConfigError, EnvironmentFailed, EnvironmentLost
from rock.gym import TaskEnv
from tests.gym.games_of import kill_sandbox

pytestmark = pytest.mark.userns

GRADER = {"command": ["sh", "-c", 'test "$(cat "$0/answer")" = 42', "{workdir}"]}


def task(tmp_path: Path, *, grader: dict[str, Any] | None = None, **fields: Any) -> TaskEnv:
    row = {
        "task_id": "sum",
        "instruction": "write the sum of numbers into answer",
        "files": {"numbers": {"text": "40\n2\n"}},
        "grader": grader or GRADER,
    }
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row) + "\n")
    made = rock.make(f"task:{path}", provider="local", **fields)
    assert isinstance(made, TaskEnv)
    return made


def test_scripts_do_the_work_and_the_grader_gives_the_reward(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path)) as env:
        instruction, info = env.reset(seed=1)
        assert (instruction, info) == (
            "write the sum of numbers into answer",
            {"task_id": "sum"},
        )
        observation, reward, *ends, info = env.step("cat numbers; cat nothing")
        assert observation.startswith("40\n2\n")
        assert observation.endswith("[exit code 1]")
        assert (reward, ends, info["exit_code"]) == (0.0, [False, False], 1)
        env.step("echo 42 > answer")
        _, reward, terminated, truncated, info = env.step("submit\n")
        assert (reward, terminated, truncated) == (1.0, True, False)
        assert "grade" in info
        with pytest.raises(EnvironmentFailed, match="call reset first"):
            env.step("true")


def test_every_episode_begins_with_the_tasks_own_files(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path)) as env:
        env.reset()
        env.step("echo 42 > answer; rm numbers")
        env.reset()
        assert env.step("ls")[0] == "numbers\n"
        assert env.step("submit")[1] == 0.0


def test_the_last_step_that_there_is_truncates_and_is_graded(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path, max_steps=2)) as env:
        env.reset()
        assert env.step("true")[1:4] == (0.0, False, False)
        observation, reward, terminated, truncated, _ = env.step("echo 42 | tee answer")
        assert (observation, reward, terminated, truncated) == ("42\n", 1.0, False, True)


def test_a_sandbox_that_dies_is_followed_by_one_with_the_last_files(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path)) as env:
        env.reset()
        env.step("echo half > work")
        kill_sandbox(env)
        observation, *_, info = env.step("cat work; echo 42 > answer")
        assert (observation, info["rock_restored"]) == ("half\n", 1)
        kill_sandbox(env)
        assert env.step("submit")[1] == 1.0
        assert env.restored == 2


def test_an_action_that_always_ends_the_sandbox_is_given_up(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path, restores=0)) as env:
        env.reset()
        kill_sandbox(env)
        with pytest.raises(EnvironmentLost, match="dies of this action"):
            env.step("true")
        env.reset()
        assert env.step("ls")[0] == "numbers\n"


def test_a_script_that_hangs_is_a_result(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path, step_seconds=1.0)) as env:
        env.reset()
        observation, *_, info = env.step("echo before; sleep 600")
        assert (observation, info["status"]) == ("before\n\n[timed_out]", "timed_out")
        assert env.step("echo after")[0] == "after\n"


def test_spawning_in_the_same_state_gives_two_lives_to_one_beginning(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path)) as env:
        env.reset()
        env.step("echo 4 > answer")
        with contextlib.closing(env.spawn(same_state=True)) as other:
            other.step("echo 42 > answer")
            assert other.step("submit")[1] == 1.0
        with contextlib.closing(env.spawn()) as fresh:
            fresh.reset()
            assert fresh.step("ls")[0] == "numbers\n"
        assert env.step("cat answer")[0] == "4\n"


def test_a_grader_that_gives_no_reward_is_never_a_reward_of_zero(tmp_path: Path) -> None:
    with contextlib.closing(task(tmp_path, grader={"command": ["no-such-grader"]})) as env:
        env.reset()
        with pytest.raises(EnvironmentFailed, match="no reward"):
            env.step("submit")


def test_the_task_must_be_one_task(tmp_path: Path) -> None:
    (tmp_path / "two.jsonl").write_text(
        "".join(
            json.dumps({"task_id": name, "instruction": "do", "grader": GRADER}) + "\n"
            for name in ("a", "b")
        )
    )
    source = f"task:{tmp_path / 'two.jsonl'}"
    with pytest.raises(ConfigError, match="expected one task, found 2"):
        rock.make(source, provider="local")
    with pytest.raises(ConfigError, match="expected one task, found 0"):
        rock.make(f"{source}#c", provider="local")
    with contextlib.closing(rock.make(f"{source}#b", provider="local")) as env:
        assert env.reset()[1] == {"task_id": "b"}
