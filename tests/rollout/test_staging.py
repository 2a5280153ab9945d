"""Directories on the host through which files go into sandboxes: gone with their user, however it ends."""

import contextlib
import signal
import sys
import tempfile
from pathlib import Path

from rock import process
from rock.config import inherited_environment
from rock.rollout.staging import remove_left_stages, stage
from tests.rollout.live import wait_until

HOLD = """
import asyncio
from rock.rollout.staging import stage

async def main():
    async with stage() as path:
        (path / "secret-tests").write_text("x")
        print(path, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def remaining(*paths: Path) -> list[bool]:
    remove_left_stages()
    return [path.is_dir() for path in paths]


async def test_what_a_killed_process_left_is_removed_and_what_a_living_one_uses_is_not() -> None:
    started = await process.start(
        [sys.executable, "-c", HOLD], env=inherited_environment(), stdout=process.PIPE
    )
    try:
        assert started.stdout is not None
        theirs = Path((await started.stdout.readline()).decode().strip())
        async with stage() as ours:
            assert remaining(theirs, ours) == [True, True]
            started.send_signal(signal.SIGKILL)
            await started.wait()
            # Other runs on this machine may be removing it at the same time.
            await wait_until(lambda: remaining(theirs, ours) == [False, True])
        assert remaining(ours) == [False]
    finally:
        await process.stop(started)


def test_names_that_say_no_process_are_left_alone() -> None:
    odd = Path(tempfile.mkdtemp(prefix="rock-stage-"))
    try:
        remove_left_stages()
        assert odd.is_dir()
    finally:
        with contextlib.suppress(OSError):
            odd.rmdir()
