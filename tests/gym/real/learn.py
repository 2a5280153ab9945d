"""Stable-Baselines3 on a served environment, unchanged. Run with the Python of `make test-torch`."""

from __future__ import annotations

import json
import sys
from typing import Any

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv


def make() -> Any:
    return gymnasium.make(
        "rock.gym:rock/Environment-v0", source="gym:CartPole-v1", provider="local"
    )


def main() -> None:
    checked = make()
    check_env(checked)
    checked.close()
    vector = DummyVecEnv([make, make])
    model = PPO("MlpPolicy", vector, n_steps=128, batch_size=64, n_epochs=2, seed=0)
    model.learn(total_timesteps=512)
    ends = 0
    observation = vector.reset()
    for _ in range(200):
        action, _ = model.predict(observation)
        observation, _, dones, infos = vector.step(action)
        kept = ["terminal_observation" in info for info in infos]
        assert kept == dones.tolist()
        ends += sum(kept)
    vector.close()
    json.dump({"steps": int(model.num_timesteps), "ends": ends}, sys.stdout)


if __name__ == "__main__":
    main()
