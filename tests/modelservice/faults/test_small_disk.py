"""A disk that is really full: the state directory is a tmpfs of 1 MB, in a mount namespace of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from tests.modelservice.faults.small_disk import STORIES
from tests.needs import way_to_mount

ROOT = Path(__file__).parent.parent.parent.parent
MOUNT = 'mount -t tmpfs -o size=1m,mode=700 tmpfs "$1" && exec "$2" -m "$3" "$4" "$1"'


@pytest.mark.mounts
@pytest.mark.parametrize("story", STORIES)
async def test_on_a_disk_that_is_full(tmp_path: Path, story: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    program = "tests.modelservice.faults.small_disk"
    way = way_to_mount()
    assert way is not None
    with (tmp_path / "said").open("wb") as said:
        child = await process.start(
            [*way, "sh", "-c", MOUNT, "sh", str(disk), sys.executable, program, story],
            env=inherited_environment(),
            cwd=ROOT,
            stdout=said,
            stderr=said,
        )
        try:
            code = await child.wait()
        finally:
            await process.stop(child)
    assert code == 0, (tmp_path / "said").read_text()[-4000:]
