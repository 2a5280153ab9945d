"""rock: real agents in sandboxes ask, one trainer answers, graded token-exact trajectories come out.

Importing this package does nothing and imports nothing heavy. Start in `rock.modelservice.client.client`
(write a trainer), `rock.sandbox` (run commands in isolation), `rock.rollout` (drive episodes), or with
`rock.make` (an environment with `reset` and `step`; from `rock.gym`, imported when it is first asked for).
"""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in ("make", "list", "register"):
        return getattr(__import__("rock.gym", fromlist=[name]), name)
    raise AttributeError(f"module 'rock' has no attribute {name!r}")
