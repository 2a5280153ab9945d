"""Environments as an API: `reset` and `step`, wherever and with whatever dependencies they run.

    import rock

    env = rock.make("gym:Taxi-v4")
    observation, info = env.reset(seed=7)
    observation, reward, terminated, truncated, info = env.step(2)
    env.close()

Each environment is a process in a sandbox of its own, started from a Python of its own, so that two
versions of one library can be used side by side and a broken environment harms nothing else. Read
`definition` (what it is made from), `env` (what users hold), `service` (the process and its life),
`tasked` (tasks with graders) and `remote` (what runs inside). Needs `rock-rollout[gym]`.
"""

from rock.errors import ConfigError

try:
    import gymnasium as _gymnasium
except ImportError as exc:
    raise ConfigError("environments need Gymnasium: pip install 'rock-rollout[gym]'") from exc
del _gymnasium

from rock.gym.definition import Definition  # noqa: E402
from rock.gym.env import RockEnv, ServedEnv, TaskEnv  # noqa: E402
from rock.gym.registry import GENERIC_ID, entry, list, make, register  # noqa: E402

__all__ = [
    "GENERIC_ID",
    "Definition",
    "RockEnv",
    "ServedEnv",
    "TaskEnv",
    "entry",
    "list",
    "make",
    "register",
]
