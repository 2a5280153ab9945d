"""Running the real `rock` command in a process of its own, as a person does."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

ROCK = str(Path(sys.executable).parent / "rock")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A clean environment: nothing of the developer's reaches the command."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ROCK_STATE_DIR": str(home / "state"),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "COLUMNS": "200",
        **(extra or {}),
    }


def _hear_hang_ups() -> None:
    """Who runs the tests under nohup ignores SIGHUP, and so would every process below."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@asynccontextmanager
async def started(
    *argv: str, home: Path, extra: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """`rock ARGV`, killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        ROCK,
        *argv,
        cwd=home,
        env=environment(home, extra),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_hear_hang_ups,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def rock(
    *argv: str, home: Path, extra: Mapping[str, str] | None = None, seconds: float = 60
) -> Done:
    """Run `rock ARGV` in the directory `home` to its end."""
    async with started(*argv, home=home, extra=extra) as process:
        out, err = await asyncio.wait_for(process.communicate(), seconds)
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())
