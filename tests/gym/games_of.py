"""What the tests of environments share: how to make the small ones, and ways to break them."""

import signal
from pathlib import Path
from typing import Any

import rock
from rock.gym import RockEnv, ServedEnv
from rock.gym.loop import loop
from rock.sandbox.base import Sandbox
from tests.rollout.live import wait_until

GAMES = Path(__file__).parent / "games"
FAST: dict[str, Any] = {"provider": "local", "start_seconds": 60.0}


def counter(name: str = "Counter", **fields: Any) -> ServedEnv:
    made = rock.make(f"call:games:{name}", path=[GAMES], **{**FAST, **fields})
    assert isinstance(made, ServedEnv)
    return made


def kill_process(env: ServedEnv) -> None:
    """SIGKILL the environment's process from within its sandbox, and see it gone."""
    sandbox, pid = env.sandbox, env.pid
    assert sandbox is not None

    async def gone(where: Sandbox) -> bool:
        return all(info.pid != pid for info in await where.list_processes())

    async def kill() -> None:
        script = f"kill -{signal.SIGKILL} {pid}"
        assert (await sandbox.exec(["sh", "-c", script], timeout_seconds=10)).ok
        await wait_until(lambda: gone(sandbox))

    loop().run(kill())


def kill_sandbox(env: RockEnv) -> None:
    """The whole sandbox is gone."""
    sandbox = env.sandbox
    assert sandbox is not None
    loop().run(sandbox.stop())
